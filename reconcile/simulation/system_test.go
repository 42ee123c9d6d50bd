package simulation

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// system is the reconcile.System of a node.
func (m *node) system() reconcile.System {
	return reconcile.System{Now: m.instant, Random: m.c.Float64, OpenDisk: m.openDisk, Peers: nodePeers{m}, Jobs: nodeJobs{m}}
}

func (m *node) instant() reconcile.Instant {
	return reconcile.Instant{Wall: m.wallNow(), Steady: m.steady()}
}

func (m *node) wallNow() time.Time { return worldStart.Add(m.c.now + m.wall) }

func (m *node) steady() time.Time { return worldStart.Add(m.c.now) }

// handle is an open disk: it implements reconcile.Disk.
type handle struct {
	m   *node
	ref schema.DiskRef
	d   *Disk
}

var errIO = errors.New("input/output error")

func (m *node) openDisk(path string) (reconcile.Disk, string, error) {
	ref := schema.DiskRef{Node: m.name, Disk: strings.TrimPrefix(path, "/")}
	d := m.c.disks[ref]
	if d == nil || !d.Attached {
		return nil, "", errors.New("not there")
	}
	return handle{m, ref, d}, d.UUID, nil
}

// Check implements reconcile.Disk.
func (h handle) Check() error {
	if h.m.c.disks[h.ref] != h.d || !h.d.Attached {
		return errors.New("not there")
	}
	return nil
}

// List implements reconcile.Disk. For a peer it takes a moment; a round takes a moment between
// its observation and its plan instead.
func (h handle) List(name string) (c reconcile.Contents, err error) {
	if name != "" {
		h.m.c.pause(h.m.c.moment())
	}
	if h.Check() != nil {
		return c, errIO
	}
	if f := h.m.c.running; f != nil && f.listed != nil {
		f.listed(h.ref)
	}
	by := users{used: map[disk.ID]bool{}, unclear: h.d.UsersUnknown}
	for _, id := range h.d.ids() {
		s := h.d.Copies[id]
		if s.Aside || name != "" && id.Name != name {
			continue
		}
		c.Copies = append(c.Copies, h.m.c.seesCopy(id, s))
		by.used[id] = s.Users > 0
	}
	c.Space, c.Users = disk.Space{Total: driveSize, Free: h.d.free()}, by
	if name == "" && h.m.noting {
		h.m.listed = append(h.m.listed, listing{h.ref, h.d, c})
	}
	return c, nil
}

// Update implements reconcile.Disk.
func (h handle) Update(id disk.ID, change func(*disk.Record)) error {
	s := h.d.Copies[id]
	if h.Check() != nil || h.d.ReadOnly || s == nil || s.Aside {
		return errIO
	}
	r := disk.Record{InUse: s.Usage.InUse, LastUsed: s.Usage.LastUsed, SurplusSince: s.Usage.SurplusSince, ClockNode: s.Usage.By}
	change(&r)
	s.excused = s.excused && s.Usage.SurplusSince.Equal(r.SurplusSince)
	s.Usage = plan.Usage{InUse: r.InUse, LastUsed: r.LastUsed, SurplusSince: r.SurplusSince, By: r.ClockNode}
	h.m.c.logf(h.m.name, "marks %s on %s: in use %v, last used %s, unwanted since %s", id, h.ref, r.InUse, r.LastUsed, r.SurplusSince)
	return nil
}

// Close implements reconcile.Disk.
func (handle) Close() error { return nil }

// users implements reconcile.Users.
type users struct {
	used    map[disk.ID]bool
	unclear bool
}

var errUnclear = errors.New("the metadata of a replica cannot be read")

// Err implements reconcile.Users.
func (u users) Err() error {
	if u.unclear {
		return errUnclear
	}
	return nil
}

// InUse implements reconcile.Users.
func (u users) InUse(id disk.ID) (reason string, inUse bool) {
	switch {
	case u.used[id]:
		return "used by a replica", true
	case u.unclear:
		return "cannot determine what is in use", true
	}
	return "", false
}

// FileOpen implements reconcile.Users.
func (users) FileOpen(disk.ID) (reason string, open bool) { return "", false }

// nodePeers implements reconcile.Peers.
type nodePeers struct{ *node }

// Follow implements reconcile.Peers.
func (p nodePeers) Follow(_ context.Context, addresses map[string]string) {
	m := p.node
	for _, name := range slices.Sorted(maps.Keys(addresses)) {
		if m.heard[name] == nil {
			m.heard[name] = &hearsay{last: m.c.now}
			m.follow(m.heard[name], m.c.nodes[name])
		}
	}
	maps.DeleteFunc(m.heard, func(name string, _ *hearsay) bool { _, ok := addresses[name]; return !ok })
}

// Observations implements reconcile.Peers. A round calls it after it listed the disks. This takes
// a moment, or two, so that a plan is made when the observation is already old.
func (p nodePeers) Observations() map[string]peer.Observation {
	m := p.node
	m.noteListing()
	if m.noting {
		m.c.pause(m.c.moment())
	}
	m.inForce = m.appliedDigest()
	observations := map[string]peer.Observation{}
	for name, h := range m.heard {
		a := peer.Observation{Polled: h.asked, Problem: h.problem, LastSeen: worldStart.Add(h.last), URL: urlOf(name)}
		if h.said != nil {
			a.State, a.LastSuccess, a.Received = h.said.state, worldStart.Add(h.begun), worldStart.Add(h.told)
		}
		observations[name] = a
	}
	return observations
}

// Publish implements reconcile.Peers.
func (p nodePeers) Publish(s peer.State) { p.publish(s) }

// Close implements reconcile.Peers.
func (nodePeers) Close() {}

func urlOf(node string) string { return "http://" + node + ":8000" }

// nodeJobs implements reconcile.Jobs. What a round starts begins when the round has ended, at
// the same moment.
type nodeJobs struct{ *node }

// Start implements reconcile.Jobs.
func (j nodeJobs) Start(ctx context.Context, t reconcile.Task, done func(error)) {
	m, key := j.node, t.Action.CopyRef()
	if t.Action.Op.Deletes() {
		w := m.works[key]
		w.sure, w.done = true, done
		m.begun = append(m.begun, func() { m.remove(w) })
		return
	}
	w := &work{began: m.c.now, ctx: ctx, action: t.Action, key: key, image: t.Image, reserve: t.Reserve, done: done}
	if h, ok := t.Disk.(handle); ok {
		w.uuid = h.d.UUID
	}
	if t.Action.Op.ReadsCopies() {
		w.letter = m.c.contentOf(t.Digest)
		if s := m.c.copyAt(t.Action.LocalSource); s != nil {
			w.letter = s.Recorded
		}
	}
	m.addWork(w)
	m.begun = append(m.begun, func() { m.begin(w) })
}

// Query implements reconcile.Jobs.
func (j nodeJobs) Query(ctx context.Context, a plan.Action, nodes []peer.Address, done func(map[string]peer.State)) {
	m := j.node
	w := &work{began: m.c.now, ctx: ctx, action: a, key: a.CopyRef(), asks: &questions{asked: nodes, answers: map[string]peer.State{}, done: done}}
	if d := m.c.disks[w.key.Disk]; d != nil {
		w.uuid = d.UUID
	}
	m.addWork(w)
	m.begun = append(m.begun, func() { m.withdraw(w) })
}

// CanExport implements reconcile.Jobs.
func (j nodeJobs) CanExport(e schema.ExportFromVolume, _ map[string]reconcile.Disk) error {
	if j.c.replicas[e.VolumeName][j.name] {
		return nil
	}
	return errors.New("volume " + e.VolumeName + ": no replica on this node")
}

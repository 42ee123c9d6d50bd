package simulation

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	reconcilejob "github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// system is the system.System of a node.
func (m *node) system() system.System {
	return system.System{Now: m.instant, Random: m.c.Float64, Secret: m.c.Uint64, OpenDisk: m.openDisk, Peers: nodePeers{m}, Jobs: nodeJobs{m}}
}

// instant reads both clocks of the node.
func (m *node) instant() system.Instant {
	return system.Instant{Wall: m.wallNow(), Steady: m.steady()}
}

// wallNow returns the time of the wall clock, which can be set.
func (m *node) wallNow() time.Time { return startTime.Add(m.c.now + m.clockOffset) }

// steady returns the true time.
func (m *node) steady() time.Time { return startTime.Add(m.c.now) }

// openDisk opens the disk that is at a path of the node.
func (m *node) openDisk(path string) (system.Disk, string, error) {
	ref := ident.DiskRef{Node: m.name, Disk: strings.TrimPrefix(path, "/")}
	d, uuid, err := Open(func() *Disk { return m.c.disks[ref] })
	if err != nil {
		return nil, uuid, err
	}
	return watchedDisk{d, m, ref}, uuid, nil
}

// watchedDisk is an open disk on which a listing for a peer takes time. It notes what managers
// list and record.
type watchedDisk struct {
	system.Disk
	node *node
	ref  ident.DiskRef
}

// List implements system.Disk. For a peer it takes a moment. In a round there is a moment
// between the observation and the plan instead.
func (d watchedDisk) List(name string) (system.Contents, error) {
	m := d.node
	if name != "" {
		m.c.pause(m.c.moment())
	}
	listed, err := d.Disk.List(name)
	if err != nil {
		return listed, err
	}
	if f := m.c.running; f != nil && f.listed != nil {
		f.listed(d.ref)
	}
	if name == "" && m.observing {
		m.listed = append(m.listed, listing{d.ref, Opened(d.Disk), listed})
	}
	return listed, nil
}

// Update implements system.Disk.
func (d watchedDisk) Update(id ident.ID, change func(*disk.Record)) error {
	m, s := d.node, Opened(d.Disk).Copies[id]
	if s == nil {
		return errIO
	}
	surplusSince := s.Usage.SurplusSince
	if err := d.Disk.Update(id, change); err != nil {
		return err
	}
	h := m.c.history(s)
	h.excused = h.excused && surplusSince.Equal(s.Usage.SurplusSince)
	m.c.logf(m.name, "records for %s on %s: in use %v, last used %s, surplus since %s, replaced %s", id, d.ref, s.Usage.InUseRecorded, s.Usage.LastUsed, s.Usage.SurplusSince, s.Usage.ReplacedAt)
	return nil
}

// nodePeers implements system.Peers.
type nodePeers struct{ *node }

// Follow implements system.Peers.
func (p nodePeers) Follow(_ context.Context, nodes map[string]peer.Target) {
	m := p.node
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		if m.peers[name] == nil {
			m.peers[name] = &peerView{lastSeen: m.c.now}
			m.follow(m.peers[name], m.c.nodes[name])
		}
	}
	maps.DeleteFunc(m.peers, func(name string, _ *peerView) bool { _, ok := nodes[name]; return !ok })
}

// Observations implements system.Peers. A round calls it after it has listed the disks. It takes
// a moment, so that the observation is old when the round plans.
func (p nodePeers) Observations() map[string]peer.Observation {
	m := p.node
	m.noteListing()
	if m.observing {
		m.c.pause(m.c.moment())
	}
	m.observedDigest = m.appliedDigest()
	observations := map[string]peer.Observation{}
	for name, view := range m.peers {
		a := peer.Observation{Polled: view.polled, Problem: view.problem, LastSeen: startTime.Add(view.lastSeen), URL: urlOf(name)}
		if p := view.publication; p != nil {
			a.State, a.LastSuccess, a.Received = p.state, startTime.Add(view.lastSuccess), startTime.Add(view.received)
		}
		observations[name] = a
	}
	return observations
}

// Publish implements system.Peers.
func (p nodePeers) Publish(s model.Node) { p.publish(s) }

// Close implements system.Peers.
func (nodePeers) Close() {}

// urlOf returns the address of a node.
func urlOf(node string) string { return "http://" + node + ":8000" }

// nodeJobs implements system.Jobs. A job that a round starts begins at the end of the round, at
// the same moment.
type nodeJobs struct{ *node }

// Start implements system.Jobs.
func (j nodeJobs) Start(ctx context.Context, t reconcilejob.Order, on system.Disks, done func(error)) {
	m, key := j.node, t.Action.CopyRef()
	if t.Action.Op.Deletes() {
		job := m.jobs[key]
		job.confirmed, job.mark, job.done = true, t.Mark.Name, done
		m.toBegin = append(m.toBegin, func() { m.deleteCopy(job) })
		return
	}
	job := &runningJob{startedAt: m.c.now, ctx: ctx, action: t.Action, key: key, image: t.Image, reserve: t.Reserve, sources: t.PeerCopies, verified: t.Verified, seeds: t.Seeds, damaged: t.Damaged, done: done}
	if d, ok := on[key.Disk.Disk].(watchedDisk); ok {
		job.diskUUID = Opened(d.Disk).UUID
	}
	if t.Action.Op.ReadsCopies() || t.Action.VerifiesPeer() {
		job.content = m.c.contentOf(t.Digest)
		if s := m.c.copyAt(t.Action.LocalSource); s != nil {
			job.content = s.Recorded
		}
	}
	m.addJob(job)
	m.toBegin = append(m.toBegin, func() { m.beginJob(job) })
}

// Query implements system.Jobs.
func (j nodeJobs) Query(ctx context.Context, a plan.Action, mark string, nodes []peer.Address, done func(map[string]model.Node)) {
	m := j.node
	job := &runningJob{startedAt: m.c.now, ctx: ctx, action: a, key: a.CopyRef(), query: &deletionQuery{nodes: nodes, mark: mark, responses: map[string]model.Node{}, done: done}}
	if d := m.c.disks[job.key.Disk]; d != nil {
		job.diskUUID = d.UUID
	}
	m.addJob(job)
	m.toBegin = append(m.toBegin, func() { m.withdraw(job) })
}

// Prove implements system.Jobs. The requests begin at once, after the responses to the queries.
func (j nodeJobs) Prove(_ context.Context, a plan.Action, tasks []system.ProofTask, on system.Disks, done func(map[ident.CopyRef]plan.Proof)) {
	j.requestProofs(j.jobs[a.CopyRef()], tasks, on, done)
}

// CanExport implements system.Jobs.
func (j nodeJobs) CanExport(e schema.ExportFromVolume, _ system.Disks) error {
	if j.c.replicas[e.VolumeName][j.name] {
		return nil
	}
	return errors.New("volume " + e.VolumeName + ": no replica on this node")
}

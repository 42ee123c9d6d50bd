package simulation

import (
	"errors"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// uploader is a client that uploads a file to a node. It may break off for a while, or for
// good.
type uploader struct {
	key    plan.CopyRef // where it goes
	letter string
	last   time.Duration // when a byte came, or when it was begun
	over   bool
}

// uploadExpires is when a node gives up a client of which nothing more comes.
const uploadExpires = 20 * time.Minute

// uploadRandomly lets a client begin to upload an image that is for it, most times the right
// file.
func (c *cluster) uploadRandomly() {
	var names []string
	for _, name := range plantest.ImageNames {
		if c.latest().config.Images[name].Source.Upload != nil {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return
	}
	name := pick(c.rng, names...)
	letter := c.expectedBytes(c.latest().config, c.latest().config.Images[name])
	if c.oneIn(4) {
		letter = pick(c.rng, plantest.Letters...)
	}
	c.upload(name, c.taker(c.latest().config.Images[name]), letter)
	if c.oneIn(3) { // and so does somebody else
		c.upload(name, c.taker(c.latest().config.Images[name]), pick(c.rng, plantest.Letters...))
	}
}

// taker is a node to upload an image to, most times one that has a disk for it; when all
// faults are over, that one, since others say where to go.
func (c *cluster) taker(image schema.Image) *node {
	ranked := c.rankedDisks(c.latest(), image)
	on := c.disksForNewCopy(image, ranked)
	if best := slices.DeleteFunc(slices.Clone(on), func(ref schema.DiskRef) bool { return !slices.Contains(ranked, ref) }); len(best) > 0 {
		on = best
	}
	if len(on) > 0 && (!c.oneIn(5) || c.healed) {
		return c.nodes[pick(c.rng, on...).Node]
	}
	return c.nodes[pick(c.rng, c.names...)]
}

// upload is a client that asks a node to receive a file.
func (c *cluster) upload(name string, m *node, letter string) {
	if !m.up || m.rounds == 0 {
		return
	}
	m.loop.RequestUpload(name, disk.Digest{}, func(key plan.CopyRef, err error) {
		if w := m.works[key]; err != nil || m.uploads[key] != nil || w != nil && w.began < c.now {
			c.logf(m.name, "takes no upload of %s: %v", name, err)
			return
		}
		u := &uploader{key: key, letter: letter, last: c.now}
		m.uploads[key] = u
		c.logf(m.name, "takes an upload of %s with %s", key, letter)
		c.after(c.between(0, 10*time.Second), func() { m.send(u) })
	})
	m.kick()
}

// serve is the job of an upload. It waits for what the client brings.
func (m *node) serve(w *work) {
	d := m.c.disks[w.key.Disk]
	if d == nil || !d.Attached {
		m.end(w, errors.New("input/output error"))
		return
	}
	s := d.Folder(w.key.ID)
	m.c.own(s)
	if w.client = m.uploads[w.key]; w.client == nil {
		w.client = m.c.history(s).client
	}
	if w.client == nil {
		m.end(w, upload.ErrExpired)
		return
	}
	if m.c.history(s).client != w.client {
		m.c.setClient(s, w.client)
	}
	m.expire(w)
}

// expire ends the job when nothing has come for long.
func (m *node) expire(w *work) {
	m.later(m.c.between(0, time.Minute)+max(0, w.client.last+uploadExpires-m.c.now), func() {
		switch s := m.c.copyAt(w.key); {
		case w.over || w.stopped:
		case m.c.now-w.client.last < uploadExpires:
			m.expire(w)
		default:
			if s != nil && m.c.history(s).client == w.client {
				m.c.setClient(s, nil)
			}
			m.c.logf(m.name, "gives up the upload of %s", w.key)
			m.end(w, upload.ErrExpired)
		}
	})
}

// send brings the next piece, if the node is there and takes it.
func (m *node) send(u *uploader) {
	wait := m.c.between(time.Second, 30*time.Second)
	w := m.works[u.key]
	switch {
	case u.over || m.c.now-u.last > uploadExpires:
		return
	case !m.up || w == nil || w.over || w.stopped || w.client != u: // it tries again
	case m.piece(w, u):
		u.over = true
		return
	case !m.c.healed && m.c.oneIn(12):
		u.over = true
		m.c.logf("", "who uploads %s breaks off", u.key)
		return
	case !m.c.healed && m.c.oneIn(8):
		wait = m.c.between(0, 8*time.Minute)
	}
	m.c.after(wait, func() { m.send(u) })
}

// piece takes a piece. It reports whether it was the last one.
func (m *node) piece(w *work, u *uploader) (last bool) {
	d := m.c.disks[w.key.Disk]
	if d == nil || !d.Attached || d.UUID != w.uuid {
		m.end(w, errors.New("input/output error"))
		return false
	}
	s := d.Folder(w.key.ID)
	if m.c.history(s).client != u {
		return false
	}
	if d.Free()-w.reserve < gib/4 {
		m.c.setClient(s, nil)
		m.end(w, &disk.NoSpaceError{Need: gib, Free: d.Free()})
		return false
	}
	u.last = m.c.now
	if s.Partial += gib / 4; s.Partial < gib {
		return false
	}
	want := w.image.Checksum
	if want.IsZero() {
		want = w.action.Pinned.Digest
	}
	m.end(w, m.fill(d, w, u.letter, want))
	return true
}

// promise has somebody upload what nobody has, when all faults are over, as often as it
// takes.
func (c *cluster) promise(name string) {
	c.promised[name] = true
	c.after(c.between(time.Minute, 3*time.Minute), func() {
		config := c.latest().config
		image := config.Images[name]
		if image.Source.Upload != nil && len(c.readyCopies(config, image)) == 0 {
			letter := c.expectedBytes(config, image)
			if !image.Checksum.IsZero() {
				letter = c.contentOf(image.Checksum)
			}
			c.upload(name, c.taker(image), letter)
		}
		c.promise(name)
	})
}

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
	key          plan.CopyRef // where it goes
	content      string
	lastProgress time.Duration // when a byte came, or when it was begun
	ended        bool
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
	c.upload(name, c.nodeForUpload(c.latest().config.Images[name]), letter)
	if c.oneIn(3) { // and so does somebody else
		c.upload(name, c.nodeForUpload(c.latest().config.Images[name]), pick(c.rng, plantest.Letters...))
	}
}

// nodeForUpload is a node to upload an image to, most times one that has a disk for it; when all
// faults are over, that one, since others say where to go.
func (c *cluster) nodeForUpload(image schema.Image) *node {
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
		if w := m.jobs[key]; err != nil || m.uploads[key] != nil || w != nil && w.startedAt < c.now {
			c.logf(m.name, "takes no upload of %s: %v", name, err)
			return
		}
		u := &uploader{key: key, content: letter, lastProgress: c.now}
		m.uploads[key] = u
		c.logf(m.name, "takes an upload of %s with %s", key, letter)
		c.after(c.between(0, 10*time.Second), func() { m.sendChunk(u) })
	})
	m.requestRound()
}

// beginUpload is the job of an upload. It waits for what the client brings.
func (m *node) beginUpload(w *runningJob) {
	d := m.c.disks[w.key.Disk]
	if d == nil || !d.Attached {
		m.endJob(w, errors.New("input/output error"))
		return
	}
	s := d.Folder(w.key.ID)
	m.c.own(s)
	if w.client = m.uploads[w.key]; w.client == nil {
		w.client = m.c.history(s).client
	}
	if w.client == nil {
		m.endJob(w, upload.ErrExpired)
		return
	}
	if m.c.history(s).client != w.client {
		m.c.setClient(s, w.client)
	}
	m.expireUpload(w)
}

// expireUpload ends the job when nothing has come for long.
func (m *node) expireUpload(w *runningJob) {
	m.after(m.c.between(0, time.Minute)+max(0, w.client.lastProgress+uploadExpires-m.c.now), func() {
		switch s := m.c.copyAt(w.key); {
		case w.ended || w.stopped:
		case m.c.now-w.client.lastProgress < uploadExpires:
			m.expireUpload(w)
		default:
			if s != nil && m.c.history(s).client == w.client {
				m.c.setClient(s, nil)
			}
			m.c.logf(m.name, "gives up the upload of %s", w.key)
			m.endJob(w, upload.ErrExpired)
		}
	})
}

// sendChunk brings the next piece, if the node is there and takes it.
func (m *node) sendChunk(u *uploader) {
	wait := m.c.between(time.Second, 30*time.Second)
	w := m.jobs[u.key]
	switch {
	case u.ended || m.c.now-u.lastProgress > uploadExpires:
		return
	case !m.up || w == nil || w.ended || w.stopped || w.client != u: // it tries again
	case m.receiveChunk(w, u):
		u.ended = true
		return
	case !m.c.healed && m.c.oneIn(12):
		u.ended = true
		m.c.logf("", "who uploads %s breaks off", u.key)
		return
	case !m.c.healed && m.c.oneIn(8):
		wait = m.c.between(0, 8*time.Minute)
	}
	m.c.after(wait, func() { m.sendChunk(u) })
}

// receiveChunk takes a piece. It reports whether it was the last one.
func (m *node) receiveChunk(w *runningJob, u *uploader) (last bool) {
	d := m.c.disks[w.key.Disk]
	if d == nil || !d.Attached || d.UUID != w.diskUUID {
		m.endJob(w, errors.New("input/output error"))
		return false
	}
	s := d.Folder(w.key.ID)
	if m.c.history(s).client != u {
		return false
	}
	if d.Free()-w.reserve < gib/4 {
		m.c.setClient(s, nil)
		m.endJob(w, &disk.NoSpaceError{Need: gib, Free: d.Free()})
		return false
	}
	u.lastProgress = m.c.now
	if s.Partial += gib / 4; s.Partial < gib {
		return false
	}
	want := w.image.Checksum
	if want.IsZero() {
		want = w.action.Pinned.Digest
	}
	m.endJob(w, m.fill(d, w, u.content, want))
	return true
}

// keepUploading has somebody upload what nobody has, when all faults are over, as often as it
// takes.
func (c *cluster) keepUploading(name string) {
	c.uploaded[name] = true
	c.after(c.between(time.Minute, 3*time.Minute), func() {
		config := c.latest().config
		image := config.Images[name]
		if image.Source.Upload != nil && len(c.readyCopies(config, image)) == 0 {
			letter := c.expectedBytes(config, image)
			if !image.Checksum.IsZero() {
				letter = c.contentOf(image.Checksum)
			}
			c.upload(name, c.nodeForUpload(image), letter)
		}
		c.keepUploading(name)
	})
}

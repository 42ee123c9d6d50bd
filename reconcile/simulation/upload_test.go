package simulation

import (
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// uploader is a client that uploads a file to a node. It may pause, or stop for good.
type uploader struct {
	key          ident.CopyRef // the copy that it uploads
	content      string
	lastProgress time.Duration // when the last chunk arrived, or the upload began
	ended        bool
}

// uploadExpires is how long a node waits for the next chunk of an upload.
const uploadExpires = 20 * time.Minute

// uploadRandomly lets a client begin to upload an image whose source is an upload. The file is
// usually the right one.
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
	content := c.expectedBytes(c.latest().config, c.latest().config.Images[name])
	if c.oneIn(4) {
		content = pick(c.rng, plantest.Letters...)
	}
	c.upload(name, c.nodeForUpload(c.latest().config.Images[name]), content)
	if c.oneIn(3) { // a second client at the same time
		c.upload(name, c.nodeForUpload(c.latest().config.Images[name]), pick(c.rng, plantest.Letters...))
	}
}

// nodeForUpload returns a node to upload an image to: usually one that has a disk for it. When all
// faults are over it is always such a node.
func (c *cluster) nodeForUpload(image schema.Image) *node {
	ranked := c.rankedDisks(c.latest(), image)
	on := c.disksForNewCopy(image, ranked)
	if best := slices.DeleteFunc(slices.Clone(on), func(ref ident.DiskRef) bool { return !slices.Contains(ranked, ref) }); len(best) > 0 {
		on = best
	}
	if len(on) > 0 && (!c.oneIn(5) || c.healed) {
		return c.nodes[pick(c.rng, on...).Node]
	}
	return c.nodes[pick(c.rng, c.names...)]
}

// upload lets a client upload a file to a node, if the node accepts it.
func (c *cluster) upload(name string, m *node, content string) {
	if !m.up || m.rounds == 0 {
		return
	}
	m.loop.RequestUpload(name, ident.Digest{}, func(key ident.CopyRef, err error) {
		if job := m.jobs[key]; err != nil || m.uploads[key] != nil || job != nil && job.startedAt < c.now {
			c.logf(m.name, "rejects an upload of %s: %v", name, err)
			return
		}
		u := &uploader{key: key, content: content, lastProgress: c.now}
		m.uploads[key] = u
		c.logf(m.name, "accepts an upload of %s with %s", key, content)
		c.after(c.between(0, 10*time.Second), func() { m.sendChunk(u) })
	})
	m.requestRound()
}

// beginUpload begins the job of an upload. It waits for the chunks of the client.
func (m *node) beginUpload(job *runningJob) {
	d := m.c.disks[job.key.Disk]
	if d == nil || !d.Attached {
		m.endJob(job, errIO)
		return
	}
	s := m.c.folder(d, job.key.ID)
	m.c.own(s)
	if job.client = m.uploads[job.key]; job.client == nil {
		job.client = m.c.history(s).client
	}
	if job.client == nil {
		m.endJob(job, upload.ErrExpired)
		return
	}
	if m.c.history(s).client != job.client {
		m.c.setClient(s, job.client)
	}
	m.expireUpload(job)
}

// expireUpload ends the job when no chunk has arrived for uploadExpires.
func (m *node) expireUpload(job *runningJob) {
	m.after(m.c.between(0, time.Minute)+max(0, job.client.lastProgress+uploadExpires-m.c.now), func() {
		switch s := m.c.copyAt(job.key); {
		case job.ended || job.stopped:
		case m.c.now-job.client.lastProgress < uploadExpires:
			m.expireUpload(job)
		default:
			if s != nil && m.c.history(s).client == job.client {
				m.c.setClient(s, nil)
			}
			m.c.logf(m.name, "ends the upload of %s, which has expired", job.key)
			m.endJob(job, upload.ErrExpired)
		}
	})
}

// sendChunk sends the next chunk, if the node has a job for it, and continues later.
func (m *node) sendChunk(u *uploader) {
	wait := m.c.between(time.Second, 30*time.Second)
	job := m.jobs[u.key]
	switch {
	case u.ended || m.c.now-u.lastProgress > uploadExpires:
		return
	case !m.up || job == nil || job.ended || job.stopped || job.client != u: // it tries again
	case m.receiveChunk(job, u):
		u.ended = true
		return
	case !m.c.healed && m.c.oneIn(12):
		u.ended = true
		m.c.logf("", "the client that uploads %s stops", u.key)
		return
	case !m.c.healed && m.c.oneIn(8):
		wait = m.c.between(0, 8*time.Minute)
	}
	m.c.after(wait, func() { m.sendChunk(u) })
}

// receiveChunk writes a chunk. It reports whether it was the last one.
func (m *node) receiveChunk(job *runningJob, u *uploader) (last bool) {
	d := m.c.disks[job.key.Disk]
	if d == nil || !d.Attached || d.UUID != job.diskUUID {
		m.endJob(job, errIO)
		return false
	}
	s := d.Folder(job.key.ID)
	if m.c.history(s).client != u {
		return false
	}
	if d.Free()-job.reserve < gib/4 {
		m.c.setClient(s, nil)
		m.endJob(job, &disk.NoSpaceError{Need: gib, Free: d.Free()})
		return false
	}
	u.lastProgress = m.c.now
	if s.Partial += gib / 4; s.Partial < gib {
		return false
	}
	want := job.image.Checksum
	if want.IsZero() {
		want = job.action.Pinned.Digest
	}
	m.endJob(job, m.fill(d, job, u.content, want))
	return true
}

// keepUploading lets clients upload an image again and again until a copy is ready. It is for the
// time after all faults.
func (c *cluster) keepUploading(name string) {
	c.uploaded[name] = true
	c.after(c.between(time.Minute, 3*time.Minute), func() {
		config := c.latest().config
		image := config.Images[name]
		if image.Source.Upload != nil && len(c.readyCopies(config, image)) == 0 {
			content := c.expectedBytes(config, image)
			if !image.Checksum.IsZero() {
				content = c.contentOf(image.Checksum)
			}
			c.upload(name, c.nodeForUpload(image), content)
		}
		c.keepUploading(name)
	})
}

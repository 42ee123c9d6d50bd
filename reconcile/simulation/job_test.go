package simulation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	reconcilejob "github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// runningJob is an action that a node executes in simulated time.
type runningJob struct {
	startedAt time.Duration
	ctx       context.Context
	action    plan.Action
	key       ident.CopyRef
	image     schema.Image
	diskUUID  string
	reserve   int64
	content   string // that a sync or a repair has to create, or another node has to have
	sources   func() []peer.Source
	seeds     []ident.CopyRef // of which a sync from other nodes or a download by an index may read chunks
	damaged   func(seed ident.CopyRef)
	verified  func(manifest ident.Digest)
	done      func(error)
	deletion  *deletion
	query     *deletionQuery
	confirmed bool // the deletion is confirmed
	mark      string
	stopped   bool
	ended     bool

	client        *uploader
	declaredFree  int64           // storageReserved of the disk when the job began
	establishes   bool            // it decides the bytes of an image without a checksum
	recentDigests map[string]bool // of the image within the recovery interval; false: by a clock that is wrong
}

// addJob adds a job to those of the node. A job for the same copy has ended in the same round.
func (m *node) addJob(job *runningJob) {
	if last := m.jobs[job.key]; last != nil {
		m.c.endDeletion(last.deletion)
		last.ended = true
	}
	m.jobs[job.key] = job
}

// beginJob begins a job that deletes nothing.
func (m *node) beginJob(job *runningJob) {
	m.checkSuspension(job)
	m.c.logf(m.name, "begins %s of %s: %s %s", job.action.Op, job.key, job.action.Text, job.action.From)
	m.checkNeeded(job)
	if job.establishes = establishes(job.image, job.action, m.observed); job.action.Op.CreatesCopy() {
		m.checkFirstCopyStart(job, m.desired, m.observed)
	}
	switch job.action.Op {
	case model.Adopt, model.Verify:
		m.continueJob(job, 1)
	case model.Upload:
		m.beginUpload(job)
	case model.Sync, model.Download:
		m.c.requestSeedCleanup(job, m)
		m.continueJob(job, 1+m.c.IntN(3))
	default:
		m.continueJob(job, 1+m.c.IntN(3))
	}
}

// checkSuspension checks that a job does not begin while its image is suspended.
func (m *node) checkSuspension(job *runningJob) {
	if m.c.begunJobs++; plantest.IsSuspended(m.desired.Config, job.key.ID.Name, m.observed.Now) {
		m.c.violation("suspend", "%s of %s begins, and it is suspended", job.action.Op, job.key)
	}
}

// endJob reports to the loop how a job ended.
func (m *node) endJob(job *runningJob, err error) {
	if job.ended {
		return
	}
	m.dropJob(job)
	if m.uploads[job.key] == job.client {
		delete(m.uploads, job.key)
	}
	switch {
	case err == nil:
		m.c.done[job.action.Op]++
		if job.action.Op.Deletes() {
			delete(m.requestedCleanups, job.key)
		}
		m.c.logf(m.name, "%s of %s is done", job.action.Op, job.key)
	default:
		m.failedJobs[job.key] = true
		m.c.logf(m.name, "%s of %s ends: %v", job.action.Op, job.key, err)
	}
	job.done(err)
	m.requestRound()
}

// continueJob executes the remaining steps of a job, and ends the job. Each step takes time.
func (m *node) continueJob(job *runningJob, steps int) {
	m.after(m.c.between(time.Second, 50*time.Second), func() {
		if job.ended || job.stopped {
			return
		}
		d := m.c.disks[job.key.Disk]
		if d == nil || !d.Attached || d.UUID != job.diskUUID || d.ReadOnly || d.FailsWrites {
			m.endJob(job, errIO)
			return
		}
		if err := m.progress(d, job); err != nil || steps == 1 {
			if err == nil {
				err = m.finishJob(d, job)
			}
			m.endJob(job, err)
			return
		}
		m.continueJob(job, steps-1)
	})
}

// progress changes the disk as one step of a transfer does: the partial file becomes larger.
func (m *node) progress(d *Disk, job *runningJob) error {
	switch job.action.Op {
	case model.Download, model.Restore, model.Export, model.Clone:
		if err := m.checkSource(job); err != nil {
			return err
		}
	case model.Sync:
		if _, err := m.sourceContent(job); err != nil {
			return err
		}
	default:
		return nil
	}
	s := m.c.folder(d, job.key.ID)
	m.c.own(s)
	if m.c.history(s).client != nil {
		m.c.setClient(s, nil)
	}
	// A first copy with a pinned digest looks for known bytes. It is no second first copy.
	if job.action.Op.IsFirstCopy() && s.Partial == 0 && job.action.Pinned.Digest.IsZero() {
		m.c.reads = append(m.c.reads, read{at: m.c.now, id: job.key.ID, node: m.name})
	}
	if job.action.Op == model.Sync && job.action.LocalSource == (ident.CopyRef{}) {
		s.PartialSource = model.PartFromPeers
	} else if s.Partial == 0 { // otherwise a download resumes a partial file of any source
		s.PartialSource = ""
	}
	step := int64(gib / 4)
	if m.readSeeds(job) { // the other nodes send half of it
		step *= 2
	}
	if s.Partial < gib/2 && d.Free() > 2*step {
		s.Partial += step
	}
	return nil
}

// finishJob changes the disk as the last step of a job does. The error is the failure of the job.
func (m *node) finishJob(d *Disk, job *runningJob) error {
	switch job.action.Op {
	case model.Download, model.Restore, model.Export, model.Clone:
		return m.finishFirstCopy(d, job)
	case model.Sync:
		content, err := m.sourceContent(job)
		if err != nil {
			return err
		}
		return m.fill(d, job, content, m.c.digest(job.content))
	case model.Adopt, model.Verify:
		if job.action.VerifiesPeer() {
			return m.verifyPeer(job)
		}
		if s := d.Copies[job.key.ID]; s != nil && s.File != s.Recorded {
			m.c.recordLoss(job.key, s)
		}
		return m.verify(d, job.key.ID)
	case model.Repair:
		return m.repair(d, job)
	}
	panic("no effect of " + string(job.action.Op))
}

// sourceContent returns the content that a sync or a repair reads: from a copy on this node, from a
// copy that another node has and sends, or from the source of the image. A node that sends wrong
// bytes is skipped.
func (m *node) sourceContent(job *runningJob) (content string, err error) {
	if job.action.LocalSource != (ident.CopyRef{}) {
		s := m.c.copyAt(job.action.LocalSource)
		if !s.Ready() || s.Recorded != job.content {
			return "", fmt.Errorf("open %s: it is not ready", job.action.From)
		}
		return s.File, nil
	}
	wrong, right := "", 0
	for _, ref := range m.c.diskRefs() {
		if ref.Node == m.name || !m.c.reachable(m.name, ref.Node) {
			continue
		}
		for _, id := range m.c.disks[ref].IDs() {
			s := m.c.copyAt(ident.CopyRef{Disk: ref, ID: id})
			if !s.Ready() || s.Recorded != job.content || m.c.nodes[ref.Node].leaving(ident.CopyRef{Disk: ref, ID: id}) {
				continue
			}
			if s.File == job.content && !m.c.sendsWrongBytes[ref.Node] {
				right++
				continue
			}
			wrong = s.File
		}
	}
	d := job.image.Source.Download
	upstream := d != nil && !job.image.Checksum.IsZero() && !m.c.offline && m.c.served[d.URL] == job.content
	if from := m.c.liar.sources(job); len(from) > 0 {
		return m.c.liar.send(job, from, right, upstream)
	}
	if right > 0 || upstream { // byte ranges of the upstream
		return job.content, nil
	}
	return "", &fetch.Error{Class: fetch.Network, Err: fmt.Errorf("no peer has the bytes (%s)", wrong)}
}

// fill ends a job that creates a copy with a content. The file must have the digest want, unless
// it is zero.
func (m *node) fill(d *Disk, job *runningJob, content string, want ident.Digest) error {
	s := m.c.folder(d, job.key.ID)
	m.c.own(s)
	err := d.Fill(job.key.ID, content, want, job.reserve, m.wallNow())
	if s.PartialSource == "" {
		m.c.history(s).client = nil
	}
	if err != nil {
		return err
	}
	m.checkFirstCopyEnd(job, content)
	m.noteFilled(d, job)
	if job.action.Op.IsFirstCopy() {
		m.c.reads = append(m.c.reads, read{at: m.c.now, id: job.key.ID, node: m.name, done: true})
	}
	return nil
}

// verify ends a job that reads a whole file.
func (m *node) verify(d *Disk, id ident.ID) error {
	if s := d.Copies[id]; s != nil && s.File != "" {
		m.c.own(s)
	}
	if err := d.Verify(id, m.wallNow()); err != nil {
		return err
	}
	if s := d.Copies[id]; s.Failure != "" {
		m.noteDamage(s)
	}
	return nil
}

// verifyPeer ends a job that reads the copy of another node in full.
func (m *node) verifyPeer(job *runningJob) error {
	from := job.action.From
	if l := m.c.nodes[from.Disk.Node].liar; l != nil && m.c.reachable(m.name, from.Disk.Node) {
		return l.verify(job)
	}
	s := m.c.copyAt(from)
	switch {
	case !m.c.reachable(m.name, from.Disk.Node) || !s.Ready() || m.c.nodes[from.Disk.Node].leaving(from):
		return &fetch.Error{Class: fetch.Network, Err: errors.New("the copy is not sent")}
	case s.File != job.content || m.c.sendsWrongBytes[from.Disk.Node]:
		return &fetch.Error{Class: fetch.Network, Err: reconcilejob.ErrOtherBytes}
	}
	job.verifiedAll(m.c.library.Properties(s.File))
	return nil
}

// verifiedAll reports the chunk manifests of the bytes that the job has read.
func (w *runningJob) verifiedAll(p Properties) {
	for _, manifest := range p.Manifests() {
		w.verified(manifest)
	}
}

// markDamaged marks a copy as failed.
func (m *node) markDamaged(s *Copy) {
	s.MarkDamaged(m.wallNow())
	m.noteDamage(s)
}

// noteDamage notes when a copy became failed.
func (m *node) noteDamage(s *Copy) {
	h := m.c.history(s)
	h.failedAt, h.failedAtTrueTime = m.c.now, m.clockOffset == 0
}

// repair ends a job that rewrites damaged chunks. The copy may be in use.
func (m *node) repair(d *Disk, job *runningJob) error {
	content, err := m.sourceContent(job)
	if err != nil {
		return err
	}
	return d.Repair(job.key.ID, content, m.wallNow())
}

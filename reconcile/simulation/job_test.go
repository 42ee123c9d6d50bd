package simulation

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// runningJob is a running job, as the machine of the node does it.
type runningJob struct {
	startedAt time.Duration
	ctx       context.Context
	action    plan.Action
	key       plan.CopyRef
	image     schema.Image
	diskUUID  string // of the disk
	reserve   int64
	content   string // of the bytes that a sync is to have
	done      func(error)
	deletion  *deletion
	query     *deletionQuery
	confirmed bool // of the removal
	stopped   bool
	ended     bool

	client        *uploader
	establishes   bool            // bytes that are not declared
	recentDigests map[string]bool // what the image was within the recovery interval; false: by a clock that is wrong
}

// addJob adds a job to those of the node. A job for the same copy has ended in the same round.
func (m *node) addJob(w *runningJob) {
	if last := m.jobs[w.key]; last != nil {
		m.c.endDeletion(last.deletion)
		last.ended = true
	}
	m.jobs[w.key] = w
}

// beginJob begins a job that deletes nothing.
func (m *node) beginJob(w *runningJob) {
	m.checkSuspension(w)
	m.c.logf(m.name, "begins %s of %s: %s %s", w.action.Op, w.key, w.action.Text, w.action.From)
	if w.establishes = establishes(w.image, w.action, m.observed); w.action.Op.CreatesCopy() {
		m.checkFirstCopyStart(w, m.desired, m.observed)
	}
	switch w.action.Op {
	case plan.Adopt, plan.Verify:
		m.continueJob(w, 1)
	case plan.Upload:
		m.beginUpload(w)
	default:
		m.continueJob(w, 1+m.c.IntN(3))
	}
}

// checkSuspension holds the beginning of a job against suspensions.
func (m *node) checkSuspension(w *runningJob) {
	if m.c.begunJobs++; plantest.IsSuspended(m.desired.Config, w.key.ID.Name, m.observed.Now) {
		m.c.violation("suspend", "%s of %s begins, and it is suspended", w.action.Op, w.key)
	}
}

// endJob reports to the loop how a job ended.
func (m *node) endJob(w *runningJob, err error) {
	if w.ended {
		return
	}
	m.dropJob(w)
	if m.uploads[w.key] == w.client {
		delete(m.uploads, w.key)
	}
	switch {
	case err == nil:
		m.c.done[w.action.Op]++
		delete(m.requestedCleanups, w.key)
		m.c.logf(m.name, "%s of %s is done", w.action.Op, w.key)
	default:
		m.failedJobs[w.key] = true
		m.c.logf(m.name, "%s of %s ends: %v", w.action.Op, w.key, err)
	}
	w.done(err)
	m.requestRound()
}

// continueJob lets a job go on for a while, and end.
func (m *node) continueJob(w *runningJob, steps int) {
	m.after(m.c.between(time.Second, 50*time.Second), func() {
		if w.ended || w.stopped {
			return
		}
		d := m.c.disks[w.key.Disk]
		if d == nil || !d.Attached || d.UUID != w.diskUUID || d.ReadOnly || d.FailsWrites {
			m.endJob(w, errIO)
			return
		}
		if err := m.progress(d, w); err != nil || steps == 1 {
			if err == nil {
				err = m.finishJob(d, w)
			}
			m.endJob(w, err)
			return
		}
		m.continueJob(w, steps-1)
	})
}

// progress is what a transfer leaves when it is cut off.
func (m *node) progress(d *Disk, w *runningJob) error {
	switch w.action.Op {
	case plan.Download, plan.Restore, plan.Export, plan.Clone:
		if err := m.checkSource(w); err != nil {
			return err
		}
	case plan.Sync:
		if _, err := m.sourceContent(w); err != nil {
			return err
		}
	default:
		return nil
	}
	s := m.c.folder(d, w.key.ID)
	m.c.own(s)
	if m.c.history(s).client != nil {
		m.c.setClient(s, nil)
	}
	// One that looks for the bytes which the image had does not take the place of another.
	if w.action.Op.IsFirstCopy() && s.Partial == 0 && w.action.Pinned.Digest.IsZero() {
		m.c.reads = append(m.c.reads, read{at: m.c.now, id: w.key.ID, node: m.name})
	}
	if pulls := w.action.Op == plan.Sync && w.action.LocalSource == (plan.CopyRef{}); pulls {
		s.PartialSource = disk.PartFromPeers
	} else if s.Partial == 0 { // otherwise a download resumes a partial file of any source
		s.PartialSource = ""
	}
	if s.Partial < gib/2 && d.Free() > gib/2 {
		s.Partial += gib / 4
	}
	return nil
}

// finishJob is the effect of an action that has run to its end, or its failure.
func (m *node) finishJob(d *Disk, w *runningJob) error {
	switch w.action.Op {
	case plan.Download, plan.Restore, plan.Export, plan.Clone:
		return m.finishFirstCopy(d, w)
	case plan.Sync:
		letter, err := m.sourceContent(w)
		if err != nil {
			return err
		}
		return m.fill(d, w, letter, m.c.digest(w.content))
	case plan.Adopt, plan.Verify:
		if s := d.Copies[w.key.ID]; s != nil && s.File != s.Recorded {
			m.c.recordLoss(w.key, s)
		}
		return m.verify(d, w.key.ID)
	case plan.Repair:
		return m.repair(d, w)
	}
	panic("no effect of " + string(w.action.Op))
}

// sourceContent finds the bytes that a sync or a repair needs: in a copy on this node, or in
// those that other nodes have and send. Bytes that are not what was promised cost that
// source.
func (m *node) sourceContent(w *runningJob) (letter string, err error) {
	if w.action.LocalSource != (plan.CopyRef{}) {
		s := m.c.copyAt(w.action.LocalSource)
		if !s.Ready() || s.Recorded != w.content {
			return "", fmt.Errorf("open %s: it is not ready", w.action.From)
		}
		return s.File, nil
	}
	wrong := ""
	for _, ref := range m.c.diskRefs() {
		if ref.Node == m.name || !m.c.reachable(m.name, ref.Node) {
			continue
		}
		for _, id := range m.c.disks[ref].IDs() {
			s := m.c.copyAt(plan.CopyRef{Disk: ref, ID: id})
			if !s.Ready() || s.Recorded != w.content || m.c.nodes[ref.Node].leaving(plan.CopyRef{Disk: ref, ID: id}) {
				continue
			}
			if s.File == w.content && !m.c.sendsWrongBytes[ref.Node] {
				return s.File, nil
			}
			wrong = s.File
		}
	}
	if d := w.image.Source.Download; d != nil && !w.image.Checksum.IsZero() && !m.c.offline && m.c.served[d.URL] == w.content {
		return w.content, nil // in ranges from the origin
	}
	return "", &fetch.Error{Class: fetch.Network, Err: fmt.Errorf("no peer has it (%s)", wrong)}
}

// fill ends a job that creates a copy with a content. The file must have the digest want, unless
// it is zero.
func (m *node) fill(d *Disk, w *runningJob, content string, want disk.Digest) error {
	s := m.c.folder(d, w.key.ID)
	m.c.own(s)
	err := d.Fill(w.key.ID, content, want, w.reserve, m.wallNow())
	if s.PartialSource == "" {
		m.c.history(s).client = nil
	}
	if err != nil {
		return err
	}
	m.checkFirstCopyEnd(w, content)
	if w.action.Op.IsFirstCopy() {
		m.c.reads = append(m.c.reads, read{at: m.c.now, id: w.key.ID, node: m.name, done: true})
	}
	return nil
}

// verify ends a job that reads a whole file.
func (m *node) verify(d *Disk, id disk.ID) error {
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
func (m *node) repair(d *Disk, w *runningJob) error {
	content, err := m.sourceContent(w)
	if err != nil {
		return err
	}
	return d.Repair(w.key.ID, content, m.wallNow())
}

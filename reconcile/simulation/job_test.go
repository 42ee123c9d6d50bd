package simulation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// work is a running job, as the machine of the node does it.
type work struct {
	began    time.Duration
	ctx      context.Context
	action   plan.Action
	key      plan.CopyRef
	image    schema.Image
	uuid     string // of the disk
	reserve  int64
	letter   string // of the bytes that a sync is to have
	done     func(error)
	deletion *deletion
	asks     *questions
	sure     bool // of the removal
	stopped  bool
	over     bool

	client        *uploader
	establishes   bool            // bytes that are not declared
	recentDigests map[string]bool // what the image was within the recovery interval; false: by a clock that is wrong
}

// addWork adds a job to those of the node. A job for the same copy has ended in the same round.
func (m *node) addWork(w *work) {
	if last := m.works[w.key]; last != nil {
		m.c.endDeletion(last.deletion)
		last.over = true
	}
	m.works[w.key] = w
}

// begin begins a job that deletes nothing.
func (m *node) begin(w *work) {
	m.checkSuspension(w)
	m.c.logf(m.name, "begins %s of %s: %s %s", w.action.Op, w.key, w.action.Text, w.action.From)
	if w.establishes = establishes(w.image, w.action, m.o); w.action.Op.CreatesCopy() {
		m.checkFirstCopyStart(w, m.d, m.o)
	}
	switch w.action.Op {
	case plan.Adopt, plan.Verify:
		m.goOn(w, 1)
	case plan.Upload:
		m.serve(w)
	default:
		m.goOn(w, 1+m.c.IntN(3))
	}
}

// checkSuspension holds the beginning of a job against suspensions.
func (m *node) checkSuspension(w *work) {
	if m.c.begun++; plantest.IsSuspended(m.d.Config, w.key.ID.Name, m.o.Now) {
		m.c.violation("suspend", "%s of %s begins, and it is suspended", w.action.Op, w.key)
	}
}

// end reports to the loop how a job ended.
func (m *node) end(w *work, err error) {
	if w.over {
		return
	}
	m.forget(w)
	if m.uploads[w.key] == w.client {
		delete(m.uploads, w.key)
	}
	switch {
	case err == nil:
		m.c.done[w.action.Op]++
		delete(m.byHand, w.key)
		m.c.logf(m.name, "%s of %s is done", w.action.Op, w.key)
	default:
		m.failing[w.key] = true
		m.c.logf(m.name, "%s of %s ends: %v", w.action.Op, w.key, err)
	}
	w.done(err)
	m.kick()
}

func (c *cluster) contentOf(sum disk.Digest) string {
	for letter, known := range c.letters {
		if known == sum {
			return letter
		}
	}
	return "nothing that is known"
}

// goOn lets a job go on for a while, and end.
func (m *node) goOn(w *work, steps int) {
	m.later(m.c.between(time.Second, 50*time.Second), func() {
		if w.over || w.stopped {
			return
		}
		d := m.c.disks[w.key.Disk]
		if d == nil || !d.Attached || d.UUID != w.uuid || d.ReadOnly || d.FailsWrites {
			m.end(w, errIO)
			return
		}
		if err := m.progress(d, w); err != nil || steps == 1 {
			if err == nil {
				err = m.do(d, w)
			}
			m.end(w, err)
			return
		}
		m.goOn(w, steps-1)
	})
}

// progress is what a transfer leaves when it is cut off.
func (m *node) progress(d *Disk, w *work) error {
	switch w.action.Op {
	case plan.Download, plan.Restore, plan.Export, plan.Clone:
		if err := m.checkSource(w); err != nil {
			return err
		}
	case plan.Sync:
		if _, err := m.source(w); err != nil {
			return err
		}
	default:
		return nil
	}
	s := d.Folder(w.key.ID)
	s.Own(m.c.now)
	if s.from != nil {
		s.from, s.Partial = nil, 0
	}
	// One that looks for the bytes which the image had does not take the place of another.
	if w.action.Op.IsFirstCopy() && s.Partial == 0 && w.action.Pinned.Digest.IsZero() {
		m.c.reads = append(m.c.reads, read{at: m.c.now, id: w.key.ID, node: m.name})
	}
	if pulls := w.action.Op == plan.Sync && w.action.LocalSource == (plan.CopyRef{}); pulls || s.Partial == 0 { // a download goes on with a part of whatever kind
		s.pulled = pulls
	}
	if s.Partial < gib/2 && d.free() > gib/2 {
		s.Partial += gib / 4
	}
	return nil
}

// Own makes the folder ours. What somebody left there is not vouched for by that.
func (s *Copy) Own(now time.Duration) {
	if !s.Owned {
		s.Owned, s.born, s.Changed = true, now, s.File != ""
	}
}

func (d *Disk) Folder(id disk.ID) *Copy {
	if d.Copies[id] == nil {
		d.Copies[id] = &Copy{}
	}
	return d.Copies[id]
}

// do is the effect of an action that has run to its end, or its failure.
func (m *node) do(d *Disk, w *work) error {
	switch w.action.Op {
	case plan.Download, plan.Restore, plan.Export, plan.Clone:
		return m.finishFirstCopy(d, w)
	case plan.Sync:
		letter, err := m.source(w)
		if err != nil {
			return err
		}
		return m.fill(d, w, letter, m.c.digest(w.letter))
	case plan.Adopt, plan.Verify:
		if s := d.Copies[w.key.ID]; s != nil && s.File != s.Recorded {
			m.c.recordLoss(w.key, s)
		}
		return m.verify(d.Copies[w.key.ID])
	case plan.Repair:
		return m.repair(d.Copies[w.key.ID], w)
	}
	panic("no effect of " + string(w.action.Op))
}

// source finds the bytes that a sync or a repair needs: in a copy on this node, or in
// those that other nodes have and send. Bytes that are not what was promised cost that
// source.
func (m *node) source(w *work) (letter string, err error) {
	if w.action.LocalSource != (plan.CopyRef{}) {
		s := m.c.copyAt(w.action.LocalSource)
		if !s.Ready() || s.Recorded != w.letter {
			return "", fmt.Errorf("open %s: it is not ready", w.action.From)
		}
		return s.File, nil
	}
	wrong := ""
	for _, ref := range m.c.places() {
		if ref.Node == m.name || !m.c.reachable(m.name, ref.Node) {
			continue
		}
		for _, id := range m.c.disks[ref].ids() {
			s := m.c.copyAt(plan.CopyRef{Disk: ref, ID: id})
			if !s.Ready() || s.Recorded != w.letter || m.c.nodes[ref.Node].leaving(plan.CopyRef{Disk: ref, ID: id}) {
				continue
			}
			if s.File == w.letter && !m.c.lying[ref.Node] {
				return s.File, nil
			}
			wrong = s.File
		}
	}
	if d := w.image.Source.Download; d != nil && !w.image.Checksum.IsZero() && !m.c.offline && m.c.serves[d.URL] == w.letter {
		return w.letter, nil // in ranges from the origin
	}
	return "", &fetch.Error{Class: fetch.Network, Err: fmt.Errorf("no peer has it (%s)", wrong)}
}

// fill is what a part and its commit do.
func (m *node) fill(d *Disk, w *work, letter string, want disk.Digest) error {
	s := d.Folder(w.key.ID)
	s.Own(m.c.now)
	if s.File != "" && (s.Failure == "" || s.Changed) {
		return fmt.Errorf("%s is ready already", w.key.ID)
	}
	s.from = nil
	if lack := gib - s.Partial; d.free()-w.reserve < lack {
		s.Partial = 0
		return &disk.NoSpaceError{Need: gib, Free: d.free()}
	}
	s.Partial = 0
	if got := m.c.digest(letter); !want.IsZero() && want != got {
		return &disk.ChecksumError{Want: want, Got: got}
	}
	if why := s.using(d); s.File != "" && why != "" {
		return &disk.InUseError{ID: w.key.ID, Reason: why}
	}
	s.File, s.Recorded, s.Failure, s.Changed, s.VerifiedAt = letter, letter, "", false, m.wallNow()
	s.made = m.c.now
	m.checkFirstCopyEnd(w, letter)
	if w.action.Op.IsFirstCopy() {
		m.c.reads = append(m.c.reads, read{at: m.c.now, id: w.key.ID, node: m.name, done: true})
	}
	return nil
}

// verify reads a file and finds out what it is.
func (m *node) verify(s *Copy) error {
	if s == nil || s.File == "" {
		return errors.New("no such file")
	}
	if s.Own(m.c.now); s.Recorded == "" {
		s.Recorded, s.made = s.File, m.c.now
	}
	s.Changed, s.Failure = false, ""
	if s.Recorded != s.File {
		m.damaged(s)
		return nil
	}
	s.VerifiedAt = m.wallNow()
	return nil
}

// damaged marks a copy as failed.
func (m *node) damaged(s *Copy) {
	s.Failure, s.DamagedAt, s.failedAt, s.soberly = "damaged", m.wallNow(), m.c.now, m.wall == 0
}

// repair rewrites the damaged chunks, in use or not.
func (m *node) repair(s *Copy, w *work) error {
	letter, err := m.source(w)
	switch {
	case err != nil:
		return err
	case s == nil || s.File == "" || s.Failure == "":
		return errors.New("there is nothing to repair")
	case s.Recorded != letter:
		return errors.New("the bytes are not what they have to be")
	}
	s.File, s.Failure, s.VerifiedAt = letter, "", m.wallNow()
	return nil
}

package plan

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Job is a running job of this node.
type Job struct {
	Action Action
	// Image is the declaration with which the job began; zero: none, or it is not known.
	Image schema.Image
}

// NewJob returns a job of which only the operation is known.
func NewJob(op model.Op, ref ident.CopyRef) Job {
	return Job{Action: NewAction(op, ref, model.Reason{Code: CodeNoCopy, Text: "a job runs"}, UnknownBytes)}
}

// Basis returns the part of a declaration that decides which bytes an image has, and how they are obtained. A failure
// under one declaration says nothing about a declaration with another basis.
func Basis(image schema.Image) schema.Image {
	return schema.Image{ID: image.ID, Source: image.Source, Checksum: image.Checksum, Format: image.Format, Verify: image.Verify}
}

// SameDeclaration reports whether the outcome of an operation under one of two declarations holds under the other, too.
func SameDeclaration(op model.Op, a, b schema.Image) bool {
	return reflect.DeepEqual(Basis(a), Basis(b)) && (op != model.Backup || reflect.DeepEqual(a.Backup, b.Backup))
}

// fits reports whether the job does what the declaration requires. Limits do not matter, nor do addresses that were
// added: the next job uses them.
func (j Job) fits(image schema.Image) bool {
	was, now := Basis(j.Image), Basis(image)
	switch ref := j.Action.CopyRef(); {
	case j.Image.ID.Name == "": // not known
		return !j.Action.Op.CreatesCopy() || ref.ID == image.ID
	case j.Action.Op == model.Backup:
		a, b := j.Image.Backup, image.Backup
		return a != nil && b != nil && was.ID == now.ID && a.Target == b.Target && a.Credentials == b.Credentials
	case j.Action.Op == model.Adopt || j.Action.Op == model.Verify:
		return ref.ID != now.ID || was.Checksum == now.Checksum && was.Format == now.Format
	}
	if a, b := was.Source.Download, now.Source.Download; a != nil && b != nil {
		declared := append([]string{b.URL}, b.Mirrors...)
		if !slices.ContainsFunc(append([]string{a.URL}, a.Mirrors...), func(url string) bool { return !slices.Contains(declared, url) }) {
			same := *b
			same.URL, same.Mirrors = a.URL, a.Mirrors
			now.Source.Download = &same
		}
	}
	if a, b := was.Source.Restore, now.Source.Restore; a != nil && b != nil {
		same := *b
		same.ConcurrentLimit = a.ConcurrentLimit
		now.Source.Restore = &same
	}
	return reflect.DeepEqual(was, now)
}

// withRunning replaces the planned action on a copy by the job that runs on this copy. It records which jobs must end, and
// why.
//
// A job began under a valid plan, and its end has a price: an upstream may be read again from its first byte. So a job
// goes on even if no plan would begin it now, for example while a new node has not responded yet. Only a reason in
// whyEnd ends it (R5).
func (r *Round) withRunning(actions []Action) []Action {
	jobs := r.Observed.Jobs
	planned, goesOn := map[ident.CopyRef]Action{}, map[ident.CopyRef]Job{}
	for ref := range jobs {
		planned[ref] = wait(ref, model.Reason{Code: CodeDesired, Text: "the copy stays"})
	}
	for _, a := range actions {
		if last, runs := planned[a.CopyRef()]; runs && last.Idle() {
			planned[a.CopyRef()] = a
		}
	}
	for ref, next := range planned {
		if !r.Desired.Owns(ref.Disk) {
			continue
		}
		if why := r.whyEnd(jobs[ref], next); why != "" {
			r.ends[ref] = why
		} else if next.Op != jobs[ref].Action.Op {
			goesOn[ref] = jobs[ref]
		}
	}
	actions = slices.DeleteFunc(actions, func(a Action) bool {
		j, replaced := goesOn[a.CopyRef()]
		return replaced && (!a.Idle() || j.Action.Op.CreatesCopy())
	})
	for _, j := range goesOn {
		actions = append(actions, j.Action)
	}
	return actions
}

// whyEnd returns why a job must end: its result would be wrong, is not desired, or is impossible. "" means that the job
// goes on. next is the action that is planned for the copy without the job. The list is complete and ordered. Besides, a
// job ends by itself, and all jobs end with the process.
func (r *Round) whyEnd(j Job, next Action) string {
	a, d := j.Action, r.Desired
	ref, seen := a.CopyRef(), r.Observed.Disks[a.CopyRef().Disk]
	image, declared := d.Config.Images[a.Image]
	var p imagePlanner
	if declared && d.Allowed != schema.ObserveOnly {
		p = newImagePlanner(r, image)
	}
	switch {
	case (a.Op.Deletes() || a.VerifiesPeer()) && next.Op == a.Op:
	case a.Op.Deletes() || a.VerifiesPeer(): // a deletion is confirmed for its own reason only
		return "it is not planned any more: " + next.Text
	case next.Op.Deletes():
		return "the copy is to be deleted: " + next.Text
	case seen.Problem != "":
		return "the disk cannot be used: " + seen.Problem
	case seen.ReadOnly && (a.Op.CreatesCopy() || a.Op == model.Repair):
		return model.ReadOnlyText
	case d.IsRemoved(a.Image):
		return "the image is not declared any more"
	case p.state == nil: // the removal is not confirmed, or this node only observes
	case !j.fits(image):
		return "the declaration changed"
	case a.Scrub && (d.Verify[ref] || d.Config.Settings.ScrubInterval == 0):
		return "a verification at full rate is requested, or scrubInterval is 0"
	case (a.Op.CreatesCopy() || a.Op == model.Backup) && !p.conflict().IsZero():
		return p.conflict().Text
	case p.wrongBytes(a, next):
		return "its bytes may differ from those of other copies, or exist already"
	case a.Op.CreatesCopy():
		return p.whyNotDesired(a)
	}
	return ""
}

// wrongBytes reports whether the bytes that a job creates may be wrong by now, or need not be sent.
func (p imagePlanner) wrongBytes(a, next Action) bool {
	s, ref := p.state, a.CopyRef()
	exists := len(s.ready) > 0 || !next.Idle() && !next.Op.IsFirstCopy()
	switch {
	case a.Op == model.Upload && exists: // a client need not send what exists
		return true
	case s.digestDeclared() || !a.Op.CreatesCopy() && a.Op != model.Repair:
		return false
	case a.Op.IsFirstCopy() && exists:
		return true
	case a.Op.ReadsCopies() && s.otherBytesReady(model.Copy{SHA512: a.SourceDigest}):
		return a.Op == model.Sync || p.ix.copyAt(ref).UsedBy == "" // as in isRepairable
	}
	pinned := targetPlanner{ix: p.ix, state: s, copy: ref}.pinnedDigest().Digest
	if target := cmp.Or(next.targetDigest(), pinned); a.Op != model.Repair && !target.IsZero() && a.targetDigest() != target {
		return true
	}
	clone := s.image.Source.Clone
	if clone == nil || len(s.ready) > 0 {
		return false
	}
	source, declared := p.ix.Desired.Config.Images[clone.BackingImage]
	return !s.cloneConflict().IsZero() || declared && a.From.ID.Name == source.ID.Name && a.From.ID != source.ID
}

// whyNotDesired returns why the copy that a job creates is not desired any more. "" means that it is.
func (p imagePlanner) whyNotDesired(a Action) string {
	s, pl, on := p.state, p.placement, a.CopyRef().Disk
	if reason := s.lacksVerify(); a.Op.IsFirstCopy() && !reason.IsZero() {
		return reason.Text
	}
	if len(pl.targets) > 0 {
		if first := pl.targets[0]; a.Op.IsFirstCopy() && len(s.ready) == 0 && first != on && stageOf(s, s.on(first)) == running {
			return fmt.Sprintf("the first copy is created on %s", first)
		}
	}
	_, needed := s.needOn(on)
	isReady := func(ref ident.DiskRef) bool { return slices.Contains(s.ready, s.on(ref)) }
	switch {
	case pl.isTarget(on) || needed:
	case p.ix.Desired.evicting(on):
		return "eviction of the disk is requested"
	case !s.isEligible(on) && pl.ranked.len() > 0:
		return "the disk does not match the selectors"
	case len(pl.targets) > 0 && !slices.ContainsFunc(pl.targets, func(ref ident.DiskRef) bool { return !isReady(ref) }):
		return "the image is ready on all desired disks"
	}
	return ""
}

package plan

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/dustin/go-humanize"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Plan is the list of actions that lead from the observed to the desired state, sorted by
// image, disk and operation. A dry run prints the same value that a daemon executes.
type Plan struct {
	Actions []Action `json:"actions"`
	Summary Summary  `json:"summary"`
	// Suspended lists the suspensions in effect: first the suspension of the settings, then the images by name.
	Suspended []Suspension `json:"suspended,omitempty"`
	// Awaited are the copies on other nodes for which this node waits, because their images have no ready copy (placement.go).
	Awaited []ident.CopyRef `json:"-"`
	// Ends are the running jobs of this node that must end, with the reasons (running.go).
	Ends map[ident.CopyRef]string `json:"-"`
	// Digest is the config digest. "" means that a part of the configuration is invalid.
	Digest string `json:"digest,omitempty"`
	// Revision is the commit of the configuration. "" means that it is not known.
	Revision string `json:"revision,omitempty"`
}

// Summary counts the actions of a plan. Sizes are in bytes.
type Summary struct {
	Counts map[model.Op]int `json:"counts"`
	// TransferBytes is the known size of all first copies, syncs and backups.
	TransferBytes int64 `json:"transferBytes"`
	// UnknownSizes is the number of transfers with an unknown size.
	UnknownSizes int `json:"unknownSizes"`
	// FreedBytes is what clean-ups and evictions free.
	FreedBytes int64 `json:"freedBytes"`
}

// newPlan returns a plan of these actions, which it sorts, for the configuration with this
// digest and revision.
func newPlan(actions []Action, digest, revision string) Plan {
	slices.SortFunc(actions, func(a, b Action) int {
		if byImage := cmp.Compare(a.Image, b.Image); byImage != 0 {
			return byImage
		}
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Disk, b.Disk),
			cmp.Compare(a.UUID, b.UUID), cmp.Compare(a.Op, b.Op), cmp.Compare(a.Reason.Text, b.Reason.Text))
	})
	p := Plan{Actions: actions, Summary: Summary{Counts: map[model.Op]int{}}, Digest: digest, Revision: revision}
	for _, a := range actions {
		s := &p.Summary
		s.Counts[a.Op]++
		switch {
		case (a.Op.CreatesCopy() || a.Op == model.Backup) && a.Bytes == UnknownBytes:
			s.UnknownSizes++
		case a.Op.CreatesCopy(), a.Op == model.Backup:
			s.TransferBytes += a.Bytes
		case a.Op.Deletes():
			s.FreedBytes += a.Bytes
		}
	}
	return p
}

// WithSizes returns the plan with other sizes. The function change sets Bytes, Size and Data of an action.
func (p Plan) WithSizes(change func(*Action)) Plan {
	actions := slices.Clone(p.Actions)
	for i := range actions {
		change(&actions[i])
	}
	sized := newPlan(actions, p.Digest, p.Revision)
	sized.Suspended, sized.Awaited, sized.Ends = p.Suspended, p.Awaited, p.Ends
	return sized
}

// StartOrder returns the actions in the order of their start: actions for copies that replicas need are first.
func (p Plan) StartOrder() []Action {
	return moveBack(p.Actions, func(a Action) bool { return !a.Needed })
}

// Empty reports whether the plan changes nothing: it has only waits (R4).
func (p Plan) Empty() bool {
	return !slices.ContainsFunc(p.Actions, func(a Action) bool { return a.Op != model.Wait })
}

// Without returns plan p without the actions that base also has. Two actions are the
// same if they are one operation on one copy.
func (p Plan) Without(base Plan) Plan {
	type operation struct {
		ref      ident.CopyRef
		op, next model.Op
	}
	planned := map[operation]bool{}
	for _, a := range base.Actions {
		planned[operation{a.CopyRef(), a.Op, a.Next}] = true
	}
	actions := slices.DeleteFunc(slices.Clone(p.Actions), func(a Action) bool { return planned[operation{a.CopyRef(), a.Op, a.Next}] })
	return newPlan(actions, p.Digest, p.Revision)
}

// Plan returns the actions on the disks of this node. It is a pure function and reads no clock (R2).
func (r *Round) Plan() Plan {
	d, o := r.Desired, r.Observed
	r.awaited, r.ends = nil, map[ident.CopyRef]string{}
	if d.Allowed == schema.ObserveOnly {
		p := newPlan(r.withRunning([]Action{}), d.Digest, d.Revision)
		p.Ends = r.ends
		return p
	}
	images := func(yield func(schema.Image) bool) { // in the order of the plan, because sorting many actions is slow
		for _, name := range slices.Sorted(maps.Keys(d.Config.Images)) {
			if !yield(d.Config.Images[name]) {
				return
			}
		}
	}
	p := newPlan(planImages(r, images), d.Digest, d.Revision)
	p.Awaited = slices.SortedFunc(slices.Values(r.awaited), ident.CopyRef.Compare)
	p.Suspended, p.Ends = activeSuspensions(d.Config, o.Now), r.ends
	return p
}

// planImages returns the actions for these images and for the orphans.
func planImages(ix *Round, images iter.Seq[schema.Image]) []Action {
	var parts [][]Action // joined once: the actions of many images are too large to be copied while the list grows
	for image := range images {
		one := newImagePlanner(ix, image)
		if actions := one.plan(); len(actions) > 0 {
			parts = append(parts, actions)
		}
		if len(one.state.ready) == 0 && ix.Desired.SuspensionOf(image, ix.Observed.Now) == nil {
			ix.awaited = append(ix.awaited, one.awaited()...)
		}
	}
	for name := range ix.Desired.Invalid {
		if reason := ix.Desired.invalidReason(name); !reason.IsZero() {
			parts = append(parts, []Action{blocked(ident.CopyRef{Disk: ident.DiskRef{Node: ix.Desired.Node}, ID: ident.ID{Name: name}}, reason)})
		}
	}
	actions := slices.Concat(append(parts, planOrphans(ix), undeclaredNeeds(ix))...)
	actions = append(actions, planScrub(ix, actions)...)
	if actions = ix.withRunning(keepSources(actions)); actions == nil {
		return []Action{} // never null in JSON
	}
	return actions
}

// keepSources turns the deletion of a copy into a wait while another action reads the copy.
func keepSources(actions []Action) []Action {
	readBy := map[ident.CopyRef]string{}
	for _, a := range actions {
		if reader := a.CopyRef().String(); a.LocalSource != (ident.CopyRef{}) && (readBy[a.LocalSource] == "" || reader < readBy[a.LocalSource]) {
			readBy[a.LocalSource] = reader
		}
	}
	for i, a := range actions {
		if reader := readBy[a.CopyRef()]; reader != "" && a.Op.Deletes() {
			actions[i] = wait(a.CopyRef(), a.Reason.With(CodeSourceOfCopy, ", but %s is created from it first", reader)).asWaitFor(a.Op, false)
		}
	}
	return actions
}

// CheckConverged returns an error if a run did not converge. Plan p is what remains after
// the run. The error has the numbers of failed, blocked and missing copies. Clean-ups that
// wait for their interval do not count, nor does a lack of disks.
func CheckConverged(d Desired, o Observed, p Plan) error {
	failed := ownFailures(d, o)
	stopped, text := countBlocked(p, failed), ""
	switch missing := countMissing(d, o); {
	case len(failed) > 0 && stopped > 0:
		text = fmt.Sprintf("%d failed, %d more are blocked", len(failed), stopped)
	case len(failed) > 0:
		text = fmt.Sprintf("%d failed", len(failed))
	case stopped > 0:
		text = fmt.Sprintf("%d blocked", stopped)
	case missing > 0:
		text = fmt.Sprintf("%d not ready", missing)
	case !p.Empty():
		text = "the plan is not empty"
	default:
		return nil
	}
	return errors.New("the disks do not match the configuration yet: " + text)
}

// ownFailures returns the copies on the disks of this node whose last attempt failed.
func ownFailures(d Desired, o Observed) []ident.CopyRef {
	var refs []ident.CopyRef
	for ref, f := range o.Failures {
		if ref.Disk.Node == d.Node && f.Attempts > 0 {
			refs = append(refs, ref)
		}
	}
	return refs
}

// countBlocked counts the blocked actions on images without a failed attempt: a final
// failure is blocked, too, and must not count twice.
func countBlocked(p Plan, failed []ident.CopyRef) int {
	names := map[string]bool{}
	for _, ref := range failed {
		names[ref.ID.Name] = true
	}
	n := 0
	for _, a := range p.Actions {
		if a.Op == model.Blocked && !names[a.Image] {
			n++
		}
	}
	return n
}

// countMissing returns how many copies should be on this node's disks and are not ready. A
// missing disk that is passed over does not count. In observe-only mode it returns 0, since the desired
// state is not known.
func countMissing(d Desired, o Observed) int {
	if d.Allowed == schema.ObserveOnly {
		return 0
	}
	missing, ix := 0, NewRound(d, o)
	for _, image := range d.Config.Images {
		for _, ref := range newImagePlanner(ix, image).placement.targets {
			if _, ready := o.Disks[ref].Ready(image.ID); d.Owns(ref) && !ready {
				missing++
			}
		}
	}
	return missing
}

// FormatBytes returns a size with a binary unit, such as "1.5 GiB".
func FormatBytes(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

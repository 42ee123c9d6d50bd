package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// savedPlanVersion is the version of the JSON of SavedPlan.
const savedPlanVersion = 1

// SavedPlan is a plan with the state that it was made from. It is executed only while that
// state holds. Its JSON is a stable interface.
type SavedPlan struct {
	Version int      `json:"version"`
	Nodes   []string `json:"nodes"` // the nodes that it was made for, sorted
	// Preconditions has the observed state of each copy that the plan changes.
	Preconditions []Precondition `json:"preconditions"`
	Plan          Plan           `json:"plan"`
}

// Precondition is the observed state that one action was planned from.
type Precondition struct {
	Node     string       `json:"node"`
	Disk     string       `json:"disk"`
	DiskUUID string       `json:"diskUUID"`
	Image    string       `json:"image"`
	UUID     string       `json:"uuid"`
	State    model.State  `json:"state"` // "": no file existed
	SHA512   ident.Digest `json:"sha512"`
	Size     int64        `json:"size"` // bytes
	InUse    string       `json:"inUse,omitempty"`
	// Source is the digest of the copy that the action reads, if it is known.
	Source ident.Digest `json:"source,omitzero"`
}

// NewSavedPlan returns the plan p for these nodes with what they observed.
func NewSavedPlan(nodes []Desired, o Observed, p Plan) SavedPlan {
	s := SavedPlan{Version: savedPlanVersion, Nodes: []string{}, Preconditions: []Precondition{}, Plan: p}
	for _, d := range nodes {
		s.Nodes = append(s.Nodes, d.Node)
	}
	slices.Sort(s.Nodes)
	for _, a := range p.Actions {
		if !a.Idle() {
			s.Preconditions = append(s.Preconditions, o.precondition(a))
		}
	}
	return s
}

func (o Observed) precondition(a Action) Precondition {
	ref := a.CopyRef()
	seen := o.Disks[ref.Disk]
	c := seen.Copies[ref.ID]
	pre := Precondition{
		Node: a.Node, Disk: a.Disk, DiskUUID: seen.UUID, Image: a.Image, UUID: a.UUID,
		State: c.State, SHA512: c.SHA512, InUse: c.UsedBy, Source: a.SourceDigest,
	}
	if c.State == model.Ready || c.State == model.Failed {
		pre.Size = c.Size
	}
	if c.State == model.Pending {
		pre.State = "" // a partial file may have grown since
	}
	return pre
}

// check returns an error if the current state differs from the precondition in a way that matters.
func (pre Precondition) check(now Precondition) error {
	on := pre.Node + "/" + pre.Disk
	ref := on + "/" + ident.ID{Name: pre.Image, UUID: pre.UUID}.String()
	state := func(s model.State) string { return cmp.Or(string(s), "missing") }
	switch {
	case pre.DiskUUID != now.DiskUUID:
		return fmt.Errorf("disk %s has the diskUUID %s; it was %s", on, cmp.Or(now.DiskUUID, "none"), cmp.Or(pre.DiskUUID, "none"))
	case pre.State != now.State:
		return fmt.Errorf("copy %s is %s; it was %s", ref, state(now.State), state(pre.State))
	case pre.SHA512 != now.SHA512 || pre.Size != now.Size:
		return fmt.Errorf("copy %s has other bytes than when the plan was made", ref)
	case pre.InUse == "" && now.InUse != "":
		return fmt.Errorf("copy %s is in use now: %s", ref, now.InUse)
	case pre.InUse != now.InUse:
		return fmt.Errorf("the use of copy %s has changed: %s", ref, cmp.Or(now.InUse, "it is not in use any more"))
	case pre.Source != now.Source:
		return fmt.Errorf("copy %s would be created from other bytes", ref)
	}
	return nil
}

// Check returns an error if the saved plan is not valid.
func (s SavedPlan) Check() error {
	switch {
	case s.Version == 0:
		return errors.New("it has no version")
	case s.Version != savedPlanVersion:
		return model.VersionError(s.Version, savedPlanVersion, "use the release of backing-image-manager that saved it")
	case s.Plan.Digest == "" || s.Plan.Actions == nil || s.Nodes == nil:
		return errors.New("it is incomplete")
	}
	return nil
}

// CheckAgainst returns an error for each precondition that does not hold for states d and o any more.
// The argument now is their current plan. It may have actions that the saved plan does not have.
func (s SavedPlan) CheckAgainst(d Desired, o Observed, now Plan) error {
	switch {
	case d.Digest == "":
		return errors.New("the configuration is invalid now")
	case d.Digest != s.Plan.Digest:
		return fmt.Errorf("the configuration has changed: its digest is %s; it was %s",
			digestText(d.Digest, d.Revision), digestText(s.Plan.Digest, s.Plan.Revision))
	case !slices.Contains(s.Nodes, d.Node):
		return fmt.Errorf("the plan is for %s, not for node %s", strings.Join(s.Nodes, ", "), d.Node)
	}
	planned := map[ident.CopyRef]Action{}
	for _, a := range now.Actions {
		planned[a.CopyRef()] = a
	}
	preconditions := map[ident.CopyRef]Precondition{}
	for _, pre := range s.Preconditions {
		preconditions[Action{Node: pre.Node, Disk: pre.Disk, Image: pre.Image, UUID: pre.UUID}.CopyRef()] = pre
	}
	var errs []error
	for _, a := range s.Plan.Actions {
		if a.Idle() || a.Node != d.Node {
			continue
		}
		pre, known := preconditions[a.CopyRef()]
		next, planned := planned[a.CopyRef()]
		if next.Op != a.Op {
			next.SourceDigest = pre.Source // what another operation would read does not matter
		}
		current := o.precondition(Action{Node: a.Node, Disk: a.Disk, Image: a.Image, UUID: a.UUID, SourceDigest: next.SourceDigest})
		switch err := pre.check(current); {
		case !known:
			errs = append(errs, fmt.Errorf("the plan has no precondition of %s %s", a.Op, a.CopyRef()))
		case err != nil:
			errs = append(errs, err)
		case !planned:
			errs = append(errs, fmt.Errorf("%s %s is not planned any more", a.Op, a.CopyRef()))
		case next.Op != a.Op:
			errs = append(errs, fmt.Errorf("%s %s has become %s: %s", a.Op, a.CopyRef(), next.Op, next.Text))
		}
	}
	return errors.Join(errs...)
}

// digestText returns a config digest with its revision. revision "" means that it is not known.
func digestText(digest, revision string) string {
	if revision == "" {
		return fmt.Sprintf("%.12s", digest)
	}
	return fmt.Sprintf("%.12s (revision %.12s)", digest, revision)
}

// Allows reports whether an action is in the plan, or follows from it. A clean-up must be in the
// plan itself, because a person has approved the deletions that are in the plan.
func (s SavedPlan) Allows(a Action) bool {
	return slices.ContainsFunc(s.Plan.Actions, func(planned Action) bool {
		next, follows := planned.Eventually()
		return planned.CopyRef() == a.CopyRef() && (planned.Op == a.Op || follows && next == a.Op && a.Op != model.Cleanup)
	})
}

// contains reports whether the plan changes a copy, now or later.
func (s SavedPlan) contains(ref ident.CopyRef) bool {
	return slices.ContainsFunc(s.Plan.Actions, func(a Action) bool {
		_, follows := a.Eventually()
		return a.CopyRef() == ref && follows
	})
}

// Restrict returns the current plan, which is the argument now, with only the allowed actions and
// the waits before them.
func (s SavedPlan) Restrict(now Plan) Plan {
	actions := slices.DeleteFunc(slices.Clone(now.Actions), func(a Action) bool {
		if a.Idle() {
			next, follows := a.Eventually()
			return !follows || next == model.Cleanup || !s.contains(a.CopyRef())
		}
		return !s.Allows(a)
	})
	p := newPlan(actions, now.Digest, now.Revision)
	p.Suspended = now.Suspended
	return p
}

// CheckExecuted returns an error if a run did not execute the whole saved plan s. Plan p is
// what remains after the run.
func CheckExecuted(s SavedPlan, d Desired, o Observed, p Plan) error {
	failed := 0
	for _, ref := range ownFailures(d, o) {
		if s.contains(ref) {
			failed++
		}
	}
	remaining := len(keep(p.Actions, func(a Action) bool { return !a.Idle() && s.Allows(a) }))
	switch {
	case failed > 0:
		return fmt.Errorf("the saved plan was not executed: %d failed", failed)
	case remaining == 1:
		return errors.New("the saved plan was not executed: 1 action remains")
	case remaining > 0:
		return fmt.Errorf("the saved plan was not executed: %d actions remain", remaining)
	}
	return nil
}

package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// savedPlanVersion is that of the form of Saved.
const savedPlanVersion = 1

// SavedPlan is a plan together with what it was made from. It is a stable interface.
type SavedPlan struct {
	Version int      `json:"savedPlan"`
	Nodes   []string `json:"nodes"` // that it was made for, sorted
	// Preconditions is what was seen of each copy that the plan does something about.
	Preconditions []Precondition `json:"basis"`
	Plan          Plan           `json:"plan"` // Digest is that of the configuration
}

// Precondition is what an action was planned from.
type Precondition struct {
	Node     string      `json:"node"`
	Disk     string      `json:"disk"`
	DiskUUID string      `json:"diskUUID"`
	Image    string      `json:"image"`
	UUID     string      `json:"uuid"`
	State    disk.State  `json:"state"` // "": nothing was there
	SHA512   disk.Digest `json:"sha512"`
	Size     int64       `json:"size"`
	InUse    string      `json:"inUse,omitempty"`
	// Source is what is read, of other nodes or of another copy, if that was known.
	Source disk.Digest `json:"source,omitzero"`
}

// NewSavedPlan is a plan for these nodes with what they saw.
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

// Save is a plan for these nodes with what they saw.
func (c *Cluster) Save(nodes []Desired, p Plan) SavedPlan {
	return NewSavedPlan(nodes, Observed{Disks: c.Disks}, p)
}

func (o Observed) precondition(a Action) Precondition {
	key := a.CopyRef()
	seen := o.Disks[key.Disk]
	c := seen.Copies[key.ID]
	b := Precondition{
		Node: a.Node, Disk: a.Disk, DiskUUID: seen.UUID, Image: a.Image, UUID: a.UUID,
		State: c.State, SHA512: c.SHA512, InUse: c.UsedBy, Source: a.SourceDigest,
	}
	if c.State == disk.Ready || c.State == disk.Failed {
		b.Size = c.Size
	}
	if c.State == disk.Pending {
		b.State = "" // a part may have grown
	}
	return b
}

// changed says what is seen otherwise now, or nothing.
func (b Precondition) changed(now Precondition) string {
	where := b.Node + "/" + b.Disk
	copy := where + "/" + disk.ID{Name: b.Image, UUID: b.UUID}.String()
	state := func(s disk.State) string { return cmp.Or(string(s), "not there") }
	switch {
	case b.DiskUUID != now.DiskUUID:
		return fmt.Sprintf("disk %s has the diskUUID %s, and had %s", where, cmp.Or(now.DiskUUID, "none"), cmp.Or(b.DiskUUID, "none"))
	case b.State != now.State:
		return fmt.Sprintf("copy %s is %s, and was %s", copy, state(now.State), state(b.State))
	case b.SHA512 != now.SHA512 || b.Size != now.Size:
		return fmt.Sprintf("copy %s has other bytes", copy)
	case b.InUse == "" && now.InUse != "":
		return fmt.Sprintf("copy %s is used now: %s", copy, now.InUse)
	case b.InUse != now.InUse:
		return fmt.Sprintf("copy %s is not used as it was: %s", copy, cmp.Or(now.InUse, "nothing uses it any more"))
	case b.Source != now.Source:
		return fmt.Sprintf("copy %s would be made of other bytes", copy)
	}
	return ""
}

// Check says why s is no saved plan.
func (s SavedPlan) Check() error {
	switch {
	case s.Version == 0:
		return errors.New("it has not the field savedPlan")
	case s.Version != savedPlanVersion:
		return fmt.Errorf("it has version %d, and this program knows version %d: use the program that saved it", s.Version, savedPlanVersion)
	case s.Plan.Digest == "" || s.Plan.Actions == nil || s.Nodes == nil:
		return errors.New("it is not whole")
	}
	return nil
}

// CheckAgainst returns an error for each thing that the plan was made from and that is otherwise
// for d and o, whose plan is now. Other work than the saved one is none of that.
func (s SavedPlan) CheckAgainst(d Desired, o Observed, now Plan) error {
	switch {
	case d.Digest == "":
		return errors.New("the configuration has mistakes, and had none")
	case d.Digest != s.Plan.Digest:
		return fmt.Errorf("the configuration has changed: its digest is %.12s%s, and was %.12s%s",
			d.Digest, revisionText(d.Revision), s.Plan.Digest, revisionText(s.Plan.Revision))
	case !slices.Contains(s.Nodes, d.Node):
		return fmt.Errorf("it is not for node %s, but for %s", d.Node, strings.Join(s.Nodes, ", "))
	}
	planned := map[CopyRef]Action{}
	for _, a := range now.Actions {
		planned[a.CopyRef()] = a
	}
	basis := map[CopyRef]Precondition{}
	for _, b := range s.Preconditions {
		basis[Action{Node: b.Node, Disk: b.Disk, Image: b.Image, UUID: b.UUID}.CopyRef()] = b
	}
	var errs []error
	for _, a := range s.Plan.Actions {
		if a.Idle() || a.Node != d.Node {
			continue
		}
		b, known := basis[a.CopyRef()]
		next, still := planned[a.CopyRef()]
		if next.Op != a.Op {
			next.SourceDigest = b.Source // whatever is done instead
		}
		switch why := b.changed(o.precondition(Action{Node: a.Node, Disk: a.Disk, Image: a.Image, UUID: a.UUID, SourceDigest: next.SourceDigest})); {
		case !known:
			errs = append(errs, fmt.Errorf("it does not tell what %s %s was planned from", a.Op, a.CopyRef()))
		case why != "":
			errs = append(errs, errors.New(why))
		case !still:
			errs = append(errs, fmt.Errorf("%s %s is not to be done any more", a.Op, a.CopyRef()))
		case next.Op != a.Op:
			errs = append(errs, fmt.Errorf("%s %s has become %s: %s", a.Op, a.CopyRef(), next.Op, next.Reason))
		}
	}
	return errors.Join(errs...)
}

func revisionText(revision string) string {
	if revision == "" {
		return ""
	}
	return fmt.Sprintf(" (revision %.12s)", revision)
}

// Allows reports whether an action is one of the plan, or one that it says will follow; but
// for a clean-up, of which others may think otherwise by then.
func (s SavedPlan) Allows(a Action) bool {
	return slices.ContainsFunc(s.Plan.Actions, func(planned Action) bool {
		return planned.CopyRef() == a.CopyRef() && (planned.Op == a.Op || planned.Eventually() == a.Op && a.Op != Cleanup)
	})
}

// Contains reports whether the plan does something about a copy, at once or later.
func (s SavedPlan) Contains(key CopyRef) bool {
	return slices.ContainsFunc(s.Plan.Actions, func(a Action) bool { return a.CopyRef() == key && a.Eventually() != "" })
}

// Restrict is what is done of now when nothing but s is, at once or later.
func (s SavedPlan) Restrict(now Plan) Plan {
	actions := slices.DeleteFunc(slices.Clone(now.Actions), func(a Action) bool {
		if a.Idle() {
			return a.Eventually() == "" || a.Eventually() == Cleanup || !s.Contains(a.CopyRef())
		}
		return !s.Allows(a)
	})
	p := Desired{Digest: now.Digest, Revision: now.Revision}.NewPlan(actions)
	p.Suspended = now.Suspended
	return p
}

// Remaining is what is left in now of s.
func (s SavedPlan) Remaining(now Plan) Plan {
	actions := slices.DeleteFunc(slices.Clone(now.Actions), func(a Action) bool { return a.Idle() || !s.Allows(a) })
	return Desired{Digest: now.Digest, Revision: now.Revision}.NewPlan(actions)
}

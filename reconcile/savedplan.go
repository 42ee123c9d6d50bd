package reconcile

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// savedVersion is that of the form of Saved.
const savedVersion = 1

// Saved is a plan together with what it was made from. It is a stable interface.
type Saved struct {
	Version int      `json:"savedPlan"`
	Nodes   []string `json:"nodes"` // that it was made for, sorted
	// Basis is what was seen of each copy that the plan does something about.
	Basis []Basis `json:"basis"`
	Plan  Plan    `json:"plan"` // Digest is that of the configuration
}

// Basis is what an action was planned from.
type Basis struct {
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

// Save is a plan for these nodes with what they saw.
func Save(nodes []Desired, o Observed, p Plan) Saved {
	s := Saved{Version: savedVersion, Nodes: []string{}, Basis: []Basis{}, Plan: p}
	for _, d := range nodes {
		s.Nodes = append(s.Nodes, d.Node)
	}
	slices.Sort(s.Nodes)
	for _, a := range p.Actions {
		if !a.Idle() {
			s.Basis = append(s.Basis, o.basis(a))
		}
	}
	return s
}

// Save is a plan for these nodes with what they saw.
func (c *Cluster) Save(nodes []Desired, p Plan) Saved {
	return Save(nodes, Observed{Disks: c.Disks}, p)
}

func (o Observed) basis(a Action) Basis {
	key := a.Key()
	seen := o.Disks[key.Disk]
	c := seen.Copies[key.ID]
	b := Basis{
		Node: a.Node, Disk: a.Disk, DiskUUID: seen.UUID, Image: a.Image, UUID: a.UUID,
		State: c.State, SHA512: c.SHA512, InUse: c.Using, Source: a.sum,
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
func (b Basis) changed(now Basis) string {
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
func (s Saved) Check() error {
	switch {
	case s.Version == 0:
		return errors.New("it has not the field savedPlan")
	case s.Version != savedVersion:
		return fmt.Errorf("it has version %d, and this program knows version %d: use the program that saved it", s.Version, savedVersion)
	case s.Plan.Digest == "" || s.Plan.Actions == nil || s.Nodes == nil:
		return errors.New("it is not whole")
	}
	return nil
}

// Holds returns an error for each thing that the plan was made from and that is otherwise
// for d and o, whose plan is now. Other work than the saved one is none of that.
func (s Saved) Holds(d Desired, o Observed, now Plan) error {
	switch {
	case d.Digest == "":
		return errors.New("the configuration has mistakes, and had none")
	case d.Digest != s.Plan.Digest:
		return fmt.Errorf("the configuration has changed: its digest is %.12s%s, and was %.12s%s",
			d.Digest, revisionText(d.Revision), s.Plan.Digest, revisionText(s.Plan.Revision))
	case !slices.Contains(s.Nodes, d.Node):
		return fmt.Errorf("it is not for node %s, but for %s", d.Node, strings.Join(s.Nodes, ", "))
	}
	planned := map[Key]Action{}
	for _, a := range now.Actions {
		planned[a.Key()] = a
	}
	basis := map[Key]Basis{}
	for _, b := range s.Basis {
		basis[Action{Node: b.Node, Disk: b.Disk, Image: b.Image, UUID: b.UUID}.Key()] = b
	}
	var errs []error
	for _, a := range s.Plan.Actions {
		if a.Idle() || a.Node != d.Node {
			continue
		}
		b, known := basis[a.Key()]
		next, still := planned[a.Key()]
		if next.Kind != a.Kind {
			next.sum = b.Source // whatever is done instead
		}
		switch why := b.changed(o.basis(Action{Node: a.Node, Disk: a.Disk, Image: a.Image, UUID: a.UUID, sum: next.sum})); {
		case !known:
			errs = append(errs, fmt.Errorf("it does not tell what %s %s was planned from", a.Kind, a.Key()))
		case why != "":
			errs = append(errs, errors.New(why))
		case !still:
			errs = append(errs, fmt.Errorf("%s %s is not to be done any more", a.Kind, a.Key()))
		case next.Kind != a.Kind:
			errs = append(errs, fmt.Errorf("%s %s has become %s: %s", a.Kind, a.Key(), next.Kind, next.Reason))
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

// allows reports whether an action is one of the plan, or one that it says will follow; but
// for a clean-up, of which others may think otherwise by then.
func (s Saved) allows(a Action) bool {
	return slices.ContainsFunc(s.Plan.Actions, func(planned Action) bool {
		return planned.Key() == a.Key() && (planned.Kind == a.Kind || planned.Comes() == a.Kind && a.Kind != Cleanup)
	})
}

// Names reports whether the plan does something about a copy, at once or later.
func (s Saved) Names(key Key) bool {
	return slices.ContainsFunc(s.Plan.Actions, func(a Action) bool { return a.Key() == key && a.Comes() != "" })
}

// Of is what is done of now when nothing but s is, at once or later.
func (s Saved) Of(now Plan) Plan {
	actions := slices.DeleteFunc(slices.Clone(now.Actions), func(a Action) bool {
		if a.Idle() {
			return a.Comes() == "" || a.Comes() == Cleanup || !s.Names(a.Key())
		}
		return !s.allows(a)
	})
	p := Desired{Digest: now.Digest, Revision: now.Revision}.newPlan(actions)
	p.Suspended = now.Suspended
	return p
}

// Left is what is left in now of s.
func (s Saved) Left(now Plan) Plan {
	actions := slices.DeleteFunc(slices.Clone(now.Actions), func(a Action) bool { return a.Idle() || !s.allows(a) })
	return Desired{Digest: now.Digest, Revision: now.Revision}.newPlan(actions)
}

package reconcile

import (
	"cmp"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Kind says what an action does. The words are part of the plan's interface.
type Kind string

// The kinds of action. Wait and Blocked do nothing: Wait names what will end it
// by itself, Blocked what a person has to change.
const (
	Download Kind = "download"
	Upload   Kind = "upload"
	Export   Kind = "export"
	Restore  Kind = "restore"
	Clone    Kind = "clone"
	Sync     Kind = "sync"
	Adopt    Kind = "adopt"
	Verify   Kind = "verify"
	Repair   Kind = "repair"
	Backup   Kind = "backup"
	Cleanup  Kind = "cleanup"
	Evict    Kind = "evict"
	Wait     Kind = "wait"
	Blocked  Kind = "blocked"
)

// Kinds are those that do something.
var Kinds = []Kind{Download, Upload, Export, Restore, Clone, Sync, Adopt, Verify, Repair, Backup, Cleanup, Evict}

// prepares reports whether the action makes the first copy of an image.
func (k Kind) prepares() bool {
	return k == Download || k == Upload || k == Export || k == Restore || k == Clone
}

// copies reports whether the action makes a copy that was not there.
func (k Kind) copies() bool { return k.prepares() || k == Sync }

// pulls reports whether the action brings bytes that other copies have: Action.sum.
func (k Kind) pulls() bool { return k == Sync || k == Repair }

// drops reports whether the action deletes a copy.
func (k Kind) drops() bool { return k == Cleanup || k == Evict }

// needsFile reports whether the action is about a file that is there.
func (k Kind) needsFile() bool { return k == Adopt || k == Verify || k == Repair }

// UnknownBytes is the size of a transfer that nobody knows before it begins.
const UnknownBytes = -1

// Action is one thing to do, or one that cannot be done yet, with its reason.
type Action struct {
	Kind  Kind   `json:"action"`
	Image string `json:"image"`
	UUID  string `json:"uuid"`
	Node  string `json:"node"`
	// Disk is the name of the disk, or "" when no disk is the right one.
	Disk   string `json:"disk"`
	Reason string `json:"reason"`
	// Bytes is what crosses the network or is copied or read, or what a deletion
	// frees; UnknownBytes (-1) when it is not known.
	Bytes int64 `json:"bytes"`
	// From is a copy that a sync, a repair or a clone reads: <node>/<disk>/<folder>. From
	// other nodes all are read that have one.
	From Key `json:"from,omitzero"`
	// Until is when a wait ends by itself, if that is a matter of time.
	Until time.Time `json:"until,omitzero"`
	// Then is what a wait is for, where that is an action on the same copy.
	Then Kind `json:"then,omitempty"`
	// Held: it does not come about by itself, with time or with the rest of the plan; what
	// keeps it may end all the same, as a use does.
	Held bool `json:"held,omitempty"`

	from Key         // of this node; zero: from other nodes
	sum  disk.Digest // of what From names
	slow bool        // a scrub: nobody waits for it
	// recall is the digest that a first copy has to have for now, although none is
	// declared.
	recall recall
}

// recall is a digest that only failed copies have borne, but not for so long that
// another one may take its place.
type recall struct {
	digest disk.Digest
	until  time.Time
}

// Key names one copy in the cluster: a folder on a disk.
type Key struct {
	Disk schema.DiskRef
	ID   disk.ID
}

// String returns <node>/<disk>/<folder>.
func (k Key) String() string { return k.Disk.String() + "/" + k.ID.String() }

// MarshalText writes the copy as String does, nothing for the zero value.
func (k Key) MarshalText() ([]byte, error) {
	if k == (Key{}) {
		return nil, nil
	}
	return []byte(k.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (k *Key) UnmarshalText(text []byte) (err error) {
	*k = Key{}
	if len(text) > 0 {
		*k, err = parseKey(string(text))
	}
	return err
}

// Key names the copy that the action is about.
func (a Action) Key() Key {
	return Key{schema.DiskRef{Node: a.Node, Disk: a.Disk}, disk.ID{Name: a.Image, UUID: a.UUID}}
}

// wouldBe is the action as a wait for one of that kind, if it is one.
func (a Action) wouldBe(kind Kind, held bool) Action {
	if a.Idle() {
		a.Then, a.Held = kind, held || a.Kind == Blocked
	}
	return a
}

// Comes is what the action does, at once or by itself later; "" if it does nothing.
func (a Action) Comes() Kind {
	switch {
	case !a.Idle():
		return a.Kind
	case a.Held:
		return ""
	}
	return a.Then
}

// Idle reports whether executing the action means doing nothing.
func (a Action) Idle() bool { return a.Kind == Wait || a.Kind == Blocked }

// Plan is everything that has to be done, sorted by image, disk and action. It is
// a value: the same one is printed by a dry run and executed.
type Plan struct {
	Actions []Action `json:"actions"`
	Summary Summary  `json:"summary"`
	// Suspended is what the configuration suspends at the time of the plan: that of
	// everything first, then by image.
	Suspended []Suspension `json:"suspended,omitempty"`
	// Digest and Revision are those of the configuration, "" while anything of it is
	// broken, and where it is of no commit.
	Digest   string `json:"digest,omitempty"`
	Revision string `json:"revision,omitempty"`
}

// Summary counts the actions of a plan.
type Summary struct {
	Counts map[Kind]int `json:"counts"`
	// TransferBytes is what first copies, syncs and backups move, as far as it is known.
	TransferBytes int64 `json:"transferBytes"`
	// UnknownSizes is how many of those have a size that is not known.
	UnknownSizes int `json:"unknownSizes"`
	// FreedBytes is what clean-ups and evictions give back.
	FreedBytes int64 `json:"freedBytes"`
}

func (d Desired) newPlan(actions []Action) Plan {
	slices.SortFunc(actions, func(a, b Action) int {
		return cmp.Or(cmp.Compare(a.Image, b.Image), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Disk, b.Disk),
			cmp.Compare(a.UUID, b.UUID), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Reason, b.Reason))
	})
	p := Plan{Actions: actions, Summary: Summary{Counts: map[Kind]int{}}, Digest: d.Digest, Revision: d.Revision}
	for _, a := range actions {
		s := &p.Summary
		s.Counts[a.Kind]++
		switch {
		case (a.Kind.copies() || a.Kind == Backup) && a.Bytes == UnknownBytes:
			s.UnknownSizes++
		case a.Kind.copies(), a.Kind == Backup:
			s.TransferBytes += a.Bytes
		case a.Kind.drops():
			s.FreedBytes += a.Bytes
		}
	}
	return p
}

// Empty reports whether the plan changes nothing: it holds nothing but waits.
func (p Plan) Empty() bool {
	return !slices.ContainsFunc(p.Actions, func(a Action) bool { return a.Kind != Wait })
}

package schema

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Config is what the documents of a config directory declare together, with
// every default filled in. It is a value: nothing changes it after loading, so
// any number of goroutines may read it.
type Config struct {
	Settings Settings
	// Nodes is empty when the configuration declares none: then the node that
	// runs is alone.
	Nodes  map[string]Node
	Images map[string]Image
}

// Settings say how the managers behave.
type Settings struct {
	CleanupWaitInterval  time.Duration
	RecoveryWaitInterval time.Duration
	// MinNumberOfCopies is the default of images; it is at least 1. Image.Copies
	// has it applied already.
	MinNumberOfCopies int
	// ConcurrentReplenishPerNodeLimit is 0 when only first copies are made.
	ConcurrentReplenishPerNodeLimit int
	PruneLimit                      PruneLimit
	// PruneConfirmed are the images over PruneLimit that may go, sorted.
	PruneConfirmed []disk.ID
	// ScrubInterval is 0 when images are never read again by themselves.
	ScrubInterval        time.Duration
	AllowLoopbackSources bool
	Suspend              *Suspension `json:",omitempty"` // of everything; nil: none
}

// Suspension lets what is under way go on, nothing else begin, and nothing be removed.
type Suspension struct {
	Reason string
	By     string    `json:",omitempty"` // "" is not known
	Until  time.Time `json:",omitzero"`  // in UTC; zero: until it is lifted
}

// Holds reports whether the suspension is there, and not over.
func (s *Suspension) Holds(now time.Time) bool {
	return s != nil && (s.Until.IsZero() || now.Before(s.Until))
}

// Node is a declared machine.
type Node struct {
	// Address is where its manager answers, without a trailing slash; "" when
	// none is declared.
	Address           string
	Tags              []string // sorted, without duplicates
	AllowScheduling   bool
	EvictionRequested bool
	Disks             map[string]Disk
	Pos               document.Position `json:"-"`
}

// Disk is a declared disk of a node.
type Disk struct {
	Path              string   // absolute and clean
	Tags              []string // sorted, without duplicates
	StorageReserved   int64    // bytes that have to stay free
	AllowScheduling   bool
	EvictionRequested bool
}

// DiskRef names a disk as the configuration does: not by its identity.
type DiskRef struct{ Node, Disk string }

// String returns "node/disk".
func (r DiskRef) String() string { return r.Node + "/" + r.Disk }

// PruneLimit says how many images may vanish from the configuration at once
// and be cleaned up: a count, or a percentage of all. It is comparable.
type PruneLimit struct {
	n       int
	percent bool
}

// PruneCount is a limit of n images.
func PruneCount(n int) PruneLimit { return PruneLimit{n: n} }

// PrunePercent is a limit of n hundredths of all images, declared and vanished.
func PrunePercent(n int) PruneLimit { return PruneLimit{n: n, percent: true} }

// Holds reports whether a set of vanished images is too large to be cleaned
// up unconfirmed, where declared images remain. A set of one never is.
func (l PruneLimit) Holds(declared, vanished int) bool {
	if vanished <= 1 {
		return false
	}
	if l.percent {
		return 100*vanished > l.n*(declared+vanished)
	}
	return vanished > l.n
}

// String returns the limit as it is declared: "3" or "50%".
func (l PruneLimit) String() string {
	if l.percent {
		return strconv.Itoa(l.n) + "%"
	}
	return strconv.Itoa(l.n)
}

// MarshalText writes the form of String.
func (l PruneLimit) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

func parsePruneLimit(s string) (PruneLimit, error) {
	digits, percent := strings.CutSuffix(s, "%")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return PruneLimit{}, fmt.Errorf("prune limit %q is not a percentage", s)
	}
	return PruneLimit{n: n, percent: percent}, nil
}

func (d *decoder) suspension(raw *rawSuspend) *Suspension {
	if raw == nil {
		return nil
	}
	s := &Suspension{Reason: strings.TrimSpace(raw.Reason), By: strings.TrimSpace(raw.By)}
	if raw.Until != "" {
		var err error
		s.Until, err = moment(raw.Until)
		d.check(err, "suspend", "until")
	}
	return s
}

// moment reads a time, or the beginning of a day.
func moment(text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil && !t.IsZero() { // which is no end
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("is no time that there is: %q", text)
}

// ending is a suspension that ends by itself, and what is to be said when it has.
type ending struct {
	at   time.Time
	over document.Problem
}

// WarningsAt returns the warnings that there are at a time: with those of suspensions that
// have ended by themselves and are still declared.
func (r Result) WarningsAt(now time.Time) []document.Problem {
	all := slices.Clone(r.Warnings)
	for _, e := range r.ends {
		if !now.Before(e.at) {
			all = append(all, e.over)
		}
	}
	slices.SortStableFunc(all, document.Problem.Compare)
	return all
}

func (a *assembly) ends() []ending {
	var ends []ending
	for _, t := range slices.Concat(a.of(settingsSection), a.of(imagesSection)) {
		if s := t.suspension(); s != nil && !s.Until.IsZero() && !a.stale(t) {
			msg := fmt.Sprintf("is over since %s: nothing is suspended by it", s.Until.Format(time.RFC3339))
			ends = append(ends, ending{s.Until, t.problem(document.Problem{Path: document.Path{"suspend", "until"}, Message: msg, Hint: "remove it, or set another time"})})
		}
	}
	return ends
}

func (t *thing) suspension() *Suspension {
	switch {
	case t.verdict.image != nil:
		return t.verdict.image.Suspend
	case t.verdict.settings != nil:
		return t.verdict.settings.Suspend
	}
	return nil
}

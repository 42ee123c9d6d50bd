package schema

import (
	"fmt"
	"strconv"
	"strings"
)

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

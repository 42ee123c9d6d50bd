package fetchtest

import (
	"fmt"
	"net/url"
	"strconv"
)

// Kind is a kind of fault. The package comment describes all kinds.
type Kind string

// The kinds of faults.
const (
	Cut         Kind = "cut"
	Reset       Kind = "reset"
	Stall       Kind = "stall"
	Drip        Kind = "drip"
	Silent      Kind = "silent"
	Flip        Kind = "flip"
	Long        Kind = "long"
	Short       Kind = "short"
	NoRange     Kind = "norange"
	BadRange    Kind = "badrange"
	Changing    Kind = "changing"
	Changed     Kind = "changed"
	NoValidator Kind = "novalidator"
	Weak        Kind = "weak"
	NoLength    Kind = "nolength"
	Chunked     Kind = "chunked"
	Gzip        Kind = "gzip"
	Empty       Kind = "empty"
	Unavailable Kind = "unavailable"
	Flaky       Kind = "flaky"
	Busy        Kind = "busy"
	NotFound    Kind = "notfound"
	Page        Kind = "page"
	HTML        Kind = "html"
	Loop        Kind = "loop"
	Redirect    Kind = "redirect"
	Basic       Kind = "basic"
	Bearer      Kind = "bearer"
)

// Fault is a fault with its parameters.
type Fault struct {
	Kind  Kind
	At    int64  // an offset in the body, or a number of bytes
	Times int    // number of requests with the fault; 0: all
	Skip  int    // number of requests before the first fault
	To    string // target of a redirect
	After string // value of Retry-After
}

// parseFaults parses the faults that a URL requests.
func parseFaults(q url.Values) []Fault {
	var faults []Fault
	for i, kind := range q["fault"] {
		at, _ := strconv.ParseInt(particular(q, "at", i), 10, 64) // an invalid number counts as 0
		times, _ := strconv.Atoi(particular(q, "times", i))
		skip, _ := strconv.Atoi(particular(q, "skip", i))
		faults = append(faults, Fault{
			Kind: Kind(kind), At: at, Times: times, Skip: skip, To: particular(q, "to", i), After: particular(q, "after", i),
		})
	}
	return faults
}

func particular(q url.Values, key string, i int) string {
	if l := q[key]; len(l) == len(q["fault"]) {
		return l[i]
	}
	return q.Get(key)
}

// due counts this request for each fault of a path or URL, and adds the faults that affect this
// request.
func (a *answer) due(where string, faults []Fault) {
	for i, f := range faults {
		key := fmt.Sprintf("%s %d %s", where, i, f.Kind)
		n := 0
		a.server.note(func() { n = a.server.counts[key]; a.server.counts[key]++ })
		switch {
		case f.Kind == Flaky && n%4 == 3:
		case f.Kind == Changed && n == 0:
		case n < f.Skip, f.Times > 0 && n >= f.Skip+f.Times:
		default:
			a.faults[f.Kind] = f
			a.nth = n
		}
	}
}

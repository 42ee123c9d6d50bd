package peer

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

const (
	firstAside   = 5 * time.Second
	longestAside = 5 * time.Minute
)

// roster is what a Pull has learned of its sources, by their names.
type roster map[string]*standing

// standing is what is known of one source.
type standing struct {
	err   error     // why it was set aside last; nil: it never was
	until time.Time // it is set aside until then
	poor  bool      // it does send: slowly, or until the connection breaks
	busy  bool      // it asked to come back
	tries int       // in a row that failed
}

// name identifies a source to the roster and to people.
func (s Source) name() string { return s.Node + "/" + s.Disk }

func (r *roster) of(name string) *standing {
	if *r == nil {
		*r = roster{}
	}
	if (*r)[name] == nil {
		(*r)[name] = new(standing)
	}
	return (*r)[name]
}

// usable reports whether the source may be asked.
func (s *standing) usable() bool { return !time.Now().Before(s.until) }

// failed sets a source aside that brought so many chunks before: for longer each time,
// up to most, unless the connection just broke of one that did well.
func (s *standing) failed(err error, brought int64, most time.Duration) {
	if busy, ok := errors.AsType[*BusyError](err); ok {
		*s = standing{err: err, busy: true, until: time.Now().Add(busy.After), tries: s.tries}
		return
	}
	broke, well := broken(err), brought >= firstRun
	s.err, s.busy, s.poor = err, false, errors.Is(err, errSlow) || broke && brought > 0
	if well && !wrong(err) && !errors.Is(err, errSlow) {
		s.tries = 0
	}
	wait := min(firstAside<<min(s.tries, 8), most)
	if s.tries++; broke && well {
		wait = 0
	}
	s.until = time.Now().Add(wait)
}

func wrong(err error) bool {
	_, ok := errors.AsType[*WrongError](err)
	return ok
}

func broken(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// pause returns how long to wait until something may have become usable.
func (r roster) pause() time.Duration {
	wait := time.Second
	for _, s := range r {
		if left := time.Until(s.until); left > 0 {
			wait = min(wait, left)
		}
	}
	return wait
}

// failure is the error when no source was of use for too long.
func (r roster) failure() error {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if s := r[name]; s.err != nil {
			lines = append(lines, fmt.Sprintf("%s: %v", name, s.err))
		}
	}
	why := cmp.Or(strings.Join(lines, "; "), "no other node has a ready copy that can be asked")
	return &fetch.Error{Class: fetch.Network, Err: fmt.Errorf("no source for %v: %s", hopeless, why)}
}

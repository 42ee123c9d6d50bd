package configdir

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"
)

var errMissing = fmt.Errorf("read config directory: %w", fs.ErrNotExist)

// plain is a snapshot of one file that was written in place.
func plain(data string) Snapshot {
	return Snapshot{Files: []File{{Path: "a.yaml", Data: []byte(data)}}}
}

func whole(generation, data string) Snapshot {
	s := plain(data)
	s.Whole, s.Generation = true, generation
	return s
}

func busy(s Snapshot) Snapshot {
	s.Busy = true
	return s
}

// glance is a look, at milliseconds from the start, and the verdict on it:
// "take", "again 250ms", "" (nothing), or a part of the text of a fault.
type glance struct {
	at   int
	saw  any // schema.Snapshot or error
	want string
}

func TestSettler(t *testing.T) {
	const never = "keeps changing"
	tests := map[string][]glance{
		"a plain directory is taken when still": {
			{0, plain("1"), "again 250ms"}, {249, plain("1"), "again 50ms"}, {250, plain("1"), "take"},
			{10000, plain("1"), ""}, {20000, plain("2"), "again 250ms"}, {20250, plain("2"), "take"}},
		"a write begins the moment anew": {
			{0, plain("1"), "again 250ms"}, {200, plain("12"), "again 250ms"}, {260, plain("12"), "again 190ms"},
			{440, plain("123"), "again 250ms"}, {690, plain("123"), "take"}},
		"what was taken back is not taken": {
			{0, plain("1"), "again 250ms"}, {250, plain("1"), "take"}, {1000, plain("half"), "again 250ms"}, {1100, plain("1"), ""},
			{1350, plain("half"), "again 250ms"}, {1600, plain("half"), "take"}},
		"a swap is taken at once, each": {
			{0, whole("g1", "1"), "take"}, {10, whole("g2", "2"), "take"}, {20, whole("g3", "2"), ""}, {30, whole("g4", "1"), "take"}},
		"in-place changes behind a link wait": {
			{0, whole("g1", "1"), "take"}, {1000, whole("g1", "2"), "again 250ms"}, {1250, whole("g1", "2"), "take"}},
		"a swap ends waiting": {
			{0, plain("1"), "again 250ms"}, {100, whole("g1", "2"), "take"}},
		"a link that comes back": {
			{0, whole("g1", "1"), "take"}, {1000, errMissing, "again 250ms"}, {1100, whole("g1", "2"), "take"}},
		"git is waited for": {
			{0, plain("1"), "again 250ms"}, {250, plain("1"), "take"}, {1000, busy(plain("1")), "again 1s"}, {1100, busy(plain("half")), "again 1s"},
			{9000, busy(plain("half")), "again 1s"}, {9100, plain("2"), "again 250ms"}, {9350, plain("2"), "take"}},
		"what was still under git's lock is taken with its end": {
			{0, busy(plain("1")), "again 1s"}, {1000, plain("1"), "take"}},
		"git that is done at once is no fault": {
			{0, plain("1"), "again 250ms"}, {250, plain("1"), "take"}, {1000, busy(plain("2")), "again 1s"},
			{1100, plain("2"), "again 150ms"}, {1250, plain("2"), "take"}},
		"git is waited for before a swap": {
			{0, busy(whole("g1", "1")), "again 1s"}, {1000, whole("g1", "1"), "take"}},
		"git at work for long is no fault": {
			{0, busy(plain("1")), "again 1s"}, {10000, busy(plain("2")), "again 1s"}, {20000, busy(plain("3")), "again 1s"},
			{20100, plain("4"), "again 250ms"}, {20350, plain("4"), "take"}},
		"git that goes on is waited for, however long": {
			{0, busy(plain("1")), "again 1s"}, {25000, busy(plain("2")), "again 1s"}, {50000, busy(plain("3")), "again 1s"},
			{79999, busy(plain("3")), "again 1s"}, {80000, busy(plain("3")), "take"}},
		"a left-over lock is waited for once": {
			{0, busy(plain("1")), "again 1s"}, {29999, busy(plain("1")), "again 1s"}, {30000, busy(plain("1")), "take"},
			{40000, busy(plain("2")), "again 250ms"}, {40250, busy(plain("2")), "take"}, {41000, plain("2"), ""}, {42000, busy(plain("2")), "again 1s"}},
		"a directory that never is still is never taken": {
			{0, plain("1"), "again 250ms"}, {250, plain("2"), "again 250ms"}, {4999, plain("3"), "again 250ms"}, {5000, plain("4"), "a.yaml " + never},
			{6000, plain("5"), "6s: a.yaml " + never}, {7000, plain("6"), never}, {8000, plain("6"), "take"}, {9000, plain("7"), "again 250ms"}},
		"a directory that changes under each look": {
			{0, ErrChanging, "again 250ms"}, {250, ErrChanging, "again 250ms"}, {5000, ErrChanging, "not been still for 5s"},
			{5300, plain("1"), "not been still"}, {6300, plain("1"), "take"}},
		"a missing directory is a fault, and keeps what was taken": {
			{0, plain("1"), "again 250ms"}, {250, plain("1"), "take"}, {1000, errMissing, "again 250ms"}, {1250, errMissing, "file does not exist"},
			{11250, errMissing, "file does not exist"}, {12000, plain("1"), ""}},
		"a directory that is missing for a moment is none": {
			{0, plain("1"), "again 250ms"}, {250, plain("1"), "take"}, {1000, errMissing, "again 250ms"}, {1100, plain("2"), "again 250ms"},
			{1350, plain("2"), "take"}},
		"an empty directory is a fault": {
			{0, Snapshot{}, "again 250ms"}, {250, Snapshot{}, errEmpty.Error()}},
		"an empty generation is a fault": {
			{0, whole("g1", "1"), "take"}, {100, Snapshot{Whole: true, Generation: "g2"}, "again 250ms"},
			{350, Snapshot{Whole: true, Generation: "g2"}, errEmpty.Error()}, {400, whole("g3", "2"), "take"}},
	}
	for name, glances := range tests {
		t.Run(name, func(t *testing.T) {
			var s Debouncer
			start := time.Now()
			for _, g := range glances {
				at := start.Add(time.Duration(g.at) * time.Millisecond)
				snap, _ := g.saw.(Snapshot)
				err, _ := g.saw.(error)
				if v := s.Observe(at, at, snap, err); !v.is(g.want) {
					t.Errorf("at %d ms: got %+v, want %q", g.at, v, g.want)
				}
			}
		})
	}
}

func (v Decision) is(want string) bool {
	switch {
	case want == "":
		return v == Decision{}
	case want == "take":
		return v == Decision{Apply: true}
	case strings.HasPrefix(want, "again "):
		return v.Fault == nil && !v.Apply && "again "+v.RetryAfter.String() == want
	}
	return v.Fault != nil && !v.Apply && strings.Contains(v.Fault.Error(), want)
}

// TestSettlerSlowLooks: looks that take long agree only if there is a still
// moment between the end of the one and the beginning of the other.
func TestSettlerSlowLooks(t *testing.T) {
	var s Debouncer
	at := func(ms int) time.Time { return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond) }
	if v := s.Observe(at(0), at(300), plain("1"), nil); !v.is("again 250ms") {
		t.Errorf("first look: %+v", v)
	}
	if v := s.Observe(at(350), at(650), plain("1"), nil); !v.is("again 50ms") {
		t.Errorf("a look that began 50 ms later: %+v", v)
	}
	if v := s.Observe(at(700), at(1000), plain("1"), nil); !v.is("take") {
		t.Errorf("a look that began 400 ms later: %+v", v)
	}
}

// TestSettlerLatency plays writes at all distances to the looks and adds up
// what the Settler asks to wait: never is it half a second from the last
// write to the taking, nor is there a storm of looks.
func TestSettlerLatency(t *testing.T) {
	const look = 20 * time.Millisecond // 1,000 files take half of that
	for every := time.Millisecond; every < 240*time.Millisecond; every += 3 * time.Millisecond {
		var s Debouncer
		now := time.Unix(0, 0)
		var wrote, next time.Time
		looks, writes := 0, 10
		for taken := false; !taken; {
			if writes > 0 && (next.IsZero() || now.Add(every).Before(next)) {
				now = now.Add(every)
				writes--
				wrote = now
				poked := now.Add(coalesceFor)
				next = poked.Add(s.DelayAfterEvent(poked))
				continue
			}
			began := next
			now = began.Add(look)
			looks++
			v := s.Observe(began, now, plain(fmt.Sprint(writes)), nil)
			taken, next = v.Apply && writes == 0, now.Add(v.RetryAfter)
			if v.Apply && writes > 0 {
				t.Fatalf("a write every %v: taken in between", every)
			}
		}
		if latency := now.Sub(wrote); latency >= 400*time.Millisecond {
			t.Errorf("a write every %v: taken %v after the last", every, latency)
		}
		if most := 3 + int(10*every/readGap); looks > most+10 {
			t.Errorf("a write every %v: %d looks", every, looks)
		}
	}
}

func TestSettlerPoked(t *testing.T) {
	var s Debouncer
	start := time.Unix(1000, 0)
	if got := s.DelayAfterEvent(start); got != 0 {
		t.Errorf("before the first look: wait %v", got)
	}
	s.Observe(start, start, plain("1"), nil)
	if got := s.DelayAfterEvent(start.Add(20 * time.Millisecond)); got != readGap-20*time.Millisecond {
		t.Errorf("soon after a look: wait %v", got)
	}
	for i := range 6 {
		start = start.Add(time.Second)
		s.Observe(start, start, plain(fmt.Sprint(i)), nil)
	}
	if got := s.DelayAfterEvent(start); got != slowReadGap {
		t.Errorf("after much change: wait %v", got)
	}
}

func TestFirstChange(t *testing.T) {
	files := func(paths ...string) (s Snapshot) {
		for _, p := range paths {
			f := File{Path: p[:1], Data: []byte(p)}
			if strings.HasSuffix(p, "!") {
				f = File{Path: p[:1], Err: errors.New("x")}
			}
			s.Files = append(s.Files, f)
		}
		return s
	}
	for _, tt := range []struct {
		a, b Snapshot
		want string
	}{
		{files("a", "b"), files("a", "b"), ""},
		{files("a", "b"), files("a", "b2"), "b"},
		{files("a", "b"), files("a", "b!"), "b"},
		{files("a", "b"), files("b"), "a"},
		{files("b"), files("a", "b"), "a"},
		{files("a", "b", "c"), files("a"), "b"},
		{files(), files("c"), "c"},
	} {
		if got := firstChange(tt.a, tt.b); got != tt.want {
			t.Errorf("%s to %s: got %q, want %q", tt.a.Files, tt.b.Files, got, tt.want)
		}
	}
}

func TestRemovals(t *testing.T) {
	type look struct {
		at       int    // seconds
		declared string // names
		gone     string // of a, b, c and x
	}
	for name, looks := range map[string][]look{
		"never there":            {{0, "ab", ""}, {4, "ab", ""}, {5, "ab", "cx"}, {9, "ab", "cx"}},
		"left":                   {{0, "abcx", ""}, {10, "ab", ""}, {14, "ab", ""}, {15, "ab", "cx"}, {30, "ab", "cx"}},
		"one look is not enough": {{0, "abcx", ""}, {100, "ab", ""}, {105, "ab", "cx"}},
		"back in between":        {{0, "abcx", ""}, {10, "abc", ""}, {13, "abcx", ""}, {16, "abc", ""}, {20, "abc", ""}, {21, "abc", "x"}},
		"back after all":         {{0, "ab", ""}, {5, "ab", "cx"}, {6, "abcx", ""}, {20, "abc", ""}, {25, "abc", "x"}},
		"one after the other":    {{0, "abcx", ""}, {1, "abc", ""}, {4, "ab", ""}, {6, "ab", "x"}, {9, "ab", "cx"}},
	} {
		t.Run(name, func(t *testing.T) {
			var r RemovalConfirmer
			for _, l := range looks {
				declared := map[string]bool{}
				for _, name := range strings.Split(l.declared, "") {
					declared[name] = true
				}
				r.Observe(time.Unix(int64(l.at), 0), time.Unix(int64(l.at), 0), declared)
				gone := ""
				for _, name := range []string{"a", "b", "c", "x"} {
					if r.Confirmed(name) {
						gone += name
					}
				}
				if gone != l.gone {
					t.Errorf("at %d s: gone %q, want %q", l.at, gone, l.gone)
				}
			}
		})
	}
	if new(RemovalConfirmer).Confirmed("a") {
		t.Error("gone without a look")
	}
}

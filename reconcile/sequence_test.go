package reconcile

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

var sequences = flag.Int("watch.sequences", 0, "how many sequences of changes to a config directory to run, and hold to 2 s; 0: a few")

// TestSequences changes config directories in all the ways in which they are kept, at
// random, under running loops. Where the way says when a change is complete, nothing but
// what was complete may ever be taken; where it does not, nothing that was not still for a
// moment. The last state has to be taken, and what is not in it any more has to be gone
// after a second look.
func TestSequences(t *testing.T) {
	t.Parallel()
	n, most := 20, 20
	if race.Enabled {
		n = len(forms)
	}
	if *sequences > 0 {
		n, most = *sequences, 40
	}
	all := sequenceSum{late: map[string]time.Duration{}}
	stop := make(chan struct{})
	var beats, wait sync.WaitGroup
	beats.Go(func() { all.beat(stop) })
	next := make(chan int, n)
	for seed := range n {
		next <- seed
	}
	close(next)
	for range most {
		wait.Go(func() {
			for seed := range next {
				form := forms[seed%len(forms)]
				t.Run(fmt.Sprintf("%s/%d", form.name, seed), func(t *testing.T) { runSequence(t, form, uint64(seed), &all) })
			}
		})
	}
	wait.Wait()
	close(stop)
	beats.Wait()
	if len(all.after) == 0 {
		return // -run chose none, or all failed
	}
	t.Logf("%d sequences of %d changes, of which %d were taken; the last one after %v at most (%v), %v in the middle; %d stalls of the process",
		n, all.changes, all.taken, slices.Max(all.after), all.late, all.middle(), len(all.stalls))
}

// content is what a config directory holds: the text of each file.
type content map[string]string

// sequence is one directory with a loop over it.
type sequence struct {
	*rand.Rand
	t      *testing.T
	form   form
	root   string // a folder of its own
	conf   string // the config directory
	loader *schema.Loader
	l      *looping
	log    *takenLog
	repos  repos
	all    *sequenceSum

	count   int
	known   map[string]content  // what was whole, by digest
	images  map[string][]string // what is declared, by digest
	moments []moment            // what lay there when, of an unmarked form
	now     content             // what lies there
	ended   time.Time           // of the last change
	begun   []beginning         // of the changes
	changes int
}

// one is true with a probability of 1/in.
func (s *sequence) one(in int) bool { return s.IntN(in) == 0 }

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// beginning is that of a change to a content.
type beginning struct {
	to content
	at time.Time
}

// moment is a state of the directory, and the beginning and the end of the change that
// brought it.
type moment struct {
	digest string
	since  time.Time
	done   time.Time
}

func runSequence(t *testing.T, f form, seed uint64, all *sequenceSum) {
	s := &sequence{
		Rand: rand.New(rand.NewPCG(seed, 5)), t: t, form: f, all: all, root: t.TempDir(), loader: schema.NewLoader(),
		known: map[string]content{}, images: map[string][]string{}, log: &takenLog{},
	}
	s.change(f.start)
	s.run()
	s.l.until("taken at the start", func(v *status.View) bool { return v.Config.Digest == s.digest(s.now) })
	for range 3 + s.IntN(6) {
		s.change(pick(s.Rand, f.ops...))
		if s.one(2) {
			s.l.rounds(s.IntN(5))
		}
	}
	after := s.settles()
	if s.one(2) {
		s.removed()
	}
	s.held()
	all.Lock()
	defer all.Unlock()
	all.late[f.name] = max(all.late[f.name], after)
	all.changes, all.taken, all.after = all.changes+s.changes, all.taken+len(s.log.all()), append(all.after, after)
}

// run starts the loop, of a node without disks.
func (s *sequence) run() {
	log := slog.New(s.log)
	l := NewLoop(New(fetch.Client{}, log, false), LoopOptions{Dir: s.conf, Interval: 100 * time.Millisecond, Node: "node1", Log: log})
	ctx, stop := context.WithCancel(s.t.Context())
	s.l = &looping{Loop: l, t: s.t, stop: stop, ended: make(chan error, 1)}
	go func() { s.l.ended <- l.Run(ctx) }()
	s.t.Cleanup(func() { s.l.end() })
}

func (s *sequence) change(op func(*sequence)) {
	s.changes++
	before, began := s.now, time.Now()
	op(s)
	if !maps.Equal(before, s.now) {
		s.begun = append(s.begun, beginning{s.now, began})
	}
	s.ended = time.Now()
}

// fresh is another whole content, with images that no other one has.
func (s *sequence) fresh() content {
	s.count++
	c := content{"base.yaml": "nodes: {node1: {}}\n"}
	for _, name := range []string{"a.yaml", "b.yaml", "sub/c.yaml", "sub/deep/d.yaml"} {
		if s.one(4) {
			continue
		}
		c[name] = fmt.Sprintf("images:\n  of-%c-%d: {source: {upload: {}}}\n", name[strings.LastIndexByte(name, '/')+1], s.count)
	}
	c[fmt.Sprintf("only%d.yaml", s.count)] = fmt.Sprintf("images: {only-%d: {source: {upload: {}}}}\n", s.count)
	s.known[s.digest(c)] = c
	return c
}

// digest is that of a content, "" if that is not valid.
func (s *sequence) digest(c content) string {
	var snapshot configdir.Snapshot
	for _, name := range slices.Sorted(maps.Keys(c)) {
		snapshot.Files = append(snapshot.Files, configdir.File{Path: name, Data: []byte(c[name])})
	}
	r := s.loader.Load(s.t.Context(), snapshot)
	s.images[r.Digest] = slices.Collect(maps.Keys(r.Config.Images))
	return r.Digest
}

// settles waits until the last state is taken, and returns how long that took.
func (s *sequence) settles() time.Duration {
	want := s.digest(s.now)
	s.l.until("taken what is there at last", func(v *status.View) bool { return v.Fault == "" && v.Config.Digest == want })
	taken := s.log.all()
	after := max(0, taken[len(taken)-1].at.Sub(s.ended))
	if lost := s.all.stalled(s.ended); *sequences > 0 && after-lost > 2*time.Second {
		s.t.Errorf("the last change was taken %v after it, of which %v were lost to others", after, lost)
	}
	return after
}

// held holds what was taken against what was there.
func (s *sequence) held() {
	for _, took := range s.log.all() {
		switch {
		case s.form.marked && s.known[took.digest] == nil:
			s.t.Errorf("%s was taken (errors: %v), which was never whole", took.digest, took.errors)
		case !s.form.marked && !s.wasStill(took.digest):
			s.t.Errorf("%s was taken (errors: %v), which was never still for %v", took.digest, took.errors, configdir.StableFor)
		}
	}
}

// wasStill reports whether two looks may have seen a state that were far enough apart.
// What was there in between and went again may have been missed by both.
func (s *sequence) wasStill(digest string) bool {
	var first time.Time
	for i, m := range s.moments {
		if m.digest != digest {
			continue
		}
		if first.IsZero() {
			first = m.since
		}
		if i+1 == len(s.moments) || s.moments[i+1].done.Sub(first) >= configdir.StableFor {
			return true
		}
	}
	return false
}

// removed waits until what the last state has no more is known to be gone, which a second
// look has to confirm.
func (s *sequence) removed() {
	taken := s.log.all()
	if len(taken) < 2 {
		return
	}
	final := s.l.View().Desired.Config.Images
	var gone []string
	for _, name := range s.images[taken[len(taken)-2].digest] {
		if _, there := final[name]; !there {
			gone = append(gone, name)
		}
	}
	v := s.l.until(fmt.Sprint("gone: ", gone), func(v *status.View) bool {
		return !slices.ContainsFunc(gone, func(name string) bool { return !v.Desired.Removed(name) })
	})
	waited := time.Since(s.lastLed(taken[len(taken)-1]))
	if len(gone) > 0 && waited < configdir.RemovalDelay {
		s.t.Errorf("%v were taken for gone after %v", gone, waited)
	}
	if late := time.Since(s.ended) - configdir.RemovalDelay - s.all.stalled(s.ended); *sequences > 0 && late > 2*time.Second {
		s.t.Errorf("%v were not taken for gone before %v", gone, late+configdir.RemovalDelay)
	}
	if got, want := v.Config.Digest, s.digest(s.now); got != want {
		s.t.Errorf("%s was taken in the end, and not %s", got, want)
	}
}

// lastLed is when the change began that led to what was taken last. Later ones may have
// been there and back before anybody looked.
func (s *sequence) lastLed(last took) (at time.Time) {
	for _, b := range s.begun {
		if maps.Equal(b.to, s.now) && b.at.Before(last.at) {
			at = b.at
		}
	}
	return at
}

// took is a configuration that was taken.
type took struct {
	at     time.Time
	digest string
	errors int64
}

// takenLog notes what a loop says that it has taken: no view is missed that way.
type takenLog struct {
	mu    sync.Mutex
	taken []took
}

func (l *takenLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *takenLog) WithAttrs([]slog.Attr) slog.Handler { return l }

func (l *takenLog) WithGroup(string) slog.Handler { return l }

func (l *takenLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "configuration applied" {
		return nil
	}
	t := took{at: r.Time}
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "digest":
			t.digest = a.Value.String()
		case "errors":
			t.errors = a.Value.Int64()
		}
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken = append(l.taken, t)
	return nil
}

func (l *takenLog) all() []took {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.taken)
}

// sequenceSum is what the sequences came to.
type sequenceSum struct {
	sync.Mutex
	changes, taken int
	after          []time.Duration
	late           map[string]time.Duration // by form
	stalls         []stall
}

// stall is for how long this process got no processor, when that was over.
type stall struct {
	over time.Time
	long time.Duration
}

// beat notes stalls: on a busy machine they are nobody's fault.
func (s *sequenceSum) beat(stop <-chan struct{}) {
	const every = 10 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		now := time.Now()
		if late := now.Sub(last) - every; late > every {
			s.Lock()
			s.stalls = append(s.stalls, stall{now, late})
			s.Unlock()
		}
		last = now
	}
}

// stalled is how much of the time since then was lost to stalls.
func (s *sequenceSum) stalled(since time.Time) (sum time.Duration) {
	s.Lock()
	defer s.Unlock()
	for _, one := range s.stalls {
		if one.over.After(since) {
			sum += one.long
		}
	}
	return sum
}

func (s *sequenceSum) middle() time.Duration {
	slices.Sort(s.after)
	return s.after[len(s.after)/2]
}

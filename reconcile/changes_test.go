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
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

var sequences = flag.Int("changes.sequences", 0, "the number of sequences in TestConfigurationChanges, each change applied within 2 s; 0: a few, without that limit")

// TestConfigurationChanges changes config directories at random under running loops, in each form
// in which operators keep them. If the form marks when a change is complete, the loop must never
// apply an incomplete state; otherwise it must apply only states that were stable for a moment.
// The loop must apply the last state, and confirm the removal of the images that it lacks.
func TestConfigurationChanges(t *testing.T) {
	t.Parallel()
	n, most := 20, 20
	if race.Enabled {
		n = len(forms)
	}
	if *sequences > 0 {
		n, most = *sequences, 40
	}
	all := changeStats{latest: map[string]time.Duration{}}
	stop := make(chan struct{})
	var beats, wait sync.WaitGroup
	beats.Go(func() { all.measureStalls(stop) })
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
	if len(all.delays) == 0 {
		return // -run selected none, or all failed
	}
	t.Logf("%d sequences with %d changes; %d of them were applied; the last one took %v at most (%v), the median is %v; %d stalls of the process",
		n, all.changes, all.applied, slices.Max(all.delays), all.latest, all.median(), len(all.stalls))
}

// content is the content of a config directory: the text of each file by its path.
type content map[string]string

// sequence is a sequence of changes to one config directory, with a loop that reads it.
type sequence struct {
	*rand.Rand
	t      *testing.T
	form   form
	root   string // a folder of its own
	conf   string // the config directory
	loader *load.Loader
	l      *looping
	log    *appliedLog
	repos  repos
	all    *changeStats

	count    int
	complete map[string]content  // the complete contents, by config digest
	images   map[string][]string // the declared images, by config digest
	states   []dirState          // of a form that does not mark complete changes
	now      content             // the current content
	ended    time.Time           // the end of the last change
	begun    []beginning         // of each change
	changes  int
}

// one is true with a probability of 1/in.
func (s *sequence) one(in int) bool { return s.IntN(in) == 0 }

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// beginning is when a change of the directory began, and the content that it leads to.
type beginning struct {
	to content
	at time.Time
}

// dirState is a state of the directory, with the times of the change that led to it.
type dirState struct {
	digest string
	began  time.Time
	ended  time.Time
}

func runSequence(t *testing.T, f form, seed uint64, all *changeStats) {
	s := &sequence{
		Rand: rand.New(rand.NewPCG(seed, 5)), t: t, form: f, all: all, root: t.TempDir(), loader: load.NewLoader(),
		complete: map[string]content{}, images: map[string][]string{}, log: &appliedLog{},
	}
	s.change(f.start)
	s.run()
	s.l.until("the first configuration applied", func(v *status.View) bool { return v.Config.Digest == s.digest(s.now) })
	for range 3 + s.IntN(6) {
		s.change(pick(s.Rand, f.ops...))
		if s.one(2) {
			s.l.rounds(s.IntN(5))
		}
	}
	delay := s.awaitLast()
	if s.one(2) {
		s.awaitRemovals()
	}
	s.checkApplied()
	all.Lock()
	defer all.Unlock()
	all.latest[f.name] = max(all.latest[f.name], delay)
	all.changes, all.applied, all.delays = all.changes+s.changes, all.applied+len(s.log.all()), append(all.delays, delay)
}

// run starts the loop of a node without disks.
func (s *sequence) run() {
	log := slog.New(s.log)
	l := NewLoop(New(fetch.Client{}, nil, log, false), LoopOptions{Dir: s.conf, Interval: 100 * time.Millisecond, Node: "node1", Log: log})
	ctx, stop := context.WithCancel(s.t.Context())
	s.l = &looping{Loop: l, t: s.t, stop: stop, ended: make(chan error, 1)}
	go func() { s.l.ended <- l.Run(ctx) }()
	s.t.Cleanup(func() { s.l.end() })
}

// change does one change, and records its times.
func (s *sequence) change(op func(*sequence)) {
	s.changes++
	before, began := s.now, time.Now()
	op(s)
	if !maps.Equal(before, s.now) {
		s.begun = append(s.begun, beginning{s.now, began})
	}
	s.ended = time.Now()
}

// fresh returns a new complete content, with images that no other content has.
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
	s.complete[s.digest(c)] = c
	return c
}

// digest returns the config digest of a content, "" if the content is invalid.
func (s *sequence) digest(c content) string {
	var snapshot configdir.Snapshot
	for _, name := range slices.Sorted(maps.Keys(c)) {
		snapshot.Files = append(snapshot.Files, configdir.File{Path: name, Data: []byte(c[name])})
	}
	r := s.loader.Load(s.t.Context(), snapshot)
	s.images[r.Digest] = slices.Collect(maps.Keys(r.Config.Images))
	return r.Digest
}

// awaitLast waits until the last state is applied, and returns the time from the change until
// then.
func (s *sequence) awaitLast() time.Duration {
	want := s.digest(s.now)
	s.l.until("the last state applied", func(v *status.View) bool { return v.Fault == "" && v.Config.Digest == want })
	applied := s.log.all()
	delay := max(0, applied[len(applied)-1].at.Sub(s.ended))
	if stalled := s.all.stalled(s.ended); *sequences > 0 && delay-stalled > 2*time.Second {
		s.t.Errorf("the last change was applied after %v; the process was stalled for %v of that", delay, stalled)
	}
	return delay
}

// checkApplied compares the applied configurations with the states of the directory.
func (s *sequence) checkApplied() {
	for _, a := range s.log.all() {
		switch {
		case s.form.marked && s.complete[a.digest] == nil:
			s.t.Errorf("%s was applied (errors: %v), and was never complete", a.digest, a.errors)
		case !s.form.marked && !s.wasStable(a.digest):
			s.t.Errorf("%s was applied (errors: %v), and was never stable for %v", a.digest, a.errors, configdir.StableFor)
		}
	}
}

// wasStable reports whether two reads that are far enough apart may have found a state. Both may
// have missed other states in between.
func (s *sequence) wasStable(digest string) bool {
	var first time.Time
	for i, state := range s.states {
		if state.digest != digest {
			continue
		}
		if first.IsZero() {
			first = state.began
		}
		if i+1 == len(s.states) || s.states[i+1].ended.Sub(first) >= configdir.StableFor {
			return true
		}
	}
	return false
}

// awaitRemovals waits until the removal of the images that the last state lacks is confirmed, and
// checks that this takes configdir.RemovalDelay.
func (s *sequence) awaitRemovals() {
	applied := s.log.all()
	if len(applied) < 2 {
		return
	}
	final := s.l.View().Desired.Config.Images
	var removed []string
	for _, name := range s.images[applied[len(applied)-2].digest] {
		if _, declared := final[name]; !declared {
			removed = append(removed, name)
		}
	}
	v := s.l.until(fmt.Sprint("the removal confirmed of ", removed), func(v *status.View) bool {
		return !slices.ContainsFunc(removed, func(name string) bool { return !v.Desired.Removed(name) })
	})
	waited := time.Since(s.cause(applied[len(applied)-1]))
	if len(removed) > 0 && waited < configdir.RemovalDelay {
		s.t.Errorf("the removal of %v was confirmed after %v", removed, waited)
	}
	if late := time.Since(s.ended) - configdir.RemovalDelay - s.all.stalled(s.ended); *sequences > 0 && late > 2*time.Second {
		s.t.Errorf("the removal of %v was confirmed only after %v", removed, late+configdir.RemovalDelay)
	}
	if got, want := v.Config.Digest, s.digest(s.now); got != want {
		s.t.Errorf("%s is applied at the end, want %s", got, want)
	}
}

// cause returns the beginning of the change that led to the last applied configuration. Later
// changes may have been reverted before the next read.
func (s *sequence) cause(last applied) (at time.Time) {
	for _, b := range s.begun {
		if maps.Equal(b.to, s.now) && b.at.Before(last.at) {
			at = b.at
		}
	}
	return at
}

// applied is a configuration that a loop applied.
type applied struct {
	at     time.Time
	digest string
	errors int64
}

// appliedLog is a log handler that records the configurations that a loop applied. The test could
// miss some of them in the views.
type appliedLog struct {
	mu      sync.Mutex
	applied []applied
}

func (l *appliedLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *appliedLog) WithAttrs([]slog.Attr) slog.Handler { return l }

func (l *appliedLog) WithGroup(string) slog.Handler { return l }

func (l *appliedLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "configuration applied" {
		return nil
	}
	one := applied{at: r.Time}
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "digest":
			one.digest = a.Value.String()
		case "errors":
			one.errors = a.Value.Int64()
		}
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.applied = append(l.applied, one)
	return nil
}

func (l *appliedLog) all() []applied {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.applied)
}

// changeStats sums up the sequences.
type changeStats struct {
	sync.Mutex
	changes, applied int
	delays           []time.Duration          // of the last change of each sequence
	latest           map[string]time.Duration // the longest delay, by form
	stalls           []stall
}

// stall is a time for which this process got no processor.
type stall struct {
	end    time.Time
	length time.Duration
}

// measureStalls records stalls until stop is closed: on a busy machine they explain delays.
func (s *changeStats) measureStalls(stop <-chan struct{}) {
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

// stalled returns the sum of all stalls that ended after since.
func (s *changeStats) stalled(since time.Time) (sum time.Duration) {
	s.Lock()
	defer s.Unlock()
	for _, one := range s.stalls {
		if one.end.After(since) {
			sum += one.length
		}
	}
	return sum
}

func (s *changeStats) median() time.Duration {
	slices.Sort(s.delays)
	return s.delays[len(s.delays)/2]
}

package configdir

import (
	"context"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/files"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

var errMissing = fmt.Errorf("read config directory: %w", fs.ErrNotExist)

// plain returns a snapshot of one file that was written in place.
func plain(data string) Snapshot {
	return Snapshot{Files: []File{{Path: "a.yaml", Data: []byte(data)}}}
}

func busy(s Snapshot) Snapshot {
	s.Busy = true
	return s
}

// observation is one read, at milliseconds from the start, and the expected decision:
// "apply", "retry after 250ms", "" (nothing), or a part of the text of a fault.
type observation struct {
	at   int
	read any // schema.Snapshot or error
	want string
}

func TestDebouncer(t *testing.T) {
	const changing = "been changing for "
	tests := map[string][]observation{
		"files written in place are applied when stable": {
			{0, plain("1"), "retry after 250ms"}, {249, plain("1"), "retry after 50ms"}, {250, plain("1"), "apply"},
			{10000, plain("1"), ""}, {20000, plain("2"), "retry after 250ms"}, {20250, plain("2"), "apply"}},
		"a write restarts the interval": {
			{0, plain("1"), "retry after 250ms"}, {200, plain("12"), "retry after 250ms"}, {260, plain("12"), "retry after 190ms"},
			{440, plain("123"), "retry after 250ms"}, {690, plain("123"), "apply"}},
		"a change that was reverted is not applied": {
			{0, plain("1"), "retry after 250ms"}, {250, plain("1"), "apply"}, {1000, plain("half"), "retry after 250ms"}, {1100, plain("1"), ""},
			{1350, plain("half"), "retry after 250ms"}, {1600, plain("half"), "apply"}},
		"each swap is applied when it is stable": {
			{0, plain("1"), "retry after 250ms"}, {250, plain("1"), "apply"}, {260, plain("2"), "retry after 250ms"}, {270, plain("3"), "retry after 250ms"}, {520, plain("3"), "apply"}},
		"a symlink that is missing for a moment": {
			{0, plain("1"), "retry after 250ms"}, {250, plain("1"), "apply"}, {1000, errMissing, "retry after 250ms"}, {1100, plain("2"), "retry after 250ms"}, {1350, plain("2"), "apply"}},
		"the lock of git delays the content": {
			{0, plain("1"), "retry after 250ms"}, {250, plain("1"), "apply"}, {1000, busy(plain("1")), "retry after 1s"}, {1100, busy(plain("half")), "retry after 1s"},
			{9000, busy(plain("half")), "retry after 1s"}, {9100, plain("2"), "retry after 250ms"}, {9350, plain("2"), "apply"}},
		"content that was stable during the lock is applied when the lock ends": {
			{0, busy(plain("1")), "retry after 1s"}, {1000, plain("1"), "apply"}},
		"a short run of git is no fault": {
			{0, plain("1"), "retry after 250ms"}, {250, plain("1"), "apply"}, {1000, busy(plain("2")), "retry after 1s"},
			{1100, plain("2"), "retry after 150ms"}, {1250, plain("2"), "apply"}},
		"a long run of git is no fault": {
			{0, busy(plain("1")), "retry after 1s"}, {10000, busy(plain("2")), "retry after 1s"}, {20000, busy(plain("3")), "retry after 1s"},
			{20100, plain("4"), "retry after 250ms"}, {20350, plain("4"), "apply"}},
		"the lock delays the content as long as git writes": {
			{0, busy(plain("1")), "retry after 1s"}, {25000, busy(plain("2")), "retry after 1s"}, {50000, busy(plain("3")), "retry after 1s"},
			{79999, busy(plain("3")), "retry after 1s"}, {80000, busy(plain("3")), "apply"}},
		"a left-over lock delays the content once": {
			{0, busy(plain("1")), "retry after 1s"}, {29999, busy(plain("1")), "retry after 1s"}, {30000, busy(plain("1")), "apply"},
			{40000, busy(plain("2")), "retry after 250ms"}, {40250, busy(plain("2")), "apply"}, {41000, plain("2"), ""}, {42000, busy(plain("2")), "retry after 1s"}},
		"content that never is stable is never applied": {
			{0, plain("1"), "retry after 250ms"}, {250, plain("2"), "retry after 250ms"}, {4999, plain("3"), "retry after 250ms"}, {5000, plain("4"), changing + "5s"},
			{6000, plain("5"), changing + "6s"}, {7000, plain("6"), changing + "7s"}, {8000, plain("6"), "apply"}, {9000, plain("7"), "retry after 250ms"}},
		"a directory that often cannot be read": {
			{0, errMissing, "retry after 250ms"}, {200, plain("1"), "retry after 250ms"}, {400, errMissing, "retry after 250ms"}, {5000, plain("1"), "been changing for 5s"},
			{6000, plain("1"), "apply"}},
		"a missing directory is a fault and changes nothing": {
			{0, plain("1"), "retry after 250ms"}, {250, plain("1"), "apply"}, {1000, errMissing, "retry after 250ms"}, {1250, errMissing, "file does not exist"},
			{11250, errMissing, "file does not exist"}, {12000, plain("1"), ""}},
		"a directory that is missing for a moment is no fault": {
			{0, plain("1"), "retry after 250ms"}, {250, plain("1"), "apply"}, {1000, errMissing, "retry after 250ms"}, {1100, plain("2"), "retry after 250ms"},
			{1350, plain("2"), "apply"}},
		"an empty directory is a fault": {
			{0, Snapshot{}, "retry after 250ms"}, {250, Snapshot{}, errEmpty.Error()}},
	}
	for name, observations := range tests {
		t.Run(name, func(t *testing.T) {
			var s Debouncer
			start := time.Now()
			for _, g := range observations {
				at := start.Add(time.Duration(g.at) * time.Millisecond)
				snap, _ := g.read.(Snapshot)
				err, _ := g.read.(error)
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
	case want == "apply":
		return v == Decision{Apply: true}
	case strings.HasPrefix(want, "retry after "):
		return v.Fault == nil && !v.Apply && "retry after "+v.RetryAfter.String() == want
	}
	return v.Fault != nil && !v.Apply && strings.Contains(v.Fault.Error(), want)
}

// TestDebouncerMeasuresBetweenSlowReads: slow reads show stable content only if enough
// time passed between the end of one and the beginning of the other.
func TestDebouncerMeasuresBetweenSlowReads(t *testing.T) {
	var s Debouncer
	at := func(ms int) time.Time { return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond) }
	if v := s.Observe(at(0), at(300), plain("1"), nil); !v.is("retry after 250ms") {
		t.Errorf("first read: %+v", v)
	}
	if v := s.Observe(at(350), at(650), plain("1"), nil); !v.is("retry after 50ms") {
		t.Errorf("a read that began 50 ms later: %+v", v)
	}
	if v := s.Observe(at(700), at(1000), plain("1"), nil); !v.is("apply") {
		t.Errorf("a read that began 400 ms later: %+v", v)
	}
}

// TestDebouncerLatency simulates writes at all intervals and adds up the delays that
// the Debouncer returns: less than half a second passes from the last
// write until Apply, and the number of reads stays small.
func TestDebouncerLatency(t *testing.T) {
	const read = 20 * time.Millisecond // reading 1,000 files takes half of that
	for every := time.Millisecond; every < 240*time.Millisecond; every += 3 * time.Millisecond {
		var s Debouncer
		now := time.Unix(0, 0)
		var wrote, next time.Time
		reads, writes := 0, 10
		for applied := false; !applied; {
			if writes > 0 && (next.IsZero() || now.Add(every).Before(next)) {
				now = now.Add(every)
				writes--
				wrote = now
				notified := now.Add(coalesceFor)
				next = notified.Add(s.DelayAfterEvent(notified))
				continue
			}
			began := next
			now = began.Add(read)
			reads++
			v := s.Observe(began, now, plain(fmt.Sprint(writes)), nil)
			applied, next = v.Apply && writes == 0, now.Add(v.RetryAfter)
			if v.Apply && writes > 0 {
				t.Fatalf("a write every %v: applied in between", every)
			}
		}
		if latency := now.Sub(wrote); latency >= 400*time.Millisecond {
			t.Errorf("a write every %v: applied %v after the last", every, latency)
		}
		if limit := 13 + int(10*every/readGap); reads > limit {
			t.Errorf("a write every %v: %d reads", every, reads)
		}
	}
}

func TestDelayAfterEvent(t *testing.T) {
	var s Debouncer
	start := time.Unix(1000, 0)
	if got := s.DelayAfterEvent(start); got != 0 {
		t.Errorf("before the first read: wait %v", got)
	}
	s.Observe(start, start, plain("1"), nil)
	if got := s.DelayAfterEvent(start.Add(20 * time.Millisecond)); got != readGap-20*time.Millisecond {
		t.Errorf("soon after a read: wait %v", got)
	}
	for i := range 6 {
		start = start.Add(time.Second)
		s.Observe(start, start, plain(fmt.Sprint(i)), nil)
	}
	if got := s.DelayAfterEvent(start); got != slowReadGap {
		t.Errorf("after many changes: wait %v", got)
	}
}

// applyChanges is the loop that Watch and Debouncer are made for. It sends each snapshot that
// may be applied to the channel.
func applyChanges(ctx context.Context, dir string, applied chan<- Snapshot) {
	var watch sync.WaitGroup
	defer watch.Wait()
	notify := make(chan struct{}, 1)
	watch.Go(func() { Watch(ctx, dir, never, notify, func(error) {}) })
	var s Debouncer
	next := time.NewTimer(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-notify:
			next.Reset(s.DelayAfterEvent(time.Now()))
		case <-next.C:
			began := time.Now()
			snap, err := Read(dir)
			v := s.Observe(began, time.Now(), snap, err)
			if v.Apply {
				applied <- snap
			}
			if v.RetryAfter > 0 {
				next.Reset(v.RetryAfter)
			}
		}
	}
}

func startApplyingChanges(t *testing.T, dir string) <-chan Snapshot {
	applied := make(chan Snapshot, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		applyChanges(ctx, dir, applied)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return applied
}

// nextApplied returns the next applied snapshot and the content that all its files share.
func nextApplied(t *testing.T, applied <-chan Snapshot) (Snapshot, string) {
	t.Helper()
	var s Snapshot
	select {
	case s = <-applied:
	case <-time.After(waitLimit):
		t.Fatal("nothing was applied")
	}
	first := string(s.Files[0].Data)
	for _, f := range s.Files {
		if string(f.Data) != first || f.Err != nil {
			t.Fatalf("applied a mix: %s is %q and %s is %q (%v)", s.Files[0].Path, first, f.Path, f.Data, f.Err)
		}
	}
	return s, first
}

// TestGitCheckoutIsAppliedAsAWhole switches a checkout between commits in place: each applied
// snapshot is one commit, and the last one is the right one.
func TestGitCheckoutIsAppliedAsAWhole(t *testing.T) {
	need.Programs(t, "git")
	repo := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", repo, "-c", "user.name=t", "-c", "user.email=t@t", "-c", "advice.detachedHead=false"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	git("init", "-q")
	sizes := map[string]int{"one": 100, "two": 200, "three": 150}
	for _, branch := range []string{"one", "two", "three"} {
		git("checkout", "-q", "--orphan", branch)
		git("rm", "-rfq", "--ignore-unmatch", ".")
		for i := range sizes[branch] {
			files.Put(t, branch, repo, "conf", fmt.Sprint(i%7), fmt.Sprintf("%d.yaml", i))
		}
		git("add", "-A")
		git("commit", "-qm", branch)
	}
	git("checkout", "-q", "one")
	dir := filepath.Join(repo, "conf")
	applied := startApplyingChanges(t, dir)
	for i, branch := range []string{"one", "two", "three", "one", "three", "two"} {
		if i > 0 {
			git("checkout", "-q", branch)
		}
		s, got := nextApplied(t, applied)
		if got != branch || len(s.Files) != sizes[branch] {
			t.Fatalf("after the checkout of %s with %d files: applied %s with %d", branch, sizes[branch], got, len(s.Files))
		}
	}
}

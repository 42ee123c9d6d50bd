package configdir

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/files"
)

// follow is a loop as Watch and Settler are made for. What it takes goes to
// takes.
func follow(ctx context.Context, dir string, takes chan<- Snapshot) {
	var watch sync.WaitGroup
	defer watch.Wait()
	pokes := make(chan struct{}, 1)
	watch.Go(func() { Watch(ctx, dir, never, pokes, func(error) {}) })
	var s Debouncer
	next := time.NewTimer(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-pokes:
			next.Reset(s.DelayAfterEvent(time.Now()))
		case <-next.C:
			began := time.Now()
			snap, err := Read(dir)
			v := s.Observe(began, time.Now(), snap, err)
			if v.Apply {
				takes <- snap
			}
			if v.RetryAfter > 0 {
				next.Reset(v.RetryAfter)
			}
		}
	}
}

func following(t *testing.T, dir string) <-chan Snapshot {
	takes := make(chan Snapshot, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		follow(ctx, dir, takes)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return takes
}

// nextTake returns the next snapshot, all of whose files say the same, and
// what they say.
func nextTake(t *testing.T, takes <-chan Snapshot) (Snapshot, string) {
	t.Helper()
	var s Snapshot
	select {
	case s = <-takes:
	case <-time.After(waitLimit):
		t.Fatal("nothing was taken")
	}
	first := string(s.Files[0].Data)
	for _, f := range s.Files {
		if string(f.Data) != first || f.Err != nil {
			t.Fatalf("took a mix: %s says %q and %s says %q (%v)", s.Files[0].Path, first, f.Path, f.Data, f.Err)
		}
	}
	return s, first
}

// TestFollowGitCheckout switches a checkout between commits in place: what
// is taken is always a commit, and in the end the right one.
func TestFollowGitCheckout(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
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
	takes := following(t, dir)
	for i, branch := range []string{"one", "two", "three", "one", "three", "two"} {
		if i > 0 {
			git("checkout", "-q", branch)
		}
		s, got := nextTake(t, takes)
		if got != branch || len(s.Files) != sizes[branch] {
			t.Fatalf("after the checkout of %s with %d files: took %s with %d", branch, sizes[branch], got, len(s.Files))
		}
	}
}

package reconcile

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/schema"
)

// deadline is for what happens within milliseconds unless it never does.
const deadline = 20 * time.Second

// never is how often Watch mends itself in tests of events alone.
const never = time.Hour

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put writes a file in place, and the folders above it.
func put(t testing.TB, data string, elem ...string) {
	t.Helper()
	at := filepath.Join(elem...)
	must(t, os.MkdirAll(filepath.Dir(at), 0o755))
	must(t, os.WriteFile(at, []byte(data), 0o644))
}

func remove(t testing.TB, elem ...string) {
	t.Helper()
	must(t, os.RemoveAll(filepath.Join(elem...)))
}

func rename(t testing.TB, from, to string) {
	t.Helper()
	must(t, os.Rename(from, to))
}

// swapLink points the link at to somewhere else in one step.
func swapLink(t testing.TB, target, link string) {
	t.Helper()
	must(t, os.Symlink(target, link+"_tmp"))
	rename(t, link+"_tmp", link)
}

// watching is a running Watch.
type watching struct {
	dir     string
	pokes   chan struct{}
	reports chan error
}

// watch starts Watch, which ends with the test, and waits until it stands.
func watch(t *testing.T, dir string, every time.Duration) watching {
	w := watching{dir, make(chan struct{}, 1), make(chan error, 100)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Watch(ctx, dir, every, w.pokes, func(err error) { w.reports <- err })
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	w.poked(t)
	return w
}

func (w watching) poked(t *testing.T) {
	t.Helper()
	select {
	case <-w.pokes:
	case <-time.After(deadline):
		t.Fatal("no poke")
	}
}

// quiet waits until earlier changes have had their pokes, so that the next
// poke is of the next change.
func (w watching) quiet() {
	for {
		select {
		case <-w.pokes:
		case <-time.After(5 * collectFor):
			return
		}
	}
}

// until waits for pokes until a look shows want. Nothing but want and the
// states on the way may be seen.
func (w watching) until(t *testing.T, want string, onTheWay ...string) {
	t.Helper()
	for {
		w.poked(t)
		got := look(w.dir)
		if got == want {
			return
		}
		ok := len(onTheWay) == 0
		for _, s := range onTheWay {
			ok = ok || s == got
		}
		if !ok {
			t.Errorf("saw %q on the way to %q", got, want)
		}
	}
}

// look shows what is in dir: "a.yaml=1 b.yaml=1", or the word "fault".
func look(dir string) string {
	s, err := schema.ReadDir(dir)
	if err != nil {
		return "fault"
	}
	var out []string
	for _, f := range s.Files {
		out = append(out, fmt.Sprintf("%s=%s", f.Path, f.Data))
	}
	return strings.Join(out, " ")
}

// TestWatch makes changes one after the other, as the tools do that make
// them, and waits for each to be poked and seen.
func TestWatch(t *testing.T) {
	type step struct {
		does string
		do   func(t *testing.T, dir string)
		want string
	}
	atomicSave := func(data string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			put(t, data, dir, ".a.yaml.tmp123")
			rename(t, dir+"/.a.yaml.tmp123", dir+"/a.yaml")
		}
	}
	vimSave := func(data string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			put(t, "", dir, ".a.yaml.swp")
			put(t, "", dir, "4913")
			remove(t, dir, "4913")
			rename(t, dir+"/a.yaml", dir+"/a.yaml~")
			put(t, data, dir, "a.yaml")
			remove(t, dir, "a.yaml~")
			remove(t, dir, ".a.yaml.swp")
		}
	}
	again := func(data string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			remove(t, dir)
			put(t, data, dir, "a.yaml")
		}
	}
	away := func(data string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			rename(t, dir, dir+".away"+data)
			put(t, data, dir, "a.yaml")
		}
	}
	write := func(data, name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) { put(t, data, dir, name) }
	}
	part := func(data string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			f, err := os.OpenFile(dir+"/a.yaml", os.O_WRONLY|os.O_APPEND, 0)
			must(t, err)
			defer f.Close()
			_, err = f.WriteString(data)
			must(t, err)
		}
	}
	tests := map[string][]step{
		"atomic save": {{"saves", atomicSave("2"), "a.yaml=2"}, {"saves again", atomicSave("3"), "a.yaml=3"}},
		"vim":         {{"saves", vimSave("2"), "a.yaml=2"}, {"saves again", vimSave("3"), "a.yaml=3"}},
		"in place": {{"writes", write("2", "a.yaml"), "a.yaml=2"}, {"writes again", write("3", "a.yaml"), "a.yaml=3"},
			{"writes a part", part("4"), "a.yaml=34"}, {"and another", part("5"), "a.yaml=345"},
			{"removes", func(t *testing.T, dir string) { remove(t, dir, "a.yaml") }, ""}},
		"folders": {{"makes one", write("2", "s/b.yaml"), "a.yaml=1 s/b.yaml=2"}, {"writes there", write("3", "s/b.yaml"), "a.yaml=1 s/b.yaml=3"},
			{"makes deep ones", write("4", "s/t/u/v/c.yaml"), "a.yaml=1 s/b.yaml=3 s/t/u/v/c.yaml=4"},
			{"writes there", write("5", "s/t/u/v/c.yaml"), "a.yaml=1 s/b.yaml=3 s/t/u/v/c.yaml=5"},
			{"moves them", func(t *testing.T, dir string) { rename(t, dir+"/s/t", dir+"/t") }, "a.yaml=1 s/b.yaml=3 t/u/v/c.yaml=5"},
			{"writes there", write("6", "t/u/v/c.yaml"), "a.yaml=1 s/b.yaml=3 t/u/v/c.yaml=6"}},
		"links to hidden folders": {
			{"links", func(t *testing.T, dir string) { put(t, "2", dir, ".v1/x.yaml"); swapLink(t, ".v1", dir+"/now") }, "a.yaml=1 now/x.yaml=2"},
			{"writes there", write("3", ".v1/x.yaml"), "a.yaml=1 now/x.yaml=3"},
			{"swaps", func(t *testing.T, dir string) { put(t, "4", dir, ".v2/x.yaml"); swapLink(t, ".v2", dir+"/now") }, "a.yaml=1 now/x.yaml=4"},
			{"writes there", write("5", ".v2/x.yaml"), "a.yaml=1 now/x.yaml=5"}},
		"the directory itself": {{"is made again", again("2"), "a.yaml=2"}, {"and again", again("3"), "a.yaml=3"}, {"is written to", write("4", "a.yaml"), "a.yaml=4"},
			{"is renamed away", away("5"), "a.yaml=5"}, {"and again", away("6"), "a.yaml=6"}, {"is written to", write("7", "a.yaml"), "a.yaml=7"},
			{"is removed", func(t *testing.T, dir string) { remove(t, dir) }, "fault"}, {"comes back", write("8", "a.yaml"), "a.yaml=8"},
			{"loses what is above it", func(t *testing.T, dir string) { remove(t, filepath.Dir(dir)) }, "fault"}, {"gets it back", write("9", "a.yaml"), "a.yaml=9"}},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "above", "conf")
			put(t, "1", dir, "a.yaml")
			w := watch(t, dir, never)
			for _, s := range steps {
				w.quiet()
				s.do(t, dir)
				w.until(t, s.want)
				if t.Failed() {
					t.Fatalf("%s: not seen", s.does)
				}
			}
		})
	}
}

// TestWatchConfigMap publishes as kubelet's AtomicWriter does.
func TestWatchConfigMap(t *testing.T) {
	dir := t.TempDir()
	w := watch(t, dir, never)
	publish := func(n int) {
		old, _ := os.Readlink(dir + "/..data")
		now := fmt.Sprintf("..2026_11_20_09_00_00.%09d", n)
		for _, name := range []string{"a.yaml", "b.yaml", fmt.Sprintf("only%d.yaml", n)} {
			put(t, fmt.Sprint(n), dir, now, name)
		}
		swapLink(t, now, dir+"/..data")
		for _, name := range []string{"a.yaml", "b.yaml", fmt.Sprintf("only%d.yaml", n)} {
			os.Symlink("..data/"+name, dir+"/"+name) // fails where it is there
		}
		os.Remove(fmt.Sprintf("%s/only%d.yaml", dir, n-1)) // fails the first time
		if old != "" {
			remove(t, dir, old)
		}
	}
	generation := func(n int) string { return fmt.Sprintf("a.yaml=%d b.yaml=%d only%d.yaml=%d", n, n, n, n) }
	for n := range 5 {
		w.quiet()
		publish(n)
		w.until(t, generation(n), "", generation(n-1))
	}
}

// TestWatchGitSync swaps the link to a worktree, where the config directory
// is the link, and where it is a folder behind it.
func TestWatchGitSync(t *testing.T) {
	for _, sub := range []string{"", "clusters/edge"} {
		t.Run("config in "+sub, func(t *testing.T) {
			root := t.TempDir()
			publish := func(n int) {
				old, _ := os.Readlink(root + "/current")
				put(t, fmt.Sprint(n), root, fmt.Sprint(".worktrees/", n), sub, "a.yaml")
				put(t, fmt.Sprint(n), root, fmt.Sprint(".worktrees/", n), sub, "b.yaml")
				swapLink(t, fmt.Sprint(".worktrees/", n), root+"/current")
				if n%2 == 0 { // else the swap must do as the only event
					remove(t, root, old)
				}
			}
			generation := func(n int) string { return fmt.Sprintf("a.yaml=%d b.yaml=%d", n, n) }
			put(t, "", root, ".worktrees/none")
			must(t, os.Symlink(".worktrees/none", root+"/current"))
			publish(0)
			w := watch(t, filepath.Join(root, "current", sub), never)
			for n := range 5 {
				w.quiet()
				publish(n + 1)
				w.until(t, generation(n+1), generation(n))
			}
			w.quiet()
			put(t, "x", w.dir, "b.yaml") // in place, in the newest worktree
			w.until(t, "a.yaml=5 b.yaml=x", generation(5), "a.yaml=5 b.yaml=")
		})
	}
}

// TestWatchGitLock: of what git does for itself, only the end of its lock is
// a poke. Without one the settling would wait for the next periodic look.
func TestWatchGitLock(t *testing.T) {
	repo := t.TempDir()
	put(t, "1", repo, "conf/a.yaml")
	put(t, "", repo, ".git/index.lock")
	w := watch(t, repo+"/conf", never)
	w.quiet()
	rename(t, repo+"/.git/index.lock", repo+"/.git/index")
	w.poked(t)
}

// TestWatchNoDirectory starts before the directory, and what is above it, exists.
func TestWatchNoDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b", "conf")
	w := watch(t, dir, never)
	w.quiet()
	put(t, "1", dir, "x.yaml")
	w.until(t, "x.yaml=1")
}

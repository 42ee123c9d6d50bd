package configdir

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/seed-26586806/backing-image-manager/internal/testx/files"
)

// never is the repair interval of Watch in tests of events only.
const never = time.Hour

// waitLimit is how long a test waits for something that usually happens within milliseconds.
const waitLimit = time.Minute

// watching is a running Watch.
type watching struct {
	dir           string
	notifications chan struct{}
	reports       chan error
}

// watch starts Watch, which ends with the test, and waits for its first notification.
func watch(t *testing.T, dir string, repairEvery time.Duration) watching {
	w := watching{dir, make(chan struct{}, 1), make(chan error, 100)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Watch(ctx, dir, repairEvery, w.notifications, func(err error) { w.reports <- err })
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	w.next(t)
	return w
}

func (w watching) next(t *testing.T) {
	t.Helper()
	select {
	case <-w.notifications:
	case <-time.After(waitLimit):
		t.Fatal("no notification")
	}
}

// quiet waits until the notifications of earlier changes have arrived, so that the next
// one belongs to the next change.
func (w watching) quiet() {
	for {
		select {
		case <-w.notifications:
		case <-time.After(5 * coalesceFor):
			return
		}
	}
}

// until reads after each notification until the content is want. Every other content must be
// one of between; none given means any.
func (w watching) until(t *testing.T, want string, between ...string) {
	t.Helper()
	for {
		w.next(t)
		got := readText(w.dir)
		if got == want {
			return
		}
		ok := len(between) == 0
		for _, s := range between {
			ok = ok || s == got
		}
		if !ok {
			t.Errorf("read %q before %q", got, want)
		}
	}
}

// readText returns the content of dir, such as "a.yaml=1 b.yaml=1", or the word "error".
func readText(dir string) string {
	s, err := Read(dir)
	if err != nil {
		return "error"
	}
	var out []string
	for _, f := range s.Files {
		out = append(out, fmt.Sprintf("%s=%s", f.Path, f.Data))
	}
	return strings.Join(out, " ")
}

// TestWatchNoticesEachChange imitates the changes of common tools, one after the other,
// and waits for the notification of each.
func TestWatchNoticesEachChange(t *testing.T) {
	type step struct {
		does string
		do   func(t *testing.T, dir string)
		want string
	}
	atomicSave := func(data string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			files.Put(t, data, dir, ".a.yaml.tmp123")
			files.Rename(t, dir+"/.a.yaml.tmp123", dir+"/a.yaml")
		}
	}
	vimSave := func(data string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			files.Put(t, "", dir, ".a.yaml.swp")
			files.Put(t, "", dir, "4913")
			files.Remove(t, dir, "4913")
			files.Rename(t, dir+"/a.yaml", dir+"/a.yaml~")
			files.Put(t, data, dir, "a.yaml")
			files.Remove(t, dir, "a.yaml~")
			files.Remove(t, dir, ".a.yaml.swp")
		}
	}
	recreate := func(data string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			files.Remove(t, dir)
			files.Put(t, data, dir, "a.yaml")
		}
	}
	replace := func(data string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			files.Rename(t, dir, dir+".away"+data)
			files.Put(t, data, dir, "a.yaml")
		}
	}
	write := func(data, name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) { files.Put(t, data, dir, name) }
	}
	appendText := func(data string) func(*testing.T, string) {
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
			{"appends", appendText("4"), "a.yaml=34"}, {"appends again", appendText("5"), "a.yaml=345"},
			{"removes", func(t *testing.T, dir string) { files.Remove(t, dir, "a.yaml") }, ""}},
		"folders": {{"creates one", write("2", "s/b.yaml"), "a.yaml=1 s/b.yaml=2"}, {"writes there", write("3", "s/b.yaml"), "a.yaml=1 s/b.yaml=3"},
			{"creates nested ones", write("4", "s/t/u/v/c.yaml"), "a.yaml=1 s/b.yaml=3 s/t/u/v/c.yaml=4"},
			{"writes there", write("5", "s/t/u/v/c.yaml"), "a.yaml=1 s/b.yaml=3 s/t/u/v/c.yaml=5"},
			{"moves them", func(t *testing.T, dir string) { files.Rename(t, dir+"/s/t", dir+"/t") }, "a.yaml=1 s/b.yaml=3 t/u/v/c.yaml=5"},
			{"writes there", write("6", "t/u/v/c.yaml"), "a.yaml=1 s/b.yaml=3 t/u/v/c.yaml=6"}},
		"links to hidden folders": {
			{"links", func(t *testing.T, dir string) {
				files.Put(t, "2", dir, ".v1/x.yaml")
				files.SwapLink(t, ".v1", dir+"/now")
			}, "a.yaml=1 now/x.yaml=2"},
			{"writes there", write("3", ".v1/x.yaml"), "a.yaml=1 now/x.yaml=3"},
			{"swaps", func(t *testing.T, dir string) {
				files.Put(t, "4", dir, ".v2/x.yaml")
				files.SwapLink(t, ".v2", dir+"/now")
			}, "a.yaml=1 now/x.yaml=4"},
			{"writes there", write("5", ".v2/x.yaml"), "a.yaml=1 now/x.yaml=5"}},
		"the directory itself": {{"is created again", recreate("2"), "a.yaml=2"}, {"is created once more", recreate("3"), "a.yaml=3"}, {"is written to", write("4", "a.yaml"), "a.yaml=4"},
			{"is renamed away", replace("5"), "a.yaml=5"}, {"is replaced again", replace("6"), "a.yaml=6"}, {"is written to", write("7", "a.yaml"), "a.yaml=7"},
			{"is removed", func(t *testing.T, dir string) { files.Remove(t, dir) }, "error"}, {"is created after that", write("8", "a.yaml"), "a.yaml=8"},
			{"is removed with its parent", func(t *testing.T, dir string) { files.Remove(t, filepath.Dir(dir)) }, "error"}, {"is created with its parent", write("9", "a.yaml"), "a.yaml=9"}},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "above", "conf")
			files.Put(t, "1", dir, "a.yaml")
			w := watch(t, dir, never)
			for _, s := range steps {
				w.quiet()
				s.do(t, dir)
				w.until(t, s.want)
				if t.Failed() {
					t.Fatalf("%s: not noticed", s.does)
				}
			}
		})
	}
}

// TestWatchConfigMap publishes like the kubelet's AtomicWriter.
func TestWatchConfigMap(t *testing.T) {
	dir := t.TempDir()
	w := watch(t, dir, never)
	publish := func(n int) {
		old, _ := os.Readlink(dir + "/..data")
		now := fmt.Sprintf("..2026_11_20_09_00_00.%09d", n)
		for _, name := range []string{"a.yaml", "b.yaml", fmt.Sprintf("only%d.yaml", n)} {
			files.Put(t, fmt.Sprint(n), dir, now, name)
		}
		files.SwapLink(t, now, dir+"/..data")
		for _, name := range []string{"a.yaml", "b.yaml", fmt.Sprintf("only%d.yaml", n)} {
			os.Symlink("..data/"+name, dir+"/"+name) // fails if it exists
		}
		os.Remove(fmt.Sprintf("%s/only%d.yaml", dir, n-1)) // fails the first time
		if old != "" {
			files.Remove(t, dir, old)
		}
	}
	generation := func(n int) string { return fmt.Sprintf("a.yaml=%d b.yaml=%d only%d.yaml=%d", n, n, n, n) }
	for n := range 5 {
		w.quiet()
		publish(n)
		w.until(t, generation(n), "", generation(n-1))
	}
}

// TestWatchGitSync swaps the symlink to a worktree. The config directory is
// the symlink, or a folder behind it.
func TestWatchGitSync(t *testing.T) {
	for _, sub := range []string{"", "clusters/edge"} {
		t.Run("config in "+sub, func(t *testing.T) {
			root := t.TempDir()
			publish := func(n int) {
				old, _ := os.Readlink(root + "/current")
				files.Put(t, fmt.Sprint(n), root, fmt.Sprint(".worktrees/", n), sub, "a.yaml")
				files.Put(t, fmt.Sprint(n), root, fmt.Sprint(".worktrees/", n), sub, "b.yaml")
				files.SwapLink(t, fmt.Sprint(".worktrees/", n), root+"/current")
				if n%2 == 0 { // otherwise the swap is the only event
					files.Remove(t, root, old)
				}
			}
			generation := func(n int) string { return fmt.Sprintf("a.yaml=%d b.yaml=%d", n, n) }
			files.Put(t, "", root, ".worktrees/none")
			must(t, os.Symlink(".worktrees/none", root+"/current"))
			publish(0)
			w := watch(t, filepath.Join(root, "current", sub), never)
			for n := range 5 {
				w.quiet()
				publish(n + 1)
				w.until(t, generation(n+1), generation(n))
			}
			w.quiet()
			files.Put(t, "x", w.dir, "b.yaml") // in place, in the newest worktree
			w.until(t, "a.yaml=5 b.yaml=x", generation(5), "a.yaml=5 b.yaml=")
		})
	}
}

// TestWatchNoticesTheEndOfGitsLock: without that notification, the Debouncer would wait for
// the next periodic read.
func TestWatchNoticesTheEndOfGitsLock(t *testing.T) {
	repo := t.TempDir()
	files.Put(t, "1", repo, "conf/a.yaml")
	for _, name := range []string{"HEAD", "config", "objects/x", "index.lock"} {
		files.Put(t, "", repo, ".git", name)
	}
	w := watch(t, repo+"/conf", never)
	w.quiet()
	files.Rename(t, repo+"/.git/index.lock", repo+"/.git/index")
	w.next(t)
}

// TestWatchNoDirectory starts before the directory and its parents exist.
func TestWatchNoDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b", "conf")
	w := watch(t, dir, never)
	w.quiet()
	files.Put(t, "1", dir, "x.yaml")
	w.until(t, "x.yaml=1")
}

// TestWatchBurst creates more files at once than any queue has room for events.
func TestWatchBurst(t *testing.T) {
	dir := t.TempDir()
	w := watch(t, dir, never)
	for i := range 3000 {
		files.Put(t, "1", dir, fmt.Sprintf("%d/%04d.yaml", i%10, i))
	}
	for n := 0; n < 3000; n = strings.Count(readText(dir), "=1") {
		w.next(t)
	}
}

// TestWatchQuickRemovals renames folders and removes them at once, so
// that fsnotify removes watches that the kernel has removed already.
func TestWatchQuickRemovals(t *testing.T) {
	dir := t.TempDir()
	w := watch(t, dir, never)
	for i := range 300 {
		sub := filepath.Join(dir, fmt.Sprint(i%3))
		files.Put(t, "1", sub, "x.yaml")
		files.Rename(t, sub, sub+".away")
		files.Remove(t, sub+".away")
	}
	w.quiet()
	files.Put(t, "2", dir, "end.yaml")
	w.until(t, "end.yaml=2")
}

// TestWatcherReportsLostEvents: an overflow of the kernel's queue counts as a change.
func TestWatcherReportsLostEvents(t *testing.T) {
	w := NewWatcher(func(err error) { t.Error(err) })
	defer w.Close()
	w.Update(map[string]Names{t.TempDir(): nil})
	w.kernel.Errors <- fsnotify.ErrEventOverflow
	select {
	case <-w.Changed:
	case <-time.After(waitLimit):
		t.Error("no loss reported")
	}
}

// TestWatchRepairsItself: when the kernel refuses a watch, Watch reports it, tries
// again, and reports the success.
func TestWatchRepairsItself(t *testing.T) {
	dir := t.TempDir()
	var was syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was))
	restore := func() { must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was)) }
	defer restore()
	none := was
	none.Cur = 0
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	w := watch(t, dir, 10*time.Millisecond)
	report := func() error {
		select {
		case err := <-w.reports:
			return err
		case <-time.After(waitLimit):
			t.Fatal("no report")
			return nil
		}
	}
	if err := report(); err == nil || !strings.Contains(err.Error(), "too many open files") {
		t.Errorf("got the report %v", err)
	}
	restore()
	if err := report(); err != nil {
		t.Errorf("got the report %v, want nil", err)
	}
	w.quiet()
	files.Put(t, "1", dir, "a.yaml")
	w.until(t, "a.yaml=1", "", "a.yaml=")
}

// TestRewatchFindsReplacedFolders: a replacement without an event, such as a mount over the
// directory, is found at the next repair.
func TestRewatchFindsReplacedFolders(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "conf")
	files.Put(t, "1", dir, "sub", "a.yaml")
	w := configWatch{NewWatcher(func(err error) { t.Error(err) }), dir}
	defer w.Close()
	for _, step := range []struct {
		does string
		do   func()
		want bool
	}{
		{"starts", func() {}, true},
		{"changes nothing", func() {}, false},
		{"replaces a folder", func() { files.Rename(t, dir+"/sub", dir+".old"); files.Put(t, "2", dir, "sub", "a.yaml") }, true},
		{"creates a folder", func() { files.Put(t, "2", dir, "new", "a.yaml") }, true},
		{"removes it", func() { files.Remove(t, dir, "new") }, false},
		{"replaces all", func() { files.Rename(t, dir, dir+".all"); files.Put(t, "3", dir, "sub", "a.yaml") }, true},
		{"changes nothing", func() {}, false},
	} {
		step.do()
		if got := w.rewatch(); got != step.want {
			t.Errorf("%s: new watches: %v, want %v", step.does, got, step.want)
		}
	}
}

func TestRelevantEvents(t *testing.T) {
	w := NewWatcher(nil)
	w.wanted.Store(&map[string]Names{"/conf": nil, "/conf/sub": nil, "/": {"conf": true}, "/conf/.git": {"index.lock": true}})
	for name, want := range map[string]bool{
		"/conf/a.yaml": true, "/conf/..data": true, "/conf/.hidden-link": true, "/conf/sub": true, "/conf": true, "/unknown/x": true,
		"/conf/.git/index.lock": true, "/conf/.git/HEAD": false, "/other": false, "/conf/.git": true, "/conf/sub/.git": false,
		"/conf/..2026_11_20": false, "/conf/..data_tmp": false, "/conf/.a.yaml.swp": false, "/conf/a.yaml~": false, "/conf/4913": false,
	} {
		if got := w.relevant(name); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

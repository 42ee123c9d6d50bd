package reconcile

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// TestWatchBurst makes more files at once than anything here holds events.
func TestWatchBurst(t *testing.T) {
	dir := t.TempDir()
	w := watch(t, dir, never)
	for i := range 3000 {
		put(t, "1", dir, fmt.Sprintf("%d/%04d.yaml", i%10, i))
	}
	for n := 0; n < 3000; n = strings.Count(look(dir), "=1") {
		w.poked(t)
	}
}

// TestWatchQuickRemovals renames folders away and removes them at once, so
// that fsnotify meets watches that the kernel has ended already.
func TestWatchQuickRemovals(t *testing.T) {
	dir := t.TempDir()
	w := watch(t, dir, never)
	for i := range 300 {
		sub := filepath.Join(dir, fmt.Sprint(i%3))
		put(t, "1", sub, "x.yaml")
		rename(t, sub, sub+".away")
		remove(t, sub+".away")
	}
	w.quiet()
	put(t, "2", dir, "end.yaml")
	w.until(t, "end.yaml=2")
}

// TestWatchLostEvents: an overflow, of the kernel's queue or of ours, is a
// poke, and what was missed is watched from then on.
func TestWatchLostEvents(t *testing.T) {
	dir := t.TempDir()
	f, err := newFeed()
	must(t, err)
	pokes := make(chan struct{}, 1)
	w := watcher{dir: dir, poke: pokes, feed: f, watched: map[string]watched{}, report: func(err error) { t.Error(err) }}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer w.close()
		w.run(ctx, never)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	watching := watching{dir: dir, pokes: pokes}
	watching.poked(t)
	watching.quiet()
	f.kernel.Errors <- fsnotify.ErrEventOverflow
	watching.poked(t)
}

func TestFeedOverflow(t *testing.T) {
	dir := t.TempDir()
	f, err := newFeed()
	must(t, err)
	defer f.close()
	must(t, f.kernel.Add(dir))
	for i := range cap(f.events) + 1 {
		put(t, "", dir, fmt.Sprint(i))
	}
	select {
	case <-f.lost:
	case <-time.After(deadline):
		t.Errorf("nothing lost with %d events held", len(f.events))
	}
}

// TestWatchMends: where the kernel gives no watch, that is reported and tried
// again, until it is reported as mended.
func TestWatchMends(t *testing.T) {
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
		case <-time.After(deadline):
			t.Fatal("no report")
			return nil
		}
	}
	if err := report(); err == nil || !strings.Contains(err.Error(), "too many open files") {
		t.Errorf("got the report %v", err)
	}
	restore()
	if err := report(); err != nil {
		t.Errorf("got the report %v, want none any more", err)
	}
	w.quiet()
	put(t, "1", dir, "a.yaml")
	w.until(t, "a.yaml=1", "", "a.yaml=")
}

// TestArmFindsReplaced: what was replaced without an event (a mount over the
// directory has none) is found the next time that the watch is mended.
func TestArmFindsReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "conf")
	put(t, "1", dir, "sub", "a.yaml")
	w := watcher{dir: dir, report: func(err error) { t.Error(err) }}
	defer w.close()
	for _, step := range []struct {
		does string
		do   func()
		want bool
	}{
		{"starts", func() {}, true},
		{"changes nothing", func() {}, false},
		{"replaces a folder", func() { rename(t, dir+"/sub", dir+".old"); put(t, "2", dir, "sub", "a.yaml") }, true},
		{"makes a folder", func() { put(t, "2", dir, "new", "a.yaml") }, true},
		{"removes it", func() { remove(t, dir, "new") }, false},
		{"replaces all", func() { rename(t, dir, dir+".all"); put(t, "3", dir, "sub", "a.yaml") }, true},
		{"changes nothing", func() {}, false},
	} {
		step.do()
		if got := w.arm(); got != step.want {
			t.Errorf("%s: something new to watch: %v, want %v", step.does, got, step.want)
		}
	}
}

func TestConcerns(t *testing.T) {
	w := watcher{watched: map[string]watched{
		"/conf": {}, "/conf/sub": {}, "/": {names: names{"conf": true}}, "/conf/.git": {names: names{"index.lock": true}},
	}}
	for _, tt := range []struct {
		name string
		op   fsnotify.Op
		want bool
	}{
		{"/conf/a.yaml", fsnotify.Write, true},
		{"/conf/a.yaml", fsnotify.Chmod, true},
		{"/conf/..data", fsnotify.Create, true},
		{"/conf/.hidden-link", fsnotify.Create, true},
		{"/conf/sub", fsnotify.Remove, true},
		{"/conf", fsnotify.Rename, true},
		{"/unknown/x", fsnotify.Create, true},
		{"/conf/.git/index.lock", fsnotify.Rename, true},
		{"/conf/.git/index.lock", fsnotify.Remove, true},
		{"/conf/.git/index.lock", fsnotify.Write, false},
		{"/conf/.git/HEAD", fsnotify.Create, false},
		{"/other", fsnotify.Create, false},
		{"/conf/.git", fsnotify.Chmod, true},
		{"/conf/sub/.git", fsnotify.Create, false},
		{"/conf/..2026_11_20", fsnotify.Create, false},
		{"/conf/..data_tmp", fsnotify.Create, false},
		{"/conf/.a.yaml.swp", fsnotify.Write, false},
		{"/conf/a.yaml~", fsnotify.Create, false},
		{"/conf/4913", fsnotify.Create, false},
	} {
		if got := w.concerns(fsnotify.Event{Name: tt.name, Op: tt.op}); got != tt.want {
			t.Errorf("%s %s: got %v, want %v", tt.op, tt.name, got, tt.want)
		}
	}
}

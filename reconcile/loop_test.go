package reconcile

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/files"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// deadline limits the wait for events that usually take milliseconds.
const deadline = time.Minute

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestMain runs more tests at once than there are processors, because many wait for a loop. The
// flag -parallel has precedence.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	m.Run()
}

const testSettings = `settings: {allowLoopbackSources: true, cleanupWaitInterval: "0s", pruneLimit: "100%"}`

// looping is a running Loop in a test.
type looping struct {
	*Loop
	t     *testing.T
	stop  context.CancelFunc
	ended chan error
}

// startLoop runs a Loop over the directory conf and the disks until the test ends.
func startLoop(t *testing.T, conf string, disks ...string) *looping {
	t.Helper()
	r := New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), false)
	return runLoop(t, r, LoopOptions{Dir: conf, Interval: 50 * time.Millisecond, Node: "node1", Disks: disks, Log: slog.New(slog.DiscardHandler)})
}

// runLoop runs a Loop for r until the test ends.
func runLoop(t *testing.T, r *Reconciler, o LoopOptions) *looping {
	l := NewLoop(r, o)
	ctx, stop := context.WithCancel(t.Context())
	running := &looping{Loop: l, t: t, stop: stop, ended: make(chan error, 1)}
	go func() { running.ended <- l.Run(ctx) }()
	t.Cleanup(func() { running.end() })
	return running
}

// end stops the loop as SIGTERM does, and returns the error of Run.
func (l *looping) end() error {
	l.stop()
	select {
	case err := <-l.ended:
		l.ended <- err
		return err
	case <-time.After(deadline):
		l.t.Error("the loop does not end")
		return nil
	}
}

// until waits for a round for which the condition is true. The argument what names the condition
// in messages.
func (l *looping) until(what string, is func(*status.View) bool) *status.View {
	l.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	over := time.After(deadline)
	for {
		if v := l.View(); v != nil && is(v) {
			return v
		}
		select {
		case <-tick.C:
		case err := <-l.ended:
			l.ended <- err
			l.t.Fatalf("the loop ended (%v) before: %s", err, what)
		case <-over:
			l.t.Fatalf("not within %v: %s; the last view is %+v", deadline, what, l.View())
		}
	}
}

// rounds waits for n more rounds, and returns the last one.
func (l *looping) rounds(n int) *status.View {
	l.t.Helper()
	var until int
	if v := l.View(); v != nil {
		until = v.Rounds
	}
	return l.until(fmt.Sprint(n, " more rounds"), func(v *status.View) bool { return v.Rounds >= until+n })
}

// isReady returns the condition that some disk has a ready copy of each image.
func isReady(names ...string) func(*status.View) bool {
	return func(v *status.View) bool {
		for _, name := range names {
			if !has(v, name, model.Ready) {
				return false
			}
		}
		return true
	}
}

// has reports whether some disk has a copy of the image in the state.
func has(v *status.View, name string, state model.State) bool {
	for _, seen := range v.Observed.Disks {
		for id, c := range seen.Copies {
			if id.Name == name && c.State == state {
				return true
			}
		}
	}
	return false
}

func image(name, url string) string {
	return fmt.Sprintf("images: {%s: {source: {download: {url: %q}}}}", name, url)
}

// A manager must not start if this node is not declared, or if another process writes to its disks.
func TestLoopRejectsItsStart(t *testing.T) {
	t.Parallel()
	locked := newDisk(t)
	d, err := disk.Open(locked)
	must(t, err)
	unlock, err := d.Lock()
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(unlock(), d.Close())) })
	for _, tt := range []struct {
		name, config string
		disks        []string
		want         string
	}{
		{"another node", nodes("/disk", "node7", "node8"), nil, "it has node7, node8"},
		{"no disk", testSettings, nil, "no disks"},
		{"not a disk of this node", nodes("/disk", "node1"), []string{"/other"}, "/other is not declared"},
		{"a disk with another manager", testSettings, []string{locked}, "disk is locked by another process"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conf := t.TempDir()
			files.Put(t, tt.config, conf, "config.yaml")
			l := startLoop(t, conf, tt.disks...)
			select {
			case err := <-l.ended:
				l.ended <- err
				if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), "the configuration has", "it has"), tt.want) {
					t.Errorf("ended with %v, want %q", err, tt.want)
				}
			case <-time.After(deadline):
				t.Error("the loop started")
			}
		})
	}
}

// One disk of a node has another manager when this one starts, and later not any more. The other disk
// works at once.
func TestLoopStartsWithoutALockedDisk(t *testing.T) {
	t.Parallel()
	locked, free, conf := newDisk(t), newDisk(t), t.TempDir()
	d, err := disk.Open(locked)
	must(t, err)
	defer d.Close()
	unlock, err := d.Lock()
	must(t, err)
	files.Put(t, testSettings, conf, "config.yaml")
	l := startLoop(t, conf, locked, free)
	problems := func(v *status.View) (problems []string) {
		for _, seen := range v.Observed.Disks {
			if seen.Problem != "" {
				problems = append(problems, seen.Problem)
			}
		}
		return problems
	}
	v := l.until("a round", func(v *status.View) bool { return len(v.Observed.Disks) == 2 })
	if p := problems(v); len(p) != 1 || !strings.Contains(p[0], "locked by another process") {
		t.Errorf("the problems are %q", p)
	}
	must(t, unlock())
	l.until("no problem", func(v *status.View) bool { return len(problems(v)) == 0 })
}

// A stop in the middle of a download must keep the partial file, and the next start must request
// only the rest.
func TestDownloadResumesAfterAStop(t *testing.T) {
	t.Parallel()
	upstream, conf, dir := fetchtest.Start(t), t.TempDir(), newDisk(t)
	const size = 5 << 20
	content := fetchtest.Random(1, size)
	url := upstream.Serve("/a", fetchtest.Bytes(content), fetchtest.Fault{Kind: fetchtest.Stall, At: 3<<20 + 4096, Times: 1})
	files.Put(t, testSettings+"\n"+image("parrot", url), conf, "a.yaml")
	l := startLoop(t, conf, dir)
	l.until("a part of the image transferred", func(v *status.View) bool {
		_, s := l.Status()
		return len(s.Images) == 1 && len(s.Images[0].Copies) == 1 && s.Images[0].Copies[0].Done >= 3<<20
	})
	if err := l.end(); err != nil {
		t.Fatalf("the loop ended with %v", err)
	}
	if c := l.Counts(); len(c.Failed) > 0 || c.Fetched < 3<<20 {
		t.Errorf("the counts after a stop are %+v", c)
	}
	l = startLoop(t, conf, dir)
	v := l.until("ready", isReady("parrot"))
	requests := upstream.Requests()
	if len(requests) != 2 || !strings.HasPrefix(requests[1].Range, "bytes=") || requests[1].Sent > size-2<<20 {
		t.Errorf("the requests are %+v", requests)
	}
	id := v.Desired.Config.Images["parrot"].ID
	got, err := os.ReadFile(filepath.Join(dir, "backing-images", id.String(), "backing"))
	if err != nil || string(got) != string(content) {
		t.Errorf("the image is wrong (error %v)", err)
	}
}

// Changes of other images, of the placement and of settings must not restart a running download. A
// change of its source must.
func TestUnrelatedChangesKeepADownload(t *testing.T) {
	t.Parallel()
	upstream, conf := fetchtest.Start(t), t.TempDir()
	upstream.Serve("/slow", fetchtest.Bytes(fetchtest.Random(1, 5<<20)), fetchtest.Fault{Kind: fetchtest.Stall, At: 2 << 20, Times: 1})
	upstream.Serve("/quick", fetchtest.Bytes(fetchtest.Random(2, 512)))
	files.Put(t, testSettings, conf, "settings.yaml")
	files.Put(t, image("slow", upstream.URL+"/slow"), conf, "slow.yaml")
	l := startLoop(t, conf, newDisk(t), newDisk(t))
	requests := func() (n int) {
		for _, r := range upstream.Requests() {
			if r.Path == "/slow" {
				n++
			}
		}
		return n
	}
	l.until("the download running", func(*status.View) bool { return requests() == 1 })
	files.Put(t, image("quick", upstream.URL+"/quick"), conf, "quick.yaml")
	l.until("ready", isReady("quick"))
	files.Put(t, strings.Replace(image("slow", upstream.URL+"/slow"), "{source", "{minNumberOfCopies: 2, source", 1), conf, "slow.yaml")
	l.until("two copies desired", func(v *status.View) bool { return v.Desired.Config.Images["slow"].Copies == 2 })
	files.Put(t, strings.Replace(testSettings, "{", "{recoveryWaitInterval: 77, ", 1), conf, "settings.yaml")
	l.until("the setting applied", func(v *status.View) bool { return v.Desired.Config.Settings.RecoveryWaitInterval == 77*time.Second })
	l.rounds(3)
	if n := requests(); n != 1 {
		t.Errorf("the download started %d times", n)
	}
	files.Put(t, image("slow", upstream.URL+"/slow?again"), conf, "slow.yaml")
	l.until("the download started again", func(*status.View) bool { return requests() == 2 })
	l.until("ready", isReady("slow"))
}

// A requested verification must be done exactly once, and rejected for an image without ready copies.
func TestRequestedVerificationIsDoneOnce(t *testing.T) {
	t.Parallel()
	upstream, conf := fetchtest.Start(t), t.TempDir()
	url := upstream.Serve("/a", fetchtest.Bytes(fetchtest.Random(1, 3<<20)))
	files.Put(t, testSettings+"\n"+image("parrot", url), conf, "a.yaml")
	l := startLoop(t, conf, newDisk(t))
	if _, err := l.Verify(t.Context(), "parrot"); !errors.Is(err, errNotLoaded) && !errors.Is(err, ErrNotDeclared) && !errors.Is(err, ErrNotReady) {
		t.Errorf("before a copy is ready: %v", err)
	}
	l.until("ready", isReady("parrot"))
	if _, err := l.Verify(t.Context(), "nobody"); !errors.Is(err, ErrNotDeclared) {
		t.Errorf("of an image that is not declared: %v", err)
	}
	if n, err := l.Verify(t.Context(), "parrot"); n != 1 || err != nil {
		t.Fatalf("the verification of %d copies is requested, error %v", n, err)
	}
	l.until("verified", func(*status.View) bool { return l.Counts().Done[model.Verify] == 1 })
	v := l.rounds(3)
	if !v.Plan.Empty() || l.Counts().Done[model.Verify] != 1 || !isReady("parrot")(v) {
		t.Errorf("afterwards %+v is planned, %v is done", v.Plan.Actions, l.Counts().Done)
	}
}

// A round without any change must open no connection and read no image data. The test is not
// parallel, because it counts the bytes that the process reads.
func TestIdleRoundReadsNoImageData(t *testing.T) {
	upstream, conf := fetchtest.Start(t), t.TempDir()
	url := upstream.Serve("/a", fetchtest.Bytes(fetchtest.Random(1, 16<<20)))
	files.Put(t, testSettings+"\n"+image("parrot", url), conf, "a.yaml")
	l := startLoop(t, conf, newDisk(t))
	l.until("ready", isReady("parrot"))
	l.until("converged", func(v *status.View) bool { return v.Plan.Empty() && len(v.Observed.Running) == 0 })
	upstream.ClearRequests()
	before := bytesRead(t)
	const rounds = 10
	l.rounds(rounds)
	if read := bytesRead(t) - before; read > rounds*64<<10 {
		t.Errorf("%d rounds read %d bytes", rounds, read)
	}
	if requests := upstream.Requests(); len(requests) > 0 {
		t.Errorf("the upstream had the requests %+v", requests)
	}
}

// bytesRead returns how many bytes this process has read so far from all files and connections.
func bytesRead(t *testing.T) (n int64) {
	data, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Skip(err)
	}
	_, err = fmt.Sscanf(string(data), "rchar: %d", &n)
	must(t, err)
	return n
}

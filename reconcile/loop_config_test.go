package reconcile

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/files"
	"github.com/seed-26586806/backing-image-manager/reconcile/config"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// A change of the config directory must be planned within half a second after its last write. The
// test is not parallel, so that no other test of the package delays it. Other processes may, so one
// change in time suffices.
func TestChangeIsPlannedSoon(t *testing.T) {
	conf := t.TempDir()
	files.Put(t, testSettings, conf, "settings.yaml")
	files.Put(t, "images: {}", conf, "images.yaml")
	l := startLoop(t, conf, newDisk(t))
	const limit = 500 * time.Millisecond
	best := time.Hour
	for i := 0; i < 20 && best > limit; i++ {
		name := fmt.Sprintf("image%d", i)
		l.rounds(2)
		files.Put(t, image(name, "http://127.0.0.1:9/x.raw"), conf, name+".yaml")
		began := time.Now()
		l.until("the change planned", func(v *status.View) bool {
			return v.Desired.Config.Images[name].ID.Name == name && len(v.Plan.Actions) > i
		})
		best = min(best, time.Since(began))
	}
	t.Logf("planned after %v", best)
	if best > limit {
		t.Errorf("a change was planned after %v at best", best)
	}
}

// A broken file must not stop other images. Its own images keep their last valid declaration, and
// nothing is deleted until it is valid again.
func TestBrokenFileAffectsOnlyItsImages(t *testing.T) {
	t.Parallel()
	upstream, conf := fetchtest.Start(t), t.TempDir()
	for _, name := range []string{"kept", "removed", "added"} {
		upstream.Serve("/"+name, fetchtest.Bytes(fetchtest.Random(1, 512)))
	}
	files.Put(t, testSettings, conf, "settings.yaml")
	files.Put(t, image("kept", upstream.URL+"/kept"), conf, "kept.yaml")
	files.Put(t, image("removed", upstream.URL+"/removed"), conf, "other.yaml")
	l := startLoop(t, conf, newDisk(t))
	l.until("ready", isReady("kept", "removed"))
	files.Put(t, "images: {kept: {source: {download: {url: [}}}", conf, "kept.yaml")
	files.Put(t, image("added", upstream.URL+"/added"), conf, "other.yaml")
	v := l.until("the added image ready", isReady("added"))
	if v.Desired.Allowed != schema.NoDeletions || len(v.Config.Errors) == 0 {
		t.Errorf("allowed is %s with the errors %v", v.Desired.Allowed, v.Config.Errors)
	}
	if _, declared := v.Desired.Config.Images["kept"]; !declared {
		t.Error("the last valid content of the broken file does not apply any more")
	}
	later := time.Now().Add(configdir.RemovalDelay + time.Second)
	v = l.until("a round after the removal delay", func(v *status.View) bool { return v.Observed.Now.After(later) })
	if !isReady("kept", "removed", "added")(v) {
		t.Errorf("a copy was deleted while a file was broken: %+v", v.Observed.Disks)
	}
	files.Put(t, image("kept", upstream.URL+"/kept"), conf, "kept.yaml")
	corrected := time.Now()
	v = l.until("the removed image deleted", func(v *status.View) bool { return !has(v, "removed", model.Ready) })
	if waited := v.Observed.Now.Sub(corrected); waited < configdir.RemovalDelay {
		t.Errorf("it was deleted %v after the configuration was valid again", waited)
	}
	if !isReady("kept", "added")(v) {
		t.Error("a declared image was deleted")
	}
}

// A config directory that is missing or empty must not count as one without images: the last valid
// configuration stays in effect, and nothing is deleted.
func TestMissingDirectoryDeletesNothing(t *testing.T) {
	t.Parallel()
	upstream, conf := fetchtest.Start(t), filepath.Join(t.TempDir(), "conf")
	upstream.Serve("/a", fetchtest.Bytes(fetchtest.Random(1, 512)))
	files.Put(t, testSettings, conf, "settings.yaml")
	files.Put(t, image("parrot", upstream.URL+"/a"), conf, "a.yaml")
	l := startLoop(t, conf, newDisk(t))
	l.until("ready", isReady("parrot"))
	files.Rename(t, conf, conf+".moved")
	l.until("a fault", func(v *status.View) bool { return v.Fault != "" })
	later := time.Now().Add(configdir.RemovalDelay + time.Second)
	v := l.until("a round after the removal delay", func(v *status.View) bool { return v.Observed.Now.After(later) })
	if !isReady("parrot")(v) || v.Desired.Allowed != schema.NoDeletions || !v.Plan.Empty() {
		t.Errorf("without a directory: allowed %s, planned %+v", v.Desired.Allowed, v.Plan.Actions)
	}
	files.Put(t, "# no document", conf, "a.yaml")
	v = l.until("an empty configuration", func(v *status.View) bool { return len(v.Config.Errors) > 0 })
	if !isReady("parrot")(v) || v.Desired.Allowed != schema.NoDeletions {
		t.Errorf("with an empty directory: allowed %s", v.Desired.Allowed)
	}
	files.Remove(t, conf)
	files.Rename(t, conf+".moved", conf)
	l.until("valid again", func(v *status.View) bool { return v.Fault == "" && v.Desired.Allowed == schema.Everything })
}

// A manager that starts without its config directory must wait for it, and show that in its status.
func TestStartWithoutDirectory(t *testing.T) {
	t.Parallel()
	conf := filepath.Join(t.TempDir(), "conf")
	l := startLoop(t, conf, newDisk(t))
	v := l.until("a fault", func(v *status.View) bool { return v.Fault != "" })
	if v.Loaded || len(v.Plan.Actions) > 0 {
		t.Errorf("without a directory at start: %+v", v)
	}
	if _, s := l.Status(); s.Node != "node1" || s.Config.Fault == "" {
		t.Errorf("the status is %+v", s)
	}
	files.Put(t, testSettings, conf, "a.yaml")
	l.until("loaded", func(v *status.View) bool { return v.Loaded && v.Fault == "" })
}

func nodes(disk string, names ...string) string {
	text := testSettings + "\nnodes:\n"
	for _, name := range names {
		text += fmt.Sprintf("  %s: {disks: {disk1: {path: %q}}}\n", name, disk)
	}
	return text
}

// A manager whose node is not declared any more must only observe.
func TestRemovedNodeOnlyObserves(t *testing.T) {
	t.Parallel()
	upstream, conf, dir := fetchtest.Start(t), t.TempDir(), newDisk(t)
	upstream.Serve("/a", fetchtest.Bytes(fetchtest.Random(1, 512)))
	files.Put(t, nodes(dir, "node1"), conf, "nodes.yaml")
	files.Put(t, image("parrot", upstream.URL+"/a"), conf, "a.yaml")
	l := startLoop(t, conf)
	l.until("ready", isReady("parrot"))
	files.Put(t, nodes(dir, "node2"), conf, "nodes.yaml")
	files.Put(t, image("other", upstream.URL+"/a"), conf, "a.yaml")
	l.until("the configuration applied", func(v *status.View) bool { return v.Desired.Config.Images["other"].ID.Name != "" })
	v := l.rounds(3)
	if v.Desired.Allowed != schema.ObserveOnly || len(v.Plan.Actions) > 0 || !isReady("parrot")(v) {
		t.Errorf("allowed is %s, planned %+v, observed %+v", v.Desired.Allowed, v.Plan.Actions, v.Observed.Disks)
	}
	files.Put(t, nodes(dir, "node1", "node2"), conf, "nodes.yaml")
	l.until("all actions allowed again", func(v *status.View) bool { return v.Desired.Allowed == schema.Everything })
}

// A ConfigMap mount is applied after kubelet swaps ..data, and removes the old folder.
func TestConfigMapSwapIsApplied(t *testing.T) {
	t.Parallel()
	upstream, conf := fetchtest.Start(t), t.TempDir()
	publish := func(generation, name string) {
		upstream.Serve("/"+name, fetchtest.Bytes(fetchtest.Random(1, 512)))
		files.Put(t, testSettings+"\n"+image(name, upstream.URL+"/"+name), conf, generation, "config.yaml")
		files.SwapLink(t, generation, conf+"/..data")
	}
	publish("..2026_1", "first")
	must(t, os.Symlink("..data/config.yaml", conf+"/config.yaml"))
	l := startLoop(t, conf, newDisk(t))
	l.until("ready", isReady("first"))
	publish("..2026_2", "second")
	files.Remove(t, conf, "..2026_1")
	v := l.until("ready", isReady("second"))
	if v.Fault != "" || len(v.Config.Errors) > 0 {
		t.Errorf("after the swap: fault %q, errors %v", v.Fault, v.Config.Errors)
	}
}

// The revision must be that of the directory, also when it changes without the content: to another
// commit, or to none when the directory is no checkout any more.
func TestRevisionFollowsTheDirectory(t *testing.T) {
	t.Parallel()
	conf := t.TempDir()
	files.Put(t, testSettings+"\nimages: {}", conf, "config.yaml")
	files.Put(t, "", conf, ".git/config")
	files.Put(t, "", conf, ".git/objects/x")
	files.Put(t, strings.Repeat("a", 40), conf, ".git/HEAD")
	l := startLoop(t, conf, newDisk(t))
	revisionIs := func(want string) {
		t.Helper()
		l.until("revision "+want, func(v *status.View) bool {
			return v.Desired.Revision == want && v.Config.Revision == want && v.Plan.Revision == want
		})
	}
	revisionIs(strings.Repeat("a", 40))
	files.Put(t, strings.Repeat("b", 40), conf, ".git/HEAD")
	revisionIs(strings.Repeat("b", 40))
	files.Remove(t, conf, ".git")
	revisionIs("")
}

// A load that continues every few seconds, perhaps for ever, logs what is wrong once.
func TestContinuedLoadsLogTheirProblemsOnce(t *testing.T) {
	var log strings.Builder
	dir, conf := newDisk(t), t.TempDir()
	must(t, os.WriteFile(filepath.Join(conf, "a.yaml"), []byte("images: {parrot: {uuid: x}}\nnodes: {n: {disks: {d: {path: "+dir+"}}}}\n"), 0o600))
	l := NewLoop(New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), false), LoopOptions{Dir: conf, Interval: time.Second, Node: "n", Log: slog.New(slog.NewTextHandler(&log, nil))})
	defer l.reconciler.Close()
	snapshot, err := configdir.Read(conf)
	must(t, err)
	finished := load.NewLoader().Load(t.Context(), snapshot)
	unfinished, other := finished, finished
	unfinished.Unfinished, other.Unfinished, other.Errors = true, true, append(slices.Clone(finished.Errors), finished.Errors[0])
	for i, step := range []struct {
		result load.Result
		logged int
	}{{unfinished, 1}, {unfinished, 0}, {unfinished, 0}, {other, 1}, {other, 0}, {finished, 1}, {finished, 1}} {
		log.Reset()
		_, err := l.Apply(t.Context(), config.Reading{Result: &step.result})
		must(t, err)
		if n := strings.Count(log.String(), "configuration applied"); n != step.logged || strings.Contains(log.String(), "configuration error") != (n > 0) {
			t.Errorf("step %d: %s", i, &log)
		}
	}
}

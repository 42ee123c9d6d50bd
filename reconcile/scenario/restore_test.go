package scenario

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// A cluster that is restored from the statuses of its nodes has the same plan: the failures, and for
// how long nodes and disks have had a problem, are restored.
func TestRestoredClusterHasTheSamePlan(t *testing.T) {
	t.Parallel()
	c := threeNodes(
		schema.Image{ID: ident.ID{Name: "parrot", UUID: "0000000a"}, Copies: 2, Source: schema.Source{Download: &schema.Download{URL: "https://example.com/parrot"}}},
		schema.Image{ID: ident.ID{Name: "kea", UUID: "0000000c"}, Copies: 1, Source: schema.Source{Download: &schema.Download{URL: "https://example.com/kea"}}},
	)
	w, err := newWorld(c)
	if err != nil {
		t.Fatal(err)
	}
	w.sources["kea"] = source{size: initialSize, err: failures["refused"]}
	w.changed()
	converge := func(w *world, limit time.Duration) {
		t.Helper()
		if _, err := w.converge(t.Context(), limit); err != nil {
			t.Fatal(err)
		}
	}
	converge(w, 0)
	ready := readyDisks(w, ident.ID{Name: "parrot", UUID: "0000000a"})
	w.setUp(ready[0].Node, false)
	w.setAttached(ready[1], false)
	converge(w, 2*time.Minute)

	restored, err := newWorld(c)
	if err != nil {
		t.Fatal(err)
	}
	restored.restore(savedStatuses(t, w, c))
	restored.sources = w.sources
	if a, b := planText(t, w), planText(t, restored); a != b {
		t.Errorf("the plan is\n%s\nafter a restore it is\n%s", a, b)
	}
	if text := planText(t, restored); !strings.Contains(text, "403 Forbidden") {
		t.Errorf("the plan does not have the failure of kea:\n%s", text)
	}
	converge(restored, 2*time.Minute)
	if on := texts(readyDisks(restored, ident.ID{Name: "parrot", UUID: "0000000a"})); len(on) != 0 {
		t.Errorf("after 4 of 5 minutes the copies are already replaced on %v", on)
	}
	converge(restored, 2*time.Minute)
	if len(readyDisks(restored, ident.ID{Name: "parrot", UUID: "0000000a"})) == 0 {
		t.Error("after the recovery interval the copies are not replaced")
	}
}

// A node that is up again is a new process: it tries at once what failed before.
func TestNodeThatRestartsForgetsFailures(t *testing.T) {
	t.Parallel()
	image := schema.Image{ID: ident.ID{Name: "parrot", UUID: "0000000a"}, Copies: 1, Disks: []ident.DiskRef{{Node: "node1", Disk: "disk1"}}, Source: schema.Source{Download: &schema.Download{URL: "https://example.com/x"}}}
	w, err := newWorld(threeNodes(image))
	if err != nil {
		t.Fatal(err)
	}
	w.sources["parrot"] = source{size: initialSize, err: failures["format"]}
	w.changed()
	for _, want := range []int{1, 0, 1} { // attempts
		history, err := w.converge(t.Context(), 20*time.Minute)
		attempts := 0
		for _, e := range history {
			if e.Node == "node1" && e.Op == model.Download {
				attempts++
			}
		}
		if err != nil || attempts != want {
			t.Errorf("node1 made %d attempts, error %v; want %d", attempts, err, want)
		}
		if want == 0 {
			w.setUp("node1", false)
			w.setUp("node1", true)
		}
	}
}

// threeNodes returns a configuration of three nodes with one disk each.
func threeNodes(images ...schema.Image) load.Result {
	c := dice{rand.New(rand.NewPCG(1, 1))}.config()
	c.Config.Settings = schema.Settings{CleanupWaitInterval: time.Hour, RecoveryWaitInterval: 5 * time.Minute, ConcurrentReplenishPerNodeLimit: 5, PruneLimit: schema.PrunePercent(50)}
	c.Config.Nodes, c.Config.Images = map[string]schema.Node{}, map[string]schema.Image{}
	for _, name := range []string{"node1", "node2", "node3"} {
		c.Config.Nodes[name] = schema.Node{AllowScheduling: true, Disks: map[string]schema.Disk{"disk1": {Path: "/disk1", AllowScheduling: true}}}
	}
	for _, image := range images {
		c.Config.Images[image.ID.Name] = image
	}
	return c
}

// savedStatuses returns the statuses of all nodes that are up.
func savedStatuses(t *testing.T, w *world, c load.Result) *status.SavedCluster {
	t.Helper()
	w.observeAll()
	saved := &status.SavedCluster{}
	for _, n := range w.running() {
		v := &status.View{Desired: n.desired(), Observed: n.observed, Plan: n.plan, Config: c, Loaded: true, Rounds: 1, Placements: &status.PlacementCache{}}
		text, err := json.Marshal(v.Status(nil))
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), n.name+".json")
		if err := os.WriteFile(file, text, 0o666); err != nil {
			t.Fatal(err)
		}
		if err := saved.AddFile(file); err != nil {
			t.Fatal(err)
		}
	}
	return saved
}

func planText(t *testing.T, w *world) string {
	t.Helper()
	var b strings.Builder
	if err := report.WritePlan(&b, w.plan(), report.Style{Cluster: true}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

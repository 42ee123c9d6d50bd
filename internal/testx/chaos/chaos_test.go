package chaos

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

var (
	seed      = flag.Uint64("chaos.seed", 0, "run this seed with all images and nodes; 0: a short run")
	minutes   = flag.Float64("chaos.minutes", 3, "with -chaos.seed, minutes of faults")
	withRace  = flag.Bool("chaos.race", false, "build the daemons with the race detector")
	keep      = flag.Bool("chaos.keep", false, "keep the folder of the run, also if it succeeds")
	longCycle = 3 * time.Minute
)

func TestChaos(t *testing.T) {
	need.Root(t, "mount disks")
	need.NetworkNamespaces(t)
	need.Programs(t, "xz")
	race.Skip(t) // the daemons are other processes
	scale := Scale{Seed: 1, Cycles: 1, Cycle: 4 * time.Second, Apart: 150 * time.Millisecond, Longest: 1500 * time.Millisecond, Nodes: 3, Images: 4, Largest: 512 * kib}
	if *seed != 0 {
		whole := time.Duration(*minutes * float64(time.Minute))
		cycles := max(1, int(whole/longCycle))
		scale = Scale{Seed: *seed, Cycles: cycles, Cycle: whole / time.Duration(cycles), Apart: 1600 * time.Millisecond, Longest: time.Minute, Images: 8, Largest: 16 * mib}
	}
	dir, err := os.MkdirTemp("", "chaos")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() || *keep {
			t.Logf("the folder of the run is %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	scale.Dir, scale.Binary = dir, build(t, dir)
	v := Run(t, scale)
	t.Logf("\n%s", v.Text)
	for _, violation := range v.Violations {
		t.Errorf("violation at %s", violation)
	}
	if !t.Failed() {
		t.Logf("verdict: nothing was lost in %d events", v.Events)
	}
}

// build builds the program.
func build(t *testing.T, dir string) string {
	t.Helper()
	binary := filepath.Join(dir, "backing-image-manager")
	cmd := need.Go(t.Context(), "build", "-o", binary, "../../../cmd/backing-image-manager")
	if *withRace {
		cmd = need.Go(t.Context(), "build", "-race", "-o", binary, "../../../cmd/backing-image-manager")
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1") // the detector needs it
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return binary
}

func TestPlanFollowsFromTheSeed(t *testing.T) {
	p := newPlan(7, 0, 3*time.Minute, time.Second, time.Minute)
	if again := newPlan(7, 0, 3*time.Minute, time.Second, time.Minute); !reflect.DeepEqual(p, again) {
		t.Error("two plans of one seed differ")
	}
	if other := newPlan(8, 0, 3*time.Minute, time.Second, time.Minute); reflect.DeepEqual(p, other) {
		t.Error("the plans of two seeds are equal")
	}
	kinds := map[Kind]bool{}
	for n := range uint64(40) {
		for _, e := range newPlan(n, 0, 3*time.Minute, time.Second, time.Minute) {
			kinds[e.Kind] = true
			if e.At < 0 || e.At > 3*time.Minute || e.For > time.Minute {
				t.Errorf("seed %d: %+v", n, e)
			}
		}
	}
	for _, f := range frequencies {
		if !kinds[f.kind] {
			t.Errorf("40 plans have no event %s", f.kind)
		}
		if happenings[f.kind] == nil {
			t.Errorf("nothing happens at event %s", f.kind)
		}
	}
}

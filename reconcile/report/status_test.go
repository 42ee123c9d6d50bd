package report

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/clusterview"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

var update = flag.Bool("update", false, "write the golden files")

func TestStatusOfSmallAndLargeClustersAsTable(t *testing.T) {
	for name, v := range map[string]status.View{"three": clusterview.ThreeNodes(), "hundred": clusterview.HundredNodes()} {
		v.Plan = plan.NewRound(v.Desired, v.Observed).Plan()
		var got strings.Builder
		if err := WriteStatus(&got, v.Status(nil)); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", "status_"+name+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(got.String()), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != string(want) {
			t.Errorf("the status of %s nodes is\n%s\nwant\n%s", name, &got, want)
		}
		if lines := strings.Count(got.String(), "\n"); lines > 70 {
			t.Errorf("the status of %s nodes has %d lines", name, lines)
		}
	}
}

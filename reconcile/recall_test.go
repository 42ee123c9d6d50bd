package reconcile

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// An image without a declared checksum is damaged while its source has other bytes
// by now. Those do not take its place before the recovery interval is over, and if
// the source has the old ones again, they come back at once.
func TestDamagedImageComesBackAsItWas(t *testing.T) {
	images := [][]byte{randomImage(2 << 20), make([]byte, 1<<20)}
	served := images[0]
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", startOfTest, bytes.NewReader(served))
	}))
	defer origin.Close()
	path := newDisk(t)
	converge := func(interval string) (disk.Copy, plan.Plan) {
		d := plantest.Load(t, fmt.Sprintf(`
settings: {allowLoopbackSources: true, recoveryWaitInterval: %s}
images: {parrot: {source: {download: {url: "%s/parrot.raw"}}}}
`, interval, origin.URL), path)
		r := New(fetch.Client{}, slog.New(slog.DiscardHandler), false)
		defer r.Close()
		o, planned, err := r.Converge(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		for _, seen := range o.Disks {
			return seen.Copies[d.Config.Images["parrot"].ID].Copy, planned
		}
		t.Fatal("no disk was seen")
		return disk.Copy{}, planned
	}
	damage := func(c disk.Copy) {
		name := filepath.Join(path, "backing-images", c.ID.String(), "backing")
		if err := os.WriteFile(name, []byte("damage"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	first, _ := converge("1h")
	damage(first)
	if c, _ := converge("1h"); c.State != disk.Ready || c.SHA512 != first.SHA512 {
		t.Errorf("with the old bytes at the source the copy is %s with %s, want ready with %s", c.State, c.SHA512.Short(), first.SHA512.Short())
	}
	damage(first)
	served = images[1]
	c, planned := converge("1h")
	if c.State != disk.Failed || len(planned.Actions) != 1 || planned.Actions[0].Op != plan.Wait || planned.Actions[0].Until.IsZero() {
		t.Errorf("with other bytes at the source the copy is %s, the plan %+v", c.State, planned.Actions)
	}
	if c, _ := converge("0"); c.State != disk.Ready || c.SHA512 == first.SHA512 {
		t.Errorf("after the interval the copy is %s with %s", c.State, c.SHA512.Short())
	}
}

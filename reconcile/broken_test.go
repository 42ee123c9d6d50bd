package reconcile

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
)

// TestBrokenTransferIsNeverReady has an origin that does not say how much there is, and
// always breaks off. Nothing but that the transfer failed tells that more was to come.
func TestBrokenTransferIsNeverReady(t *testing.T) {
	origin := fetchtest.Start(t)
	for _, at := range []int64{disk.ChunkSize / 2, 2 * disk.ChunkSize, 3*disk.ChunkSize - 512} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			url := origin.Serve(fmt.Sprintf("/%d.raw", at), fetchtest.Bytes(fetchtest.Random(1, 3*disk.ChunkSize)),
				fetchtest.Fault{Kind: fetchtest.Chunked}, fetchtest.Fault{Kind: fetchtest.NoRange}, fetchtest.Fault{Kind: fetchtest.Cut, At: at})
			d := plantest.Load(t, fmt.Sprintf("settings: {allowLoopbackSources: true}\nimages: {parrot: {source: {download: {url: %q}}}}", url), newDisk(t))
			r := New(fetch.Client{}, slog.New(slog.DiscardHandler), false)
			defer r.Close()
			o, plan, err := r.Converge(t.Context(), d)
			must(t, err)
			for _, seen := range o.Disks {
				if c := seen.Copies[d.Config.Images["parrot"].ID]; c.State == disk.Ready || len(o.Failures) != 1 {
					t.Errorf("the copy is %+v after %+v, left to do: %+v", c, o.Failures, plan.Actions)
				}
			}
		})
	}
}

package peer

import (
	"io"
	"testing"
	"testing/synctest"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// Who takes more than what counts as stalled gets all of a chunk.
func TestSlowReceiverGetsItsChunk(t *testing.T) {
	d := startNode(t, "node1")
	d.put(t, parrot, patterned(mib))
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		v.add(t.Context(), "node1")
		server := NewServer(Host{
			Disk:    func(string) (*disk.Disk, bool) { return d.disk, true },
			Leaving: func(string, disk.ID) bool { return false },
		})
		v.nodes["node1"].server.Handler = server.Handler()
		b, err := v.client.data(t.Context(), Source{Address: Address{Node: "node1", URL: "http://node1:8000"}, Disk: "disk1", ID: parrot}, 0, mib)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		const slow = 5 << 10 / 4
		if n, err := io.Copy(io.Discard, fetch.Pace(t.Context(), b, fetch.NewLimiter(slow))); n != mib || err != nil {
			t.Errorf("%d bytes came, error %v", n, err)
		}
	})
}

package reconcile

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/files"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// newHolder returns a Reconciler with a ready copy, the desired state with its only disk, and one with
// another disk instead.
func newHolder(t *testing.T, content []byte) (r *Reconciler, with, without plan.Desired) {
	t.Helper()
	upstream := fetchtest.Start(t)
	url := upstream.Serve("/a", fetchtest.Bytes(content))
	config := testSettings + "\nimages: {parrot: {uuid: \"00000001\", source: {download: {url: \"" + url + "\"}}}}"
	dir, other := newDisk(t), newDisk(t)
	with, without = plantest.Load(t, config, dir), plantest.Load(t, config, other)
	r = New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), false)
	t.Cleanup(func() { must(t, r.Close()) })
	_, _, err := r.Converge(t.Context(), with)
	must(t, err)
	return r, with, without
}

// A disk is closed while a copy on it is sent. The send must complete, and later responses must have
// no copy of that disk.
func TestSendSurvivesTheCloseOfItsDisk(t *testing.T) {
	t.Parallel()
	content := fetchtest.Random(3, 24<<20)
	r, _, without := newHolder(t, content)
	server := httptest.NewServer(peer.NewServer(r.local.Published, &r.served).Handler())
	defer server.Close()
	resp, err := http.Get(server.URL + "/v1/images/parrot/00000001/data?disk=disk1")
	must(t, err)
	defer resp.Body.Close()
	got := make([]byte, 1<<20)
	_, err = io.ReadFull(resp.Body, got)
	must(t, err)
	r.Observe(without)
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(append(got, rest...), content) {
		t.Errorf("%d bytes were received, error %v", len(got)+len(rest), err)
	}
	s, err := r.served.Copies(t.Context(), "parrot", "")
	if err != nil || len(s.Disks) != 1 || len(s.Disks["disk1"].Copies) != 0 {
		t.Errorf("the response is %+v, %v", s, err)
	}
}

// A disk is closed while a query lists it. The response must have a problem for the disk, and
// never an empty list. Because of an empty list, a peer could delete its own copy, or create a new
// one.
func TestClosedDiskIsNeverListedAsEmpty(t *testing.T) {
	t.Parallel()
	r, with, without := newHolder(t, fetchtest.Random(3, 512))
	uuid := r.Observe(with).Disks[refOf(with)].UUID
	done, ended := make(chan struct{}), make(chan struct{})
	queries := 0
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
			}
			s, err := r.served.Copies(t.Context(), "parrot", "")
			if err != nil {
				t.Error(err)
			}
			for name, one := range s.Disks {
				if one.UUID == uuid && one.Problem == "" && (len(one.Copies) != 1 || onlyCopy(s, name).State != model.Ready) {
					t.Errorf("the response has the disk with the image as %+v", one)
				}
			}
			queries++
		}
	}()
	for range 200 {
		r.Observe(without)
		r.Observe(with)
	}
	close(done)
	<-ended
	if queries == 0 {
		t.Error("no query was made")
	}
}

// A disk is unmounted after the last observation. A response must have the problem and no copies.
func TestResponseHasNoCopiesOfAnUnmountedDisk(t *testing.T) {
	t.Parallel()
	r, with, _ := newHolder(t, fetchtest.Random(3, 512))
	path := with.Config.Nodes[with.Node].Disks["disk1"].Path
	must(t, os.Rename(path, path+"-unmounted"))
	defer func() { must(t, os.Rename(path+"-unmounted", path)) }()
	s, err := r.served.Copies(t.Context(), "parrot", "")
	if err != nil || len(s.Disks) != 1 || s.Disks["disk1"].Problem == "" || len(s.Disks["disk1"].Copies) > 0 {
		t.Errorf("the response is %+v, %v", s, err)
	}
}

// Two nodes have a disk with the same uuid, because one machine is a clone. Both see the dispute, and
// each goes on to use its own disk.
func TestClonedDiskIsDisputedOnBothNodes(t *testing.T) {
	t.Parallel()
	c := newLAN(t, 2)
	identity, err := os.ReadFile(filepath.Join(c.nodes[0].disk, "longhorn-disk.cfg"))
	must(t, err)
	files.Put(t, string(identity), c.nodes[1].disk, "longhorn-disk.cfg")
	c.start(clusterSettings + "\nimages: {}")
	for _, m := range c.nodes {
		v := m.until("both disks disputed", func(v *status.View) bool {
			disputed := 0
			for _, seen := range v.Observed.Disks {
				if seen.Disputed != "" {
					disputed++
				}
			}
			return disputed == 2
		})
		s, err := m.reconciler.served.Copies(t.Context(), "parrot", "")
		if err != nil || s.Disks["disk1"].Problem != "" {
			t.Errorf("the response of %s is %+v, %v; it observes %+v", m.name, s, err, v.Observed.Disks)
		}
	}
}

func refOf(d plan.Desired) ident.DiskRef { return ident.DiskRef{Node: d.Node, Disk: "disk1"} }

// onlyCopy returns the only copy on a disk.
func onlyCopy(s model.Node, disk string) model.Copy {
	for _, c := range s.Disks[disk].Copies {
		return c
	}
	return model.Copy{}
}

package reconcile

import (
	"bytes"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
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
	r = New(fetch.Client{}, slog.New(slog.DiscardHandler), false)
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
	server := httptest.NewServer(peer.NewServer(r.local.peers.published, peerNode{served: &r.served}).Handler())
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
	s, err := peerNode{served: &r.served}.Copies(t.Context(), "parrot", "")
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
			s, err := peerNode{served: &r.served}.Copies(t.Context(), "parrot", "")
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
	s, err := peerNode{served: &r.served}.Copies(t.Context(), "parrot", "")
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
				if strings.Contains(seen.Disputed, "clone") {
					disputed++
				}
			}
			return disputed == 2
		})
		s, err := peerNode{served: &m.reconciler.served}.Copies(t.Context(), "parrot", "")
		if err != nil || s.Disks["disk1"].Problem != "" {
			t.Errorf("the response of %s is %+v, %v; it observes %+v", m.name, s, err, v.Observed.Disks)
		}
	}
}

func refOf(d plan.Desired) ident.DiskRef { return ident.DiskRef{Node: d.Node, Disk: "disk1"} }

// listingDisk is a Disk that calls listed after each listing.
type listingDisk struct {
	Disk
	listed func()
}

func (d listingDisk) List(name string) (Contents, error) {
	defer d.listed()
	return d.Disk.List(name)
}

// A copy is withdrawn and deleted while a slow response lists it. The response must not show
// the copy as one that stays.
func TestResponseShowsACopyWithdrawnDuringTheListingAsLeaving(t *testing.T) {
	t.Parallel()
	r, with, _ := newHolder(t, fetchtest.Random(3, 512))
	key := ident.CopyRef{Disk: refOf(with), ID: with.Config.Images["parrot"].ID}
	now := *r.served.disks.Load()
	one := now.byName["disk1"]
	one.handle = listingDisk{one.handle, func() {
		r.served.leaving.add(key)
		r.served.leaving.keep(func(ident.CopyRef) bool { return false })
	}}
	now.byName = map[string]servedDisk{"disk1": one}
	r.served.disks.Store(&now)
	s, err := r.Copies("parrot", "")
	if err != nil || len(s.Disks) != 1 || len(s.Disks["disk1"].Copies) != 1 || !onlyCopy(s, "disk1").Leaving {
		t.Errorf("the response is %+v, %v", s, err)
	}
	one.handle = one.handle.(listingDisk).Disk
	now.byName = map[string]servedDisk{"disk1": one}
	r.served.disks.Store(&now)
	if s, err := r.Copies("parrot", ""); err != nil || onlyCopy(s, "disk1").Leaving || len(r.served.leaving.watches) > 0 {
		t.Errorf("later the response is %+v, %v", s, err)
	}
}

// Two disks show one folder of a copy. Other nodes must not count the copy twice.
func TestSharedFolderIsOneCopyForOtherNodes(t *testing.T) {
	t.Parallel()
	r, with, _ := newHolder(t, fetchtest.Random(3, 512))
	now := *r.served.disks.Load()
	now.byName = map[string]servedDisk{"disk1": now.byName["disk1"], "disk2": now.byName["disk1"]}
	r.served.disks.Store(&now)
	queried, err := r.Copies("parrot", "")
	must(t, err)
	o := r.Observe(with)
	o.Disks[ident.DiskRef{Node: with.Node, Disk: "disk2"}] = model.Disk{Copies: maps.Clone(o.Disks[refOf(with)].Copies)}
	o.MarkSameCopies()
	for _, s := range []model.Node{queried, publishedState(plan.NewRound(with, o), plan.Plan{}, &r.jobs)} {
		if len(s.Disks) != 2 || onlyCopy(s, "disk1").State != model.Ready || onlyCopy(s, "disk2").State != model.Unknown {
			t.Errorf("the state is %+v", s)
		}
	}
}

// onlyCopy returns the only copy on a disk.
func onlyCopy(s model.Node, disk string) model.Copy {
	for _, c := range s.Disks[disk].Copies {
		return c
	}
	return model.Copy{}
}

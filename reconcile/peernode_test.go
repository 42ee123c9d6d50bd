package reconcile

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/files"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// shelf is a reconciler with an image on its only disk, and a configuration without it.
func shelf(t *testing.T, content []byte) (r *Reconciler, with, without plan.Desired) {
	t.Helper()
	origin := fetchtest.Start(t)
	url := origin.Serve("/a", fetchtest.Bytes(content))
	config := testSettings + "\nimages: {parrot: {uuid: \"00000001\", source: {download: {url: \"" + url + "\"}}}}"
	dir, other := newDisk(t), newDisk(t)
	with, without = plantest.Load(t, config, dir), plantest.Load(t, config, other)
	r = New(fetch.Client{}, slog.New(slog.DiscardHandler), false)
	t.Cleanup(func() { must(t, r.Close()) })
	_, _, err := r.Converge(t.Context(), with)
	must(t, err)
	return r, with, without
}

// TestDiskIsClosedUnderASend: what was begun to be sent is sent to its end, and nothing
// else is told of the disk.
func TestDiskIsClosedUnderASend(t *testing.T) {
	t.Parallel()
	content := fetchtest.Random(3, 24<<20)
	r, _, without := shelf(t, content)
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
		t.Errorf("%d bytes came, %v", len(got)+len(rest), err)
	}
	s, err := peerNode{served: &r.served}.Copies(t.Context(), "parrot")
	if err != nil || len(s.Disks) != 1 || len(s.Disks[0].Copies) != 0 {
		t.Errorf("told is %+v, %v", s, err)
	}
}

// TestLookWhileDisksComeAndGo: a disk that is closed during a look has a problem, and
// never no copies.
func TestLookWhileDisksComeAndGo(t *testing.T) {
	t.Parallel()
	r, with, without := shelf(t, fetchtest.Random(3, 512))
	uuid := r.Observe(with).Disks[refOf(with)].UUID
	done, ended := make(chan struct{}), make(chan struct{})
	looks := 0
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
			}
			s, err := peerNode{served: &r.served}.Copies(t.Context(), "parrot")
			if err != nil {
				t.Error(err)
			}
			for _, one := range s.Disks {
				if one.UUID == uuid && one.Problem == "" && (len(one.Copies) != 1 || one.Copies[0].State != disk.Ready) {
					t.Errorf("the disk with the image is told as %+v", one)
				}
			}
			looks++
		}
	}()
	for range 200 {
		r.Observe(without)
		r.Observe(with)
	}
	close(done)
	<-ended
	if looks == 0 {
		t.Error("nobody looked")
	}
}

// TestDiskWithAProblemTellsNoCopies: an answer knows nothing of what it cannot be sure of.
func TestDiskWithAProblemTellsNoCopies(t *testing.T) {
	t.Parallel()
	r, with, _ := shelf(t, fetchtest.Random(3, 512))
	path := with.Config.Nodes[with.Node].Disks["disk1"].Path
	must(t, os.Rename(path, path+"-away")) // since the last look
	defer func() { must(t, os.Rename(path+"-away", path)) }()
	s, err := peerNode{served: &r.served}.Copies(t.Context(), "parrot")
	if err != nil || len(s.Disks) != 1 || s.Disks[0].Problem == "" || len(s.Disks[0].Copies) > 0 {
		t.Errorf("told is %+v, %v", s, err)
	}
}

// TestClonesAreRefused on both machines, as long as both answer.
func TestClonesAreRefused(t *testing.T) {
	t.Parallel()
	c := newLAN(t, 2)
	identity, err := os.ReadFile(filepath.Join(c.nodes[0].disk, "longhorn-disk.cfg"))
	must(t, err)
	files.Put(t, string(identity), c.nodes[1].disk, "longhorn-disk.cfg")
	c.start(clusterSettings + "\nimages: {}")
	for _, m := range c.nodes {
		v := m.until("refused", func(v *status.View) bool {
			refused := 0
			for _, seen := range v.Observed.Disks {
				if strings.Contains(seen.Problem, "clone") {
					refused++
				}
			}
			return refused == 2
		})
		s, err := peerNode{served: &m.reconciler.served}.Copies(t.Context(), "parrot")
		if err != nil || s.Disks[0].Problem == "" {
			t.Errorf("%s tells %+v, %v; it sees %+v", m.name, s, err, v.Observed.Disks)
		}
	}
}

func refOf(d plan.Desired) schema.DiskRef { return schema.DiskRef{Node: d.Node, Disk: "disk1"} }

package reconcile

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// startOfTest is the modification time of files on test servers.
var startOfTest = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// An image without a checksum is damaged. If its source has the same bytes, it is downloaded
// again at once. If the source has other bytes by now, they are accepted only after the recovery
// interval.
func TestDamagedCopyKeepsItsDigest(t *testing.T) {
	served := randomImage(2 << 20)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", startOfTest, bytes.NewReader(served))
	}))
	defer upstream.Close()
	path := newDisk(t)
	converge := func(interval string) (model.Copy, plan.Plan) {
		d := plantest.Load(t, fmt.Sprintf(`
settings: {allowLoopbackSources: true, recoveryWaitInterval: %s}
images: {parrot: {source: {download: {url: "%s/parrot.raw"}}}}
`, interval, upstream.URL), path)
		r := New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), false)
		defer r.Close()
		o, planned, err := r.Converge(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		for _, seen := range o.Disks {
			return seen.Copies[d.Config.Images["parrot"].ID], planned
		}
		t.Fatal("no disk was observed")
		return model.Copy{}, planned
	}
	damage := func(c model.Copy) {
		name := filepath.Join(path, "backing-images", c.ID.String(), "backing")
		if err := os.WriteFile(name, []byte("damage"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	first, _ := converge("1h")
	damage(first)
	if c, _ := converge("1h"); c.State != model.Ready || c.SHA512 != first.SHA512 {
		t.Errorf("with the same bytes at the source the copy is %s with %s, want ready with %s", c.State, c.SHA512.Short(), first.SHA512.Short())
	}
	damage(first)
	served = make([]byte, 1<<20)
	c, planned := converge("1h")
	if c.State != model.Failed || len(planned.Actions) != 1 || planned.Actions[0].Op != model.Wait || planned.Actions[0].Until.IsZero() {
		t.Errorf("with other bytes at the source the copy is %s, the plan %+v", c.State, planned.Actions)
	}
	if c, _ := converge("0"); c.State != model.Ready || c.SHA512 == first.SHA512 {
		t.Errorf("after the interval the copy is %s with %s", c.State, c.SHA512.Short())
	}
}

// A server sends no Content-Length and drops every connection, so that only the error of the
// transfer shows that bytes are missing. The copy must not become ready.
func TestTruncatedDownloadIsNeverReady(t *testing.T) {
	upstream := fetchtest.Start(t)
	for _, at := range []int64{disk.ChunkSize / 2, 2 * disk.ChunkSize, 3*disk.ChunkSize - 512} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			url := upstream.Serve(fmt.Sprintf("/%d.raw", at), fetchtest.Bytes(fetchtest.Random(1, 3*disk.ChunkSize)),
				fetchtest.Fault{Kind: fetchtest.Chunked}, fetchtest.Fault{Kind: fetchtest.NoRange}, fetchtest.Fault{Kind: fetchtest.Cut, At: at})
			d := plantest.Load(t, fmt.Sprintf("settings: {allowLoopbackSources: true}\nimages: {parrot: {source: {download: {url: %q}}}}", url), newDisk(t))
			r := New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), false)
			defer r.Close()
			o, plan, err := r.Converge(t.Context(), d)
			must(t, err)
			for _, seen := range o.Disks {
				if c := seen.Copies[d.Config.Images["parrot"].ID]; c.State == model.Ready || len(o.Failures) != 1 {
					t.Errorf("the copy is %+v, failures %+v, left to do: %+v", c, o.Failures, plan.Actions)
				}
			}
		})
	}
}

// A sector of a ready copy cannot be read until it is written again. The verification rewrites
// it with the bytes of another copy on the node, and fails if there is none.
func TestVerifyRewritesUnreadableSectors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "parrot.raw")
	if err := os.WriteFile(file, randomImage(4*disk.ChunkSize), 0o644); err != nil {
		t.Fatal(err)
	}
	config := `images: {parrot: {minNumberOfCopies: all, source: {download: {url: "file://` + file + `"}}}}`
	for _, alone := range []bool{true, false} {
		v := faultfs.Mount(t).NewVolume()
		if _, err := disk.Init(v.Path()); err != nil {
			t.Fatal(err)
		}
		paths := []string{v.Path(), newDisk(t)}
		if alone {
			paths = paths[:1]
		}
		d := plantest.Load(t, config, paths...)
		r := New(fetch.Client{AllowAnyFile: true}, nil, slog.New(slog.DiscardHandler), false)
		defer r.Close()
		if _, _, err := r.Converge(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		key := ident.CopyRef{ID: d.Config.Images["parrot"].ID}
		for name, declared := range d.Config.Nodes[d.Node].Disks {
			if declared.Path == v.Path() {
				key.Disk = ident.DiskRef{Node: d.Node, Disk: name}
			}
		}
		reads, written := 0, false
		v.Plan(func(op faultfs.Op) error {
			switch isImage := strings.HasSuffix(op.Path, "/backing"); {
			case isImage && op.Kind == "open":
				reads = 0
			case isImage && op.Kind == "write":
				written = true
			case isImage && op.Kind == "read":
				if reads++; reads == 2 && !written {
					return syscall.EIO
				}
			}
			return nil
		})
		d.Verify = map[ident.CopyRef]bool{key: true}
		r.round(t.Context(), d)
		<-r.jobs.reports.ready
		e := r.jobs.reports.take()[0]
		r.endJob(e)
		v.Plan(nil)
		d.Verify = nil
		if c := r.Observe(d).Disks[key.Disk].Copies[key.ID]; (e.err != nil) != alone || written == alone || c.State != model.Ready {
			t.Errorf("alone %v: error %v, written %v, the copy is %s", alone, e.err, written, c.State)
		}
		if alone && !disk.IsMediaError(e.err) {
			t.Errorf("the error is no media error: %v", e.err)
		}
	}
}

// once converges a node without a daemon to its config directory.
func (m *manager) once() (plan.Observed, plan.Plan) {
	m.t.Helper()
	snapshot, err := configdir.Read(m.conf)
	must(m.t, err)
	d, err := plan.NewDesired(load.NewLoader().Load(m.t.Context(), snapshot).Loaded, m.name, nil)
	must(m.t, err)
	r := New(fetch.Client{}, peer.NewClient(func() string { return m.name }, nil), slog.New(slog.DiscardHandler), false)
	r.WaitForPeers(m.t.Context(), d)
	o, plan, err := r.Converge(m.t.Context(), d)
	must(m.t, err)
	must(m.t, r.Close())
	return o, plan
}

// A single run without a daemon syncs from the daemons of other nodes, and queries them before it
// deletes a copy.
func TestConvergeAmongDaemons(t *testing.T) {
	t.Parallel()
	c := newLAN(t, 2)
	url := c.upstream.Serve("/a", fetchtest.Bytes(fetchtest.Random(1, 3<<20)))
	c.start(clusterSettings + "\n" + c.image(1, url))
	best, other := c.ranked()[0], c.ranked()[1]
	best.until("the first copy ready", func(v *status.View) bool { return best.holds(v) && len(v.Observed.Running) == 0 })
	must(t, other.end())
	here := ident.DiskRef{Node: other.name, Disk: "a"}
	declareAndRun := func(copies int) (plan.Observed, plan.Plan) {
		c.declare(clusterSettings+"\n"+c.image(copies, url), c.nodes...)
		best.until("the configuration applied", func(v *status.View) bool { return v.Desired.Config.Images["parrot"].Copies == copies })
		return other.once()
	}
	o, planned := declareAndRun(2)
	if !planned.Empty() || !isReadyOn(&status.View{Observed: o}, here) || len(c.upstream.Requests()) != 1 {
		t.Errorf("with two copies %+v is left, the disks are %+v, the server had %d requests", planned.Actions, o.Disks, len(c.upstream.Requests()))
	}
	best.pass(func(_ string, r *http.Request) bool { return !isQuery(r) })
	if o, planned := declareAndRun(1); !isReadyOn(&status.View{Observed: o}, here) || len(planned.Actions) != 1 || planned.Actions[0].Op != model.Wait {
		t.Errorf("without a response about the other copy, %+v is left, the disks are %+v", planned.Actions, o.Disks)
	}
	best.pass(nil)
	if o, planned := declareAndRun(1); isReadyOn(&status.View{Observed: o}, here) || !planned.Empty() {
		t.Errorf("with one copy %+v is left, the disks are %+v", planned.Actions, o.Disks)
	}
}

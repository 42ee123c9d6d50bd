package reconcile

import (
	"crypto/sha512"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// A node claims to have the only copy of an image, and sends nothing. After the recovery interval the
// image is downloaded, also if its source is packed, so that the sync itself cannot read it. The same holds for
// a damaged copy, which a repair and a sync try to restore in turn. A sync that receives most of the image goes on.
func TestSourceThatSendsNothingIsLeftAside(t *testing.T) {
	for _, test := range []struct {
		name     string
		change   func(*schema.Image)
		err      error
		received int64      // in each attempt
		damaged  []model.Op // the attempts for a damaged copy; nil: there is no copy, and each attempt is a sync
		want     model.Op
	}{
		{"nothing", func(*schema.Image) {}, io.ErrUnexpectedEOF, 0, nil, model.Download},
		{"next to nothing", func(*schema.Image) {}, io.ErrUnexpectedEOF, 1 << 20, nil, model.Download},
		{"a dropped connection", func(*schema.Image) {}, io.ErrUnexpectedEOF, 1 << 30, nil, model.Sync},
		{"a low limit", func(i *schema.Image) { i.BandwidthLimit = 4 << 10 }, io.ErrUnexpectedEOF, 1 << 20, nil, model.Sync},
		{"the lowest limit", func(i *schema.Image) { i.BandwidthLimit = 1 }, io.ErrUnexpectedEOF, 0, nil, model.Download},
		{"a damaged copy, after a sync", func(*schema.Image) {}, io.ErrUnexpectedEOF, 0, []model.Op{model.Repair, model.Repair, model.Repair, model.Sync}, model.Download},
		{"a damaged copy, after a repair", func(*schema.Image) {}, io.ErrUnexpectedEOF, 0, []model.Op{model.Repair, model.Sync, model.Repair, model.Repair}, model.Download},
		{"a full disk", func(*schema.Image) {}, disk.ErrNoSpace, 0, nil, model.Sync},
		{"no checksum", func(i *schema.Image) { i.Checksum = ident.Digest{} }, io.ErrUnexpectedEOF, 0, nil, model.Sync},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, image, refs := plantest.TwoNodes(2)
			image.Source = schema.Source{Download: &schema.Download{URL: "https://example.com/parrot.xz", Unpack: "xz"}}
			digest := image.Checksum
			test.change(&image)
			c.Images[image.ID.Name] = image
			empty := plantest.EmptyDisks(c)
			claimed := plantest.ReadyCopy(image, digest)
			empty.Disks[refs[0]].Copies[image.ID] = claimed
			if test.damaged != nil {
				empty.Disks[refs[1]].Copies[image.ID] = plantest.FailedCopy(image, digest)
			}
			d, o := plantest.AsNode(refs[1].Node, c, empty)
			key := ident.CopyRef{Disk: refs[1], ID: image.ID}
			o.Peers[refs[0].Node] = model.Peer{Queried: true, ConfigDigest: d.Digest}
			c.Settings.RecoveryWaitInterval = 5 * time.Minute

			r, now := New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), true), time.Now()
			r.clock.now = func() system.Instant { return system.Instant{Wall: now.Round(0), Steady: now} }
			source := peer.Source{Address: peer.Address{Node: refs[0].Node}, Disk: refs[0].Disk, ID: image.ID, ManifestDigest: claimed.ManifestDigest}
			attempts := 0
			for began := now; now.Sub(began) <= 5*time.Minute; now = now.Add(time.Minute) {
				op := model.Sync
				if test.damaged != nil {
					op = test.damaged[attempts]
				}
				attempts++
				read := plan.NewAction(op, key, model.Reason{}, 0)
				read.From = ident.CopyRef{Disk: refs[0], ID: image.ID}
				run := &activeJob{stop: func() {}, started: r.clock.now(), recovery: 5 * time.Minute, order: job.Order{
					Action: read, Image: image, Digest: digest, Progress: &fetch.Progress{},
					PeerCopies: func() []peer.Source { return []peer.Source{source} },
				}}
				run.order.Progress.PeerBytes.Store(test.received)
				r.jobs.add(run)
				now = now.Add(30 * time.Second)
				err := error(&fetch.Error{Class: fetch.Network, Err: test.err})
				if errors.Is(test.err, disk.ErrNoSpace) {
					err = test.err
				}
				r.endJob(report{run: run, err: err})
				if len(r.ledger.Readable([]peer.Source{source}, digest)) == 0 && now.Sub(began) < 5*time.Minute {
					t.Fatalf("the source is left aside after %v", now.Sub(began))
				}
			}
			now = now.Add(-30 * time.Second) // soon after the last attempt
			o.Now = now.Round(0)
			o.Failures = maps.Clone(r.failures.OnWallClock(r.clock.now()))
			if f := o.Failures[key]; f.RetryAt.After(o.Now) { // the next attempt is due
				f.RetryAt, f.NeedsSpace = o.Now, 0
				o.Failures[key] = f
			}
			r.ledger.Apply(d, &o)
			got := plan.NewRound(d, o).Plan().Actions
			if !slices.ContainsFunc(got, func(a plan.Action) bool { return a.CopyRef() == key && a.Op == test.want }) {
				t.Errorf("the plan is %+v", got)
			}
		})
	}
}

// A node claims the bytes of an image under ever new names, with another chunk manifest for each, and sends
// other bytes. The manager must not try one name after the other.
func TestWrongBytesUnderManyNamesCostOneTransfer(t *testing.T) {
	t.Parallel()
	const size = 1<<20 + 512
	right := fetchtest.Random(1, size)
	upstream := fetchtest.Start(t)
	url := upstream.Serve("/a", fetchtest.Bytes(right))
	checksum := fmt.Sprintf("%x", sha512.Sum512(right))
	digest, err := ident.ParseDigest(checksum)
	must(t, err)
	id := ident.ID{Name: "parrot", UUID: "0000000a"}
	copies := model.Copies{}
	wrong := map[string]*disk.Disk{} // by name
	for i := range 6 {
		name := ident.ID{Name: fmt.Sprint("orphan", i), UUID: "0000000b"}
		d, c := commitCopy(t, name, fetchtest.Random(uint64(i+2), size))
		c.SHA512, c.Owned, wrong[name.Name] = digest, true, d
		copies[c.ID] = c.ForPeers()
	}
	evil := newClaimant(t, func() model.Node {
		return model.Node{Version: model.Version, Node: "evil", Disks: map[string]model.Disk{"a": {UUID: "u", Copies: copies, Space: model.Space{Total: 1 << 40, Free: 1 << 40}}}}
	})
	var sent atomic.Int64
	evil.mux.HandleFunc("GET /v1/images/{name}/{uuid}/{part}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("part") == "manifest" {
			sent.Add(1)
		}
		peer.NewServer(peer.NewStateCache(), wrongBytes{disk: wrong[r.PathValue("name")]}).Handler().ServeHTTP(w, r)
	})
	l := startBeside(t, evil.URL, fmt.Sprintf("%s\nimages: {parrot: {uuid: \"0000000a\", nodeSelector: [own], checksum: %q, source: {download: {url: %q}}}}\n", clusterSettings, checksum, url))
	own := ident.DiskRef{Node: "n1", Disk: "a"}
	l.until("ready", func(v *status.View) bool { return v.Observed.Disks[own].Copies[id].State == model.Ready })
	if sent.Load() != 1 {
		t.Errorf("%d manifests were sent", sent.Load())
	}
}

// Verifications of copies on other nodes last as long as these nodes like. They must not take the slots of
// transfers, nor say anything about the copies of this node.
func TestVerificationsOfPeersDelayNoTransfer(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	own, far := ident.CopyRef{Disk: refs[0], ID: image.ID}, ident.CopyRef{Disk: refs[1], ID: image.ID}
	verify := plan.NewAction(model.Verify, own, model.Reason{}, 0)
	verify.From = far
	c.Settings.ConcurrentReplenishPerNodeLimit = 2
	d := plan.Desired{Config: c}
	j := newJobs()
	for i := range 2 {
		j.running[ident.CopyRef{ID: ident.ID{Name: fmt.Sprint(i)}}] = &activeJob{order: job.Order{Action: verify}}
	}
	free := j.freeSlots(d)
	if free.acquire(verify) {
		t.Error("a third verification may start")
	}
	if !free.acquire(plan.NewAction(model.Download, own, model.Reason{}, 0)) || !free.acquire(plan.NewAction(model.Cleanup, own, model.Reason{}, 0)) {
		t.Error("no other job may start")
	}

	read := plan.NewAction(model.Sync, ident.CopyRef{Disk: refs[1], ID: image.ID}, model.Reason{}, 0)
	read.LocalSource, read.SourceDigest = own, image.Checksum
	r := finished(read, &disk.ChecksumError{Want: image.Checksum, Got: plantest.Digest(ident.SHA512, "b")})
	finishJob(r, verify, nil)
	if len(r.failures[read.CopyRef()].Suspects) != 1 {
		t.Error("a copy of this node is not suspected any more after a copy on another node was verified")
	}
	run := newRun(verify, image)
	run.order.Digest = image.Checksum
	r.jobs.add(run)
	r.endJob(report{run: run, err: io.ErrUnexpectedEOF})
	o := plan.Observed{Disks: map[ident.DiskRef]model.Disk{far.Disk: {Copies: map[ident.ID]model.Copy{image.ID: plantest.ReadyCopy(image, image.Checksum)}}}}
	if r.ledger.Apply(d, &o); !o.Unanswered[far] {
		t.Error("a copy that was not sent in full is read first again")
	}
	q := newRequested()
	q.verify[own] = true
	if q.note([]report{{run: newRun(verify, image)}}); !q.verify[own] {
		t.Error("the request to verify the copy of this node is dropped")
	}
}

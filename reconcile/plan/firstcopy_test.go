package plan_test

import (
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

func expectNoDownload(t *testing.T, p plan.Plan) {
	t.Helper()
	for _, a := range p.Actions {
		if a.Op == model.Download {
			t.Errorf("download of %s: %s", a.CopyRef(), a.Text)
		}
	}
}

// A peer responds and has a file of the image that it has yet to verify (changed, or from
// Longhorn). Adoption comes before a first copy: a download could bring other bytes.
func TestNoFirstCopyBesideAnUnverifiedFile(t *testing.T) {
	for _, test := range []struct {
		name            string
		running, ranked bool
	}{
		{"on a ranked disk", false, true},
		{"on a ranked disk that verifies it", true, true},
		{"on an evicted disk", false, false},
		{"on an evicted disk that verifies it", true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, image, refs := plantest.TwoNodes(2)
			image.Checksum = ident.Digest{}
			c.Images["parrot"] = image
			if !test.ranked {
				node := c.Nodes[refs[1].Node]
				node.EvictionRequested = true
				c.Nodes[refs[1].Node] = node
			}
			o := plantest.EmptyDisks(c)
			unverified := plantest.ReadyCopy(image, plantest.Digest(ident.SHA512, "b"))
			unverified.State, unverified.Message = model.Unknown, "changed since it was verified: ctime"
			o.Disks[refs[1]].Copies[image.ID] = unverified
			if test.running {
				o.Running[ident.CopyRef{Disk: refs[1], ID: image.ID}] = true
			}
			d, o := plantest.AsNode(refs[0].Node, c, o)
			expectNoDownload(t, plan.NewRound(d, o).Plan())
		})
	}
}

// No first copy may start while another manager of the same node owns a disk that may have the
// image.
func TestNoFirstCopyBesideAnotherManagerOfTheNode(t *testing.T) {
	for _, name := range []string{"a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8"} { // ranked differently
		c := plantest.NewConfig(2, 2)
		image := plantest.NewImage(name)
		image.Checksum = ident.Digest{}
		c.Images[name] = image
		c.Settings.RecoveryWaitInterval = 5 * time.Minute
		d, o := plantest.AsNode("node1", c, plantest.EmptyDisks(c))
		d.OnlyDisks = map[string]bool{"disk2": true}
		delete(o.Disks, ident.DiskRef{Node: "node1", Disk: "disk1"})
		expectNoDownload(t, plan.NewRound(d, o).Plan())
	}
}

// A disk is not mounted yet when its manager starts, or drops out for a moment. Its copy may
// have established the digest of an image without a checksum: no other node may download the
// image at once.
func TestNoFirstCopyWhileADiskIsMissing(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	image.Checksum = ident.Digest{}
	c.Images["parrot"] = image
	o := plantest.EmptyDisks(c)
	o.Disks[refs[0]] = model.Disk{Problem: "no disk here"}
	d, o := plantest.AsNode(refs[1].Node, c, o)
	expectNoDownload(t, plan.NewRound(d, o).Plan())
}

// The image names a disk without a rank, which has the partial file of an upload. Clients upload
// to ranked disks, so that no client continues it, and a new upload must be possible. A partial
// file on the ranked disk is not replaced.
func TestUploadIgnoresAPartialFileOnAnUnrankedDisk(t *testing.T) {
	c, image := plantest.NewConfig(1, 2), plantest.NewImage("parrot")
	ranked, named := ident.DiskRef{Node: "node1", Disk: "disk1"}, ident.DiskRef{Node: "node1", Disk: "disk2"}
	disks := c.Nodes["node1"].Disks
	ssd := disks[ranked.Disk]
	ssd.Tags = []string{"ssd"}
	disks[ranked.Disk] = ssd
	image.Source, image.DiskSelector, image.Disks = schema.Source{Upload: &schema.Upload{}}, []string{"ssd"}, []ident.DiskRef{named}
	c.Images["parrot"] = image
	d, o := plantest.AsNode("node1", c, plantest.EmptyDisks(c))
	part := model.Copy{ID: image.ID, State: model.Pending, Owned: true, PartBytes: 1 << 20, PartTotal: 1 << 30, PartKind: model.PartFromUpload}
	o.Disks[named].Copies[image.ID] = part
	if to, err := plan.NewRound(d, o).UploadTo(image, ident.Digest{}); err != nil || to.Disk != ranked {
		t.Errorf("the upload is sent to %s, error %v", to, err)
	}
	delete(o.Disks[named].Copies, image.ID)
	o.Disks[ranked].Copies[image.ID] = part
	if _, err := plan.NewRound(d, o).UploadTo(image, ident.Digest{}); err == nil {
		t.Error("a second upload replaces one that can continue")
	}
}

// An upload has no signature. If the settings require one, the first copy needs an exemption. An upload of an image that is
// ready is rejected for that reason, as always.
func TestUploadNeedsAnExemptionIfSignaturesAreRequired(t *testing.T) {
	c, image := plantest.NewConfig(1, 1), plantest.NewImage("parrot")
	image.Source, image.Checksum = schema.Source{Upload: &schema.Upload{}}, ident.Digest{}
	c.Images["parrot"] = image
	for _, tt := range []struct {
		exempt []string
		good   bool
	}{{nil, false}, {[]string{"macaw"}, false}, {[]string{"par*"}, true}} {
		c.Settings.Verify = &schema.VerifyPolicy{Required: true, Exempt: tt.exempt}
		d, o := plantest.AsNode("node1", c, plantest.EmptyDisks(c))
		if to, err := plan.NewRound(d, o).UploadTo(image, ident.Digest{}); (err == nil) != tt.good || !tt.good && !strings.Contains(err.Error(), "settings.verify") {
			t.Errorf("exempt %v: %v, %v", tt.exempt, to, err)
		}
	}
}

package plantest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// Now is the time at which golden states, and the states of this package, are observed.
var Now = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// Letters are the names of image contents. In golden files, SHA512(a) and SHA256(a) are the digests
// of the content "a".
var Letters = strings.Split("abcdef", "")

// Digest returns the digest of the image content with that name.
func Digest(a ident.Algorithm, content string) ident.Digest {
	h := a.New()
	h.Write([]byte(content))
	return a.Digest(h)
}

// Load returns the desired state of node1 for the text of a configuration file. paths are the disks
// that the node owns, as in [plan.NewDesired]; without paths, all declared disks.
func Load(t *testing.T, config string, paths ...string) plan.Desired {
	t.Helper()
	r := load.NewLoader().Load(t.Context(), configdir.Snapshot{Files: []configdir.File{{Path: "config.yaml", Data: []byte(config)}}})
	for _, p := range r.Errors {
		t.Fatal(p)
	}
	d, err := plan.NewDesired(r.Loaded, "node1", paths)
	if err != nil {
		t.Fatal(err)
	}
	d.Removed = plan.AlwaysConfirmed
	return d
}

// NewConfig returns a configuration of the nodes node1, node2, …, each with the disks disk1, disk2,
// …. It has no images, and all settings are zero.
func NewConfig(nodes, disks int) schema.Config {
	c := schema.Config{Nodes: map[string]schema.Node{}, Images: map[string]schema.Image{}}
	for n := range nodes {
		node := schema.Node{AllowScheduling: true, Disks: map[string]schema.Disk{}}
		for d := range disks {
			name := fmt.Sprintf("disk%d", d+1)
			node.Disks[name] = schema.Disk{Path: "/" + name, AllowScheduling: true}
		}
		c.Nodes[fmt.Sprintf("node%d", n+1)] = node
	}
	return c
}

// NewImage returns an image with one copy, a download source and the checksum of the content "a".
func NewImage(name string) schema.Image {
	return schema.Image{
		ID: ident.ID{Name: name, UUID: "0000000a"}, Copies: 1, Checksum: Digest(ident.SHA512, "a"),
		Source: schema.Source{Download: &schema.Download{URL: "https://example.com/" + name}},
	}
}

// RankedDisks returns the disks that match an image, best rank first.
func RankedDisks(c schema.Config, image schema.Image) []ident.DiskRef {
	image.AllDisks, image.Disks = true, nil
	return plan.NewDiskList(c.Nodes).Desired(image)
}

// TwoNodes returns a configuration of two nodes with one disk each, its only image parrot, and the
// disks in the order of their rank for this image.
func TwoNodes(copies int) (schema.Config, schema.Image, []ident.DiskRef) {
	c := NewConfig(2, 1)
	image := NewImage("parrot")
	image.Copies = copies
	c.Images["parrot"] = image
	c.Settings.RecoveryWaitInterval = 5 * time.Minute
	c.Settings.CleanupWaitInterval = time.Hour
	c.Settings.ConcurrentReplenishPerNodeLimit = 5
	return c, image, RankedDisks(c, image)
}

// EmptyDisks returns an observed state in which all disks of c are large and empty. All nodes of c
// are peers that respond and have the same configuration as AsNode returns.
func EmptyDisks(c schema.Config) plan.Observed {
	o := plan.Observed{Now: Now, Disks: map[ident.DiskRef]model.Disk{}, Peers: map[string]model.Peer{}, Failures: map[ident.CopyRef]model.Failure{}, Running: map[ident.CopyRef]bool{}}
	for name, node := range c.Nodes {
		for diskName := range node.Disks {
			ref := ident.DiskRef{Node: name, Disk: diskName}
			o.Disks[ref] = model.Disk{UUID: name + diskName, Space: model.Space{Free: 1 << 40}, Copies: map[ident.ID]model.Copy{}}
		}
		o.Peers[name] = model.Peer{Queried: true, ConfigDigest: "d"}
	}
	return o
}

// AsNode returns the desired state of a node with the configuration c, and a copy of o without the
// node itself among the peers. The copy shares all maps of o except Peers.
func AsNode(node string, c schema.Config, o plan.Observed) (plan.Desired, plan.Observed) {
	peers := map[string]model.Peer{}
	for name, p := range o.Peers {
		if name != node {
			peers[name] = p
		}
	}
	o.Peers = peers
	return plan.Desired{Node: node, Config: c, Digest: "d", Allowed: schema.Everything, Removed: plan.AlwaysConfirmed}, o
}

// ReadyCopy returns an owned, ready copy of the image with the SHA-512 digest, which peers can
// sync.
func ReadyCopy(image schema.Image, digest ident.Digest) model.Copy {
	return model.Copy{ID: image.ID, State: model.Ready, Owned: true, HasCfg: true, SHA512: digest, ManifestDigest: Digest(ident.SHA256, "m"), Size: 1 << 20}
}

// FailedCopy returns a copy like ReadyCopy, but it was found damaged one minute before Now.
func FailedCopy(image schema.Image, digest ident.Digest) model.Copy {
	c := ReadyCopy(image, digest)
	c.State, c.Message, c.DamagedAt = model.Failed, "it is damaged", Now.Add(-time.Minute)
	return c
}

// ExpectAction fails the test if every action of the plans is waiting or blocked.
func ExpectAction(t *testing.T, plans ...plan.Plan) {
	t.Helper()
	found := false
	for _, p := range plans {
		for _, a := range p.Actions {
			t.Logf("%s/%s: %s: %s (until %v)", a.Node, a.Disk, a.Op, a.Reason, a.Until)
			found = found || !a.Idle()
		}
	}
	if !found {
		t.Error("no plan has an action to execute")
	}
}

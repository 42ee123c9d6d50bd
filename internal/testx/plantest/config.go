package plantest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// Now is when the states of testdata/plan were seen.
var Now = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// A golden names digests by the letters that they are of: SHA512(a), SHA256(a).
var Letters = strings.Split("abcdef", "")

func Digest(a disk.Algorithm, letter string) disk.Digest {
	h := a.New()
	h.Write([]byte(letter))
	return a.Digest(h)
}

func Load(t *testing.T, config string, paths ...string) plan.Desired {
	t.Helper()
	r := schema.NewLoader().Load(t.Context(), configdir.Snapshot{Files: []configdir.File{{Path: "config.yaml", Data: []byte(config)}}})
	for _, p := range r.Errors {
		t.Fatal(p)
	}
	d, err := plan.NewDesired(r, "node1", paths)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// NewConfig has so many nodes with so many disks each.
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

func NewImage(name string) schema.Image {
	return schema.Image{
		ID: disk.ID{Name: name, UUID: "0000000a"}, Copies: 1, Checksum: Digest(disk.SHA512, "a"),
		Source: schema.Source{Download: &schema.Download{URL: "https://example.com/" + name}},
	}
}

// RankedDisks ranks the disks of a configuration for one image.
func RankedDisks(c schema.Config, image schema.Image) []schema.DiskRef {
	image.AllDisks, image.Disks = true, nil
	return plan.NewRankCache(c.Nodes, 0).DesiredDisks(image)
}

// TwoNodes are two nodes that see each other, with one disk each and nothing on them.
func TwoNodes(copies int) (schema.Config, schema.Image, []schema.DiskRef) {
	c := NewConfig(2, 1)
	image := NewImage("parrot")
	image.Copies = copies
	c.Images["parrot"] = image
	c.Settings.RecoveryWaitInterval = 5 * time.Minute
	c.Settings.CleanupWaitInterval = time.Hour
	c.Settings.ConcurrentReplenishPerNodeLimit = 5
	return c, image, RankedDisks(c, image)
}

func EmptyDisks(c schema.Config) plan.Observed {
	o := plan.Observed{Now: Now, Disks: map[schema.DiskRef]plan.Disk{}, Peers: map[string]plan.Peer{}, Failures: map[plan.CopyRef]plan.Failure{}, Running: map[plan.CopyRef]bool{}}
	for name, node := range c.Nodes {
		for on := range node.Disks {
			ref := schema.DiskRef{Node: name, Disk: on}
			o.Disks[ref] = plan.Disk{UUID: name + on, Space: disk.Space{Free: 1 << 40}, Copies: map[disk.ID]plan.Copy{}}
		}
		o.Peers[name] = plan.Peer{Queried: true, ConfigDigest: "d"}
	}
	return o
}

func AsNode(node string, c schema.Config, o plan.Observed) (plan.Desired, plan.Observed) {
	peers := map[string]plan.Peer{}
	for name, p := range o.Peers {
		if name != node {
			peers[name] = p
		}
	}
	o.Peers = peers
	return plan.Desired{Node: node, Config: c, Digest: "d", Allowed: schema.Everything}, o
}

func ReadyCopy(image schema.Image, sum disk.Digest) plan.Copy {
	return plan.Copy{Copy: disk.Copy{ID: image.ID, State: disk.Ready, Owned: true, HasCfg: true, SHA512: sum, ManifestDigest: Digest(disk.SHA256, "m"), Size: 1 << 20}}
}

func FailedCopy(image schema.Image, sum disk.Digest) plan.Copy {
	c := ReadyCopy(image, sum)
	c.State, c.Message, c.DamagedAt = disk.Failed, "it is damaged", Now.Add(-time.Minute)
	return c
}

func ExpectAction(t *testing.T, plans ...plan.Plan) {
	t.Helper()
	acts := false
	for _, p := range plans {
		for _, a := range p.Actions {
			t.Logf("%s/%s: %s: %s (until %v)", a.Node, a.Disk, a.Op, a.Reason, a.Until)
			acts = acts || !a.Idle()
		}
	}
	if !acts {
		t.Error("nobody does anything")
	}
}

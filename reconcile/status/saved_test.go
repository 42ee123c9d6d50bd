package status

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// testCluster is a cluster of nodes with one disk each, an image, and what each node observes of
// itself.
type testCluster struct {
	config   schema.Config
	image    schema.Image
	observed map[string]plan.Observed
}

func newTestCluster(nodes, copies int) testCluster {
	c := testCluster{observed: map[string]plan.Observed{}, image: schema.Image{
		ID: ident.ID{Name: "parrot", UUID: "0000000a"}, Copies: copies,
		Source: schema.Source{Download: &schema.Download{URL: "https://example.com/parrot.raw"}},
	}}
	c.config = schema.Config{
		Settings: schema.Settings{RecoveryWaitInterval: 5 * time.Minute, ConcurrentReplenishPerNodeLimit: 5},
		Nodes:    map[string]schema.Node{}, Images: map[string]schema.Image{"parrot": c.image},
	}
	for n := range nodes {
		name := fmt.Sprintf("node%d", n+1)
		c.config.Nodes[name] = schema.Node{AllowScheduling: true, Disks: map[string]schema.Disk{"disk1": {Path: "/disk1", AllowScheduling: true}}}
		c.observed[name] = plan.Observed{
			Now: testNow, Failures: map[ident.CopyRef]model.Failure{}, Running: map[ident.CopyRef]bool{}, Peers: map[string]model.Peer{},
			Disks: map[ident.DiskRef]model.Disk{{Node: name, Disk: "disk1"}: {
				Path: "/disk1", UUID: name, Space: model.Space{Total: 100 << 30, Free: 50 << 30}, Copies: map[ident.ID]model.Copy{},
			}},
		}
	}
	return c
}

func (c testCluster) key(node string) ident.CopyRef {
	return ident.CopyRef{Disk: ident.DiskRef{Node: node, Disk: "disk1"}, ID: c.image.ID}
}

// addReady adds a ready copy to the disk of a node.
func (c testCluster) addReady(node string) {
	c.observed[node].Disks[c.key(node).Disk].Copies[c.image.ID] = model.Copy{ID: c.image.ID, State: model.Ready, Size: 1 << 30, RealSize: 1 << 30, Owned: true, HasCfg: true,
		SHA512: testDigest(ident.SHA512, "a"), ManifestDigest: testDigest(ident.SHA256, "a")}
}

func (c testCluster) desired(node string) plan.Desired {
	return plan.Desired{Node: node, Config: c.config, Digest: "d1", Allowed: schema.Everything, Removed: plan.AlwaysConfirmed}
}

// saved returns the saved statuses of these nodes.
func (c testCluster) saved(t *testing.T, nodes ...string) *SavedCluster {
	t.Helper()
	s := &SavedCluster{}
	for _, node := range nodes {
		if err := s.add(encodeAndDecode((&View{Desired: c.desired(node), Observed: c.observed[node]}).Status(nil))); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// plan returns the plan for all nodes, one line for each action.
func (c testCluster) plan(s *SavedCluster) string {
	var nodes []plan.Desired
	for _, name := range slices.Sorted(maps.Keys(c.config.Nodes)) {
		nodes = append(nodes, c.desired(name))
	}
	var lines []string
	for _, action := range s.Cluster(nodes[0]).Plan(nodes).Actions {
		reason, _, _ := strings.Cut(action.Text, " (") // disks and their problems follow in brackets
		lines = append(lines, fmt.Sprintf("%s %s/%s: %s", action.Op, action.Node, action.Disk, reason))
	}
	return strings.Join(lines, "\n")
}

// ranks returns the nodes in order of rank for the image.
func (c testCluster) ranks() []string {
	var nodes []string
	for _, d := range plan.NewRound(c.desired("node1"), plan.Observed{}).RankDisks("parrot") {
		nodes = append(nodes, d.Disk.Node)
	}
	return nodes
}

func TestPlanFromSavedCluster(t *testing.T) {
	ranks := newTestCluster(3, 2).ranks()
	first, second, third := ranks[0], ranks[1], ranks[2]
	for _, tt := range []struct {
		name  string
		setup func(c testCluster) []string // returns the nodes with a saved status
		want  string
	}{
		{"each node has a status", func(c testCluster) []string {
			c.addReady(first)
			return ranks
		}, "sync " + second + "/disk1: no copy on this disk"},
		{"a disk without space", func(c testCluster) []string {
			c.addReady(first)
			one := c.observed[second].Disks[c.key(second).Disk]
			one.Space.Free = 1 << 20
			c.observed[second].Disks[c.key(second).Disk] = one
			return ranks
		}, "sync " + third + "/disk1: no copy on this disk"},
		{"a failure of the same declaration", func(c testCluster) []string {
			c.observed[first].Failures[c.key(first)] = model.Failure{Op: model.Download, Attempts: 1, Since: testNow, Final: true, Message: "not found"}
			return ranks
		}, "blocked " + first + "/disk1: not found\nblocked " + second + "/disk1: not found"},
		{"a failure of another declaration", func(c testCluster) []string {
			c.observed[first].Failures[c.key(first)] = model.Failure{Op: model.Download, Attempts: 1, Since: testNow, Final: true, Message: "not found"}
			other := c.image
			other.Source = schema.Source{Download: &schema.Download{URL: "https://example.com/typo.raw"}}
			c.config.Images["parrot"] = other
			return ranks
		}, "download " + first + "/disk1: no copy on this disk\nwait " + second + "/disk1: the first copy is created on " + first + "/disk1"},
		{"a node without a status that another node knows", func(c testCluster) []string {
			c.addReady(first)
			c.observed[second].Peers[first] = model.Peer{Queried: true, ConfigDigest: "d2", LastResponse: testNow}
			copied := c.observed[first].Disks[c.key(first).Disk].Copies[c.image.ID]
			copied.HasCfg = false
			copies := map[ident.ID]model.Copy{c.image.ID: copied}
			c.observed[second].Disks[c.key(first).Disk] = model.Disk{Path: "/disk1", UUID: first, Space: model.Space{Total: 100, Free: 50}, Copies: copies}
			return ranks[1:]
		}, "sync " + second + "/disk1: no copy on this disk"},
		{"a node that no status knows", func(c testCluster) []string {
			return ranks[1:]
		}, "wait " + second + "/disk1: the first copy is created on " + first + "/disk1, which does not respond: no saved status mentions it"},
		{"one action for a problem that concerns no disk", func(c testCluster) []string {
			for name, node := range c.config.Nodes {
				node.AllowScheduling = name == first
				c.config.Nodes[name] = node
			}
			c.addReady(first)
			return ranks
		}, "wait node1/: 1 of 2 copies have no disk that can take them"},
	} {
		c := newTestCluster(3, 2)
		nodes := tt.setup(c)
		saved := c.saved(t, nodes...)
		c.config.Images["parrot"] = c.image
		if got := c.plan(saved); got != tt.want {
			t.Errorf("%s: the plan is\n%s\nwant\n%s", tt.name, got, tt.want)
		}
	}
}

func TestSavedClusterPrefersTheNewestResponse(t *testing.T) {
	c := newTestCluster(3, 1)
	observe := func(by string, p model.Peer, free int64) {
		c.observed[by].Peers["node3"] = p
		c.observed[by].Disks[c.key("node3").Disk] = model.Disk{Path: "/disk1", Space: model.Space{Free: free}}
	}
	for _, tt := range []struct {
		name            string
		first, second   model.Peer
		responds, known bool
		free            int64
	}{
		{"one has queried it without success for longer", model.Peer{Queried: true, Problem: "no", UnreachableSince: testNow.Add(-1)}, model.Peer{Queried: true, Problem: "no", UnreachableSince: testNow.Add(-2)}, false, true, 2},
		{"one had a response once", model.Peer{}, model.Peer{Queried: true, Problem: "no", LastResponse: testNow}, false, true, 2},
		{"the later last response", model.Peer{Queried: true, Problem: "no", LastResponse: testNow.Add(-1)}, model.Peer{Queried: true, Problem: "no", LastResponse: testNow.Add(-2)}, false, true, 1},
		{"it responds to one", model.Peer{Queried: true, LastResponse: testNow.Add(-2)}, model.Peer{Queried: true, Problem: "no", LastResponse: testNow}, true, true, 1},
		{"it responds to the other", model.Peer{Queried: true, Problem: "no", LastResponse: testNow}, model.Peer{Queried: true, LastResponse: testNow.Add(-2)}, true, true, 2},
	} {
		observe("node1", tt.first, 1)
		observe("node2", tt.second, 2)
		best, responds, known := c.saved(t, "node1", "node2").latest("node3")
		if free := best.observed.Disks[c.key("node3").Disk].Space.Free; responds != tt.responds || known != tt.known || free != tt.free {
			t.Errorf("%s: responds %v, known %v, free %d", tt.name, responds, known, free)
		}
	}
}

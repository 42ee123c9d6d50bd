package status_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// testCluster is a cluster of nodes with a disk each and one image.
type testCluster struct {
	config schema.Config
	parrot schema.Image
	seen   map[string]plan.Observed
}

func newTestCluster(nodes, copies int) testCluster {
	a := testCluster{seen: map[string]plan.Observed{}, parrot: schema.Image{
		ID: disk.ID{Name: "parrot", UUID: "0000000a"}, Copies: copies,
		Source: schema.Source{Download: &schema.Download{URL: "https://example.com/parrot.raw"}},
	}}
	a.config = schema.Config{
		Settings: schema.Settings{RecoveryWaitInterval: 5 * time.Minute, ConcurrentReplenishPerNodeLimit: 5},
		Nodes:    map[string]schema.Node{}, Images: map[string]schema.Image{"parrot": a.parrot},
	}
	for n := range nodes {
		name := fmt.Sprintf("node%d", n+1)
		a.config.Nodes[name] = schema.Node{AllowScheduling: true, Disks: map[string]schema.Disk{"disk1": {Path: "/disk1", AllowScheduling: true}}}
		a.seen[name] = plan.Observed{
			Now: plantest.Now, Failures: map[plan.CopyRef]plan.Failure{}, Running: map[plan.CopyRef]bool{}, Peers: map[string]plan.Peer{},
			Disks: map[schema.DiskRef]plan.Disk{{Node: name, Disk: "disk1"}: {
				Path: "/disk1", UUID: name, Space: disk.Space{Total: 100 << 30, Free: 50 << 30}, Copies: map[disk.ID]plan.Copy{},
			}},
		}
	}
	return a
}

func (a testCluster) key(node string) plan.CopyRef {
	return plan.CopyRef{Disk: schema.DiskRef{Node: node, Disk: "disk1"}, ID: a.parrot.ID}
}

// has gives a node a ready copy.
func (a testCluster) has(node string) {
	a.seen[node].Disks[a.key(node).Disk].Copies[a.parrot.ID] = plan.Copy{Copy: disk.Copy{
		ID: a.parrot.ID, State: disk.Ready, Size: 1 << 30, RealSize: 1 << 30, Owned: true, HasCfg: true,
		SHA512: plantest.Digest(disk.SHA512, "a"), ManifestDigest: plantest.Digest(disk.SHA256, "a"),
	}}
}

func (a testCluster) desired(node string) plan.Desired {
	return plan.Desired{Node: node, Config: a.config, Digest: "d1", Allowed: schema.Everything}
}

// saved are the statuses of these nodes.
func (a testCluster) saved(t *testing.T, nodes ...string) *status.SavedCluster {
	t.Helper()
	s := &status.SavedCluster{}
	for _, node := range nodes {
		if err := s.Add(encodeAndDecode(status.View{Desired: a.desired(node), Observed: a.seen[node]}.Status(nil))); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// plan is the plan for all nodes, a line for each action.
func (a testCluster) plan(s *status.SavedCluster) string {
	var nodes []plan.Desired
	for _, name := range slices.Sorted(maps.Keys(a.config.Nodes)) {
		nodes = append(nodes, a.desired(name))
	}
	var lines []string
	for _, action := range s.Cluster(nodes[0]).Plan(nodes).Actions {
		reason, _, _ := strings.Cut(action.Reason, " (") // the rest is which disks and why
		lines = append(lines, fmt.Sprintf("%s %s/%s: %s", action.Op, action.Node, action.Disk, reason))
	}
	return strings.Join(lines, "\n")
}

// ranks are the nodes in the order in which they get a copy.
func (a testCluster) ranks() []string {
	var nodes []string
	for _, ref := range plantest.RankedDisks(a.config, a.parrot) {
		nodes = append(nodes, ref.Node)
	}
	return nodes
}

func TestPlanFromSavedCluster(t *testing.T) {
	ranks := newTestCluster(3, 2).ranks()
	first, second, third := ranks[0], ranks[1], ranks[2]
	for _, tt := range []struct {
		name  string
		world func(a testCluster) []string // returns whose status is saved
		want  string
	}{
		{"each of its own", func(a testCluster) []string {
			a.has(first)
			return ranks
		}, "sync " + second + "/disk1: no copy on this disk"},
		{"a disk that has no room tells all", func(a testCluster) []string {
			a.has(first)
			one := a.seen[second].Disks[a.key(second).Disk]
			one.Space.Free = 1 << 20
			a.seen[second].Disks[a.key(second).Disk] = one
			return ranks
		}, "sync " + third + "/disk1: no copy on this disk"},
		{"a failure of this declaration", func(a testCluster) []string {
			a.seen[first].Failures[a.key(first)] = plan.Failure{Op: plan.Download, Attempts: 1, Since: plantest.Now, Final: true, Message: "not found"}
			return ranks
		}, "blocked " + first + "/disk1: not found\nblocked " + second + "/disk1: not found"},
		{"of another declaration", func(a testCluster) []string {
			a.seen[first].Failures[a.key(first)] = plan.Failure{Op: plan.Download, Attempts: 1, Since: plantest.Now, Final: true, Message: "not found"}
			other := a.parrot
			other.Source = schema.Source{Download: &schema.Download{URL: "https://example.com/typo.raw"}}
			a.config.Images["parrot"] = other
			return ranks
		}, "download " + first + "/disk1: no copy on this disk\nwait " + second + "/disk1: the first copy is made on " + first + "/disk1"},
		{"what others tell of a node", func(a testCluster) []string {
			a.has(first)
			a.seen[second].Peers[first] = plan.Peer{Queried: true, ConfigDigest: "d2", LastResponse: plantest.Now}
			told := a.seen[first].Disks[a.key(first).Disk].Copies[a.parrot.ID]
			told.HasCfg = false
			copies := map[disk.ID]plan.Copy{a.parrot.ID: told}
			a.seen[second].Disks[a.key(first).Disk] = plan.Disk{Path: "/disk1", UUID: first, Space: disk.Space{Total: 100, Free: 50}, Copies: copies}
			return ranks[1:]
		}, "sync " + second + "/disk1: no copy on this disk"},
		{"nothing of a node", func(a testCluster) []string {
			return ranks[1:]
		}, "wait " + second + "/disk1: the first copy is for " + first + "/disk1 to make, which does not answer: it is in none of the saved states"},
		{"one plan for what concerns no disk", func(a testCluster) []string {
			for name, node := range a.config.Nodes {
				node.AllowScheduling = name == first
				a.config.Nodes[name] = node
			}
			a.has(first)
			return ranks
		}, "wait node1/: no disk can take 1 of 2 copies"},
	} {
		a := newTestCluster(3, 2)
		nodes := tt.world(a)
		saved := a.saved(t, nodes...)
		a.config.Images["parrot"] = a.parrot
		if got := a.plan(saved); got != tt.want {
			t.Errorf("%s: the plan is\n%s\nwant\n%s", tt.name, got, tt.want)
		}
	}
}

func TestSavedClusterPrefersTheNewestResponse(t *testing.T) {
	a := newTestCluster(3, 1)
	told := func(by string, p plan.Peer, free int64) {
		a.seen[by].Peers["node3"] = p
		a.seen[by].Disks[a.key("node3").Disk] = plan.Disk{Path: "/disk1", Space: disk.Space{Free: free}}
	}
	for _, tt := range []struct {
		name           string
		first, second  plan.Peer
		answers, known bool
		free           int64
	}{
		{"one asked in vain for longer", plan.Peer{Queried: true, Problem: "no", UnreachableFor: 1}, plan.Peer{Queried: true, Problem: "no", UnreachableFor: 2}, false, true, 2},
		{"one heard it once", plan.Peer{}, plan.Peer{Queried: true, Problem: "no", LastResponse: plantest.Now}, false, true, 2},
		{"the later silence", plan.Peer{Queried: true, Problem: "no", LastResponse: plantest.Now.Add(-1)}, plan.Peer{Queried: true, Problem: "no", LastResponse: plantest.Now.Add(-2)}, false, true, 1},
		{"it answers one", plan.Peer{Queried: true, LastResponse: plantest.Now.Add(-2)}, plan.Peer{Queried: true, Problem: "no", LastResponse: plantest.Now}, true, true, 1},
		{"it answers the other", plan.Peer{Queried: true, Problem: "no", LastResponse: plantest.Now}, plan.Peer{Queried: true, LastResponse: plantest.Now.Add(-2)}, true, true, 2},
	} {
		told("node1", tt.first, 1)
		told("node2", tt.second, 2)
		best, answers, known := a.saved(t, "node1", "node2").Latest("node3")
		if free := best.Seen.Disks[a.key("node3").Disk].Space.Free; answers != tt.answers || known != tt.known || free != tt.free {
			t.Errorf("%s: answers %v, known %v, of %d", tt.name, answers, known, free)
		}
	}
}

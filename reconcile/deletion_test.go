package reconcile

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// surplus returns a cluster of n nodes that all have a copy, the nodes in order of rank, and the
// configuration that desires one copy.
func surplus(t *testing.T, n int, settings string) (c *lan, ranked []*manager, oneCopy string) {
	t.Helper()
	c = newLAN(t, n)
	url := c.upstream.Serve("/a", fetchtest.Bytes(fetchtest.Random(1, 2<<20)))
	c.start(settings + "\n" + c.image(n, url))
	c.everywhere()
	return c, c.ranked(), settings + "\n" + c.image(1, url)
}

// isQuery reports whether a request is the direct query of a deletion.
func isQuery(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/copies") }

// waitFor delays a request until c is closed, or its client gives up.
func waitFor(r *http.Request, c chan struct{}) {
	select {
	case <-c:
	case <-r.Context().Done():
	}
}

// response returns the copy in the response of the node to a direct query, a pending one if it has
// none.
func (m *manager) response() model.Copy {
	m.t.Helper()
	s, err := m.reconciler.served.Copies(m.t.Context(), "parrot", "")
	must(m.t, err)
	for _, one := range s.Disks {
		for _, c := range one.Copies {
			return c
		}
	}
	return model.Copy{State: model.Pending}
}

// sees returns the copy of another node in the last observation of m.
func (m *manager) sees(other *manager) model.Copy {
	for _, c := range m.View().Observed.Disks[ident.DiskRef{Node: other.name, Disk: "a"}].Copies {
		return c
	}
	return model.Copy{}
}

// While a node queries its peers before a deletion, all nodes must see that its copy is leaving.
func TestWithdrawalIsPublished(t *testing.T) {
	t.Parallel()
	c, nodes, oneCopy := surplus(t, 2, clusterSettings)
	best, other := nodes[0], nodes[1]
	queried, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	best.pass(func(_ string, r *http.Request) bool {
		if isQuery(r) {
			once.Do(func() { close(queried) })
			waitFor(r, release)
		}
		return true
	})
	c.declare(oneCopy, c.nodes...)
	<-queried
	if got := other.response(); !got.Leaving || got.State != model.Ready {
		t.Errorf("during the queries the response has the copy %+v", got)
	}
	if s, _, err := stateAt(t, other); err != nil || !onlyCopy(s, "a").Leaving {
		t.Errorf("during the queries the published state is %+v (error %v)", s, err)
	}
	best.until("the copy leaving", func(*status.View) bool { return best.sees(other).Leaving })
	close(release)
	other.until("the copy deleted", func(v *status.View) bool { return !other.holds(v) })
	best.until("the deletion observed", func(v *status.View) bool { return !other.holds(v) && best.holds(v) })
	if got := other.response(); got.Leaving || got.State != model.Pending {
		t.Errorf("afterwards the response has the copy %+v", got)
	}
}

// stateAt polls a node as its peers do.
func stateAt(t *testing.T, m *manager) (model.Node, string, error) {
	client := peer.NewClient(nil, nil)
	defer client.Close()
	return client.State(t.Context(), peer.Address{Node: m.name, URL: m.server.URL}, "", 0)
}

// Two nodes withdraw their copies at the same time, and the second cannot reach the best node. It
// must see that the first one is leaving, and keep its copy.
func TestOfTwoWithdrawalsOneIsCancelled(t *testing.T) {
	t.Parallel()
	c, nodes, oneCopy := surplus(t, 3, clusterSettings)
	best, first, second := nodes[0], nodes[1], nodes[2]
	withdrawn, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	best.pass(func(from string, r *http.Request) bool {
		if from == second.name {
			return false
		}
		if isQuery(r) {
			once.Do(func() { close(withdrawn) })
			waitFor(r, release)
		}
		return true
	})
	second.pass(func(_ string, r *http.Request) bool { return !isQuery(r) })
	first.pass(func(_ string, r *http.Request) bool {
		if isQuery(r) {
			waitFor(r, withdrawn) // otherwise the second copy could be deleted before the first query
		}
		return true
	})
	second.until("the best node unreachable", func(v *status.View) bool { return v.Observed.Peers[best.name].Problem != "" })
	c.declare(oneCopy, c.nodes...)
	<-withdrawn
	second.until("the second deletion cancelled", func(v *status.View) bool { return second.sees(first).Leaving && !second.response().Leaving })
	close(release)
	first.until("the first copy deleted", func(v *status.View) bool { return !first.holds(v) })
	if v := second.rounds(3); !second.holds(v) || !best.holds(v) {
		t.Errorf("the copies are %+v", v.Observed.Disks)
	}
}

// A node must not delete its copy while the node whose copy counts has another configuration,
// because the other node may desire other copies.
func TestSkewPreventsDeletion(t *testing.T) {
	t.Parallel()
	c, nodes, oneCopy := surplus(t, 2, clusterSettings)
	best, other := nodes[0], nodes[1]
	c.declare(oneCopy, other)
	other.until("the configuration applied", func(v *status.View) bool { return v.Desired.Config.Images["parrot"].Copies == 1 })
	if v := other.rounds(5); !other.holds(v) || len(other.Counts().Done) > 1 {
		t.Errorf("done is %v; the plan is %+v", other.Counts().Done, v.Plan.Actions)
	}
	c.declare(oneCopy, best)
	other.until("the copy deleted", func(v *status.View) bool { return !other.holds(v) })
}

// A copy must not count for a deletion if its node does not respond to the direct query, even if the
// node published the copy before.
func TestUnreachableCopyDoesNotCount(t *testing.T) {
	t.Parallel()
	c, nodes, oneCopy := surplus(t, 2, clusterSettings)
	best, other := nodes[0], nodes[1]
	best.pass(func(_ string, r *http.Request) bool { return !isQuery(r) })
	c.declare(oneCopy, c.nodes...)
	other.until("the deletion cancelled", func(v *status.View) bool {
		t, failed := v.Observed.Failures[ident.CopyRef{Disk: ident.DiskRef{Node: other.name, Disk: "a"}, ID: v.Desired.Config.Images["parrot"].ID}]
		return failed && t.Attempts == 0
	})
	if got := other.response(); got.Leaving || got.State != model.Ready {
		t.Errorf("after the cancelled deletion the response has the copy %+v", got)
	}
	best.pass(func(string, *http.Request) bool { return false })
	v := other.until("the best node unreachable", func(v *status.View) bool { return v.Observed.Peers[best.name].Problem != "" })
	if p := v.Observed.Peers[best.name]; p.Responds() || !p.Queried || !best.holds(v) || !other.holds(v) {
		t.Errorf("the unreachable node is %+v, the disks are %+v", p, v.Observed.Disks)
	}
	best.pass(nil)
	other.until("the copy deleted", func(v *status.View) bool { return !other.holds(v) })
}

// Another node that had the same folder was stopped for ever during a deletion. Its mark keeps the copy from counting, and the
// reason for that must be visible where the deletion is cancelled.
func TestForeignMarkIsShown(t *testing.T) {
	t.Parallel()
	c, nodes, oneCopy := surplus(t, 2, clusterSettings)
	best, other := nodes[0], nodes[1]
	folders, err := filepath.Glob(filepath.Join(best.disk, "backing-images", "*"))
	must(t, err)
	must(t, os.Symlink("fedcba9876543210", filepath.Join(folders[0], "backing.leaving.0123456789abcdef")))
	c.declare(oneCopy, c.nodes...)
	v := other.until("the deletion cancelled", func(v *status.View) bool { return len(v.Observed.Failures) > 0 && !other.response().Leaving })
	for _, f := range v.Observed.Failures {
		if want := "restart the manager of node " + best.name; !strings.Contains(f.Message, want) {
			t.Errorf("the reason is %q, want %q", f.Message, want)
		}
	}
}

// A requested clean-up must delete a surplus copy before the clean-up interval is over, and no other
// copy.
func TestRequestedCleanupDeletesOnlySurplus(t *testing.T) {
	t.Parallel()
	c, nodes, oneCopy := surplus(t, 2, strings.Replace(clusterSettings, `"0s"`, "60", 1))
	best, other := nodes[0], nodes[1]
	c.declare(oneCopy, c.nodes...)
	for _, m := range c.nodes {
		m.until("the configuration applied", func(v *status.View) bool { return v.Desired.Config.Images["parrot"].Copies == 1 })
	}
	other.until("a clean-up waiting for the interval", func(v *status.View) bool { return len(v.Plan.Actions) == 1 && !v.Plan.Actions[0].Until.IsZero() })
	for _, tt := range []struct {
		on   *manager
		want model.Op
	}{{best, model.Wait}, {other, model.Cleanup}} {
		a, err := tt.on.Cleanup(t.Context(), "parrot", "", ident.DiskRef{Node: tt.on.name, Disk: "a"})
		if err != nil || a.Op != tt.want {
			t.Errorf("on %s: %+v, %v", tt.on.name, a, err)
		}
	}
	other.until("the copy deleted", func(v *status.View) bool { return !other.holds(v) })
	if v := best.rounds(2); !best.holds(v) {
		t.Error("a desired copy was deleted")
	}
	if _, err := other.Cleanup(t.Context(), "parrot", "", ident.DiskRef{Node: other.name, Disk: "a"}); !errors.Is(err, ErrNotReady) {
		t.Errorf("of a copy that does not exist: %v", err)
	}
	if _, err := other.Cleanup(t.Context(), "nobody", "", ident.DiskRef{Node: other.name, Disk: "a"}); !errors.Is(err, ErrNotDeclared) {
		t.Errorf("of an image that is not declared: %v", err)
	}
}

package reconcile

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// surplus returns a cluster in which all nodes have a copy, in order of rank, and what
// declares that one copy is enough.
func surplus(t *testing.T, n int, settings string) (c *lan, ranked []*manager, one string) {
	t.Helper()
	c = newLAN(t, n)
	url := c.origin.Serve("/a", fetchtest.Bytes(fetchtest.Random(1, 2<<20)))
	c.start(settings + "\n" + c.image(n, url))
	c.everywhere()
	return c, c.ranked(), settings + "\n" + c.image(1, url)
}

// looks asks whether a copy can be withdrawn.
func looks(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/copies") }

// waitFor holds a question until c is closed, or whoever asks gives up.
func waitFor(r *http.Request, c chan struct{}) {
	select {
	case <-c:
	case <-r.Context().Done():
	}
}

// answered is what the node says about its copy to whoever asks it now.
func (m *manager) answered() peer.Copy {
	m.t.Helper()
	s, err := peerNode{served: &m.reconciler.served}.Copies(m.t.Context(), "parrot")
	must(m.t, err)
	for _, one := range s.Disks {
		for _, c := range one.Copies {
			return c
		}
	}
	return peer.Copy{Copy: disk.Copy{State: disk.Pending}}
}

func (m *manager) sees(other *manager) plan.Copy {
	for _, c := range m.View().Observed.Disks[schema.DiskRef{Node: other.name, Disk: "a"}].Copies {
		return c
	}
	return plan.Copy{}
}

// TestWithdrawalIsSeen: while a node asks whether its copy may go, everybody sees that
// it is leaving.
func TestWithdrawalIsSeen(t *testing.T) {
	t.Parallel()
	c, nodes, one := surplus(t, 2, clusterSettings)
	best, other := nodes[0], nodes[1]
	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	best.pass(func(asker string, r *http.Request) bool {
		if looks(r) {
			once.Do(func() { close(held) })
			waitFor(r, release)
		}
		return true
	})
	c.declare(one, c.nodes...)
	<-held
	if said := other.answered(); !said.Leaving || said.State != disk.Ready {
		t.Errorf("while it asks it says %+v of its copy", said)
	}
	if s, _, err := stateAt(t, other); err != nil || !s.Disks[0].Copies[0].Leaving {
		t.Errorf("while it asks its state is %+v (error %v)", s, err)
	}
	best.until("it is seen to leave", func(*status.View) bool { return best.sees(other).Leaving })
	close(release)
	other.until("gone", func(v *status.View) bool { return !other.holds(v) })
	best.until("seen to be gone", func(v *status.View) bool { return !other.holds(v) && best.holds(v) })
	if said := other.answered(); said.Leaving || said.State != disk.Pending {
		t.Errorf("afterwards it says %+v", said)
	}
}

// peerState asks a node as another one does.
func stateAt(t *testing.T, m *manager) (peer.State, string, error) {
	client := peer.NewClient(nil, nil)
	defer client.Close()
	return client.State(t.Context(), peer.Address{Node: m.name, URL: m.server.URL}, "", 0)
}

// TestTwoWithdraw: of two nodes that would each count on the other, or on a third that
// only one of them can reach, one sees that the other leaves, and stays.
func TestTwoWithdraw(t *testing.T) {
	t.Parallel()
	c, nodes, one := surplus(t, 3, clusterSettings)
	best, first, second := nodes[0], nodes[1], nodes[2]
	withdrawn, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	best.pass(func(asker string, r *http.Request) bool {
		if asker == second.name {
			return false
		}
		if looks(r) {
			once.Do(func() { close(withdrawn) })
			waitFor(r, release)
		}
		return true
	})
	second.pass(func(_ string, r *http.Request) bool { return !looks(r) })
	first.pass(func(_ string, r *http.Request) bool {
		if looks(r) {
			waitFor(r, withdrawn) // or the second could go before the first one asks
		}
		return true
	})
	second.until("the best is out of its reach", func(v *status.View) bool { return v.Observed.Peers[best.name].Problem != "" })
	c.declare(one, c.nodes...)
	<-withdrawn
	second.until("it stays", func(v *status.View) bool { return second.sees(first).Leaving && !second.answered().Leaving })
	close(release)
	first.until("gone", func(v *status.View) bool { return !first.holds(v) })
	if v := second.rounds(3); !second.holds(v) || !best.holds(v) {
		t.Errorf("the copies are %+v", v.Observed.Disks)
	}
}

// TestSkewKeeps: nobody deletes while a node that is counted on has another
// configuration, which may want other copies.
func TestSkewKeeps(t *testing.T) {
	t.Parallel()
	c, nodes, one := surplus(t, 2, clusterSettings)
	best, other := nodes[0], nodes[1]
	c.declare(one, other)
	other.until("taken", func(v *status.View) bool { return v.Desired.Config.Images["parrot"].Copies == 1 })
	if v := other.rounds(5); !other.holds(v) || len(other.Counts().Done) > 1 {
		t.Errorf("done was %v; the plan is %+v", other.Counts().Done, v.Plan.Actions)
	}
	c.declare(one, best)
	other.until("gone", func(v *status.View) bool { return !other.holds(v) })
}

// TestSilentNodeIsNotCounted: a copy that nobody vouches for now is as good as none,
// whatever was told before.
func TestSilentNodeIsNotCounted(t *testing.T) {
	t.Parallel()
	c, nodes, one := surplus(t, 2, clusterSettings)
	best, other := nodes[0], nodes[1]
	best.pass(func(_ string, r *http.Request) bool { return !looks(r) })
	c.declare(one, c.nodes...)
	other.until("taken back", func(v *status.View) bool {
		t, failed := v.Observed.Failures[plan.CopyRef{Disk: schema.DiskRef{Node: other.name, Disk: "a"}, ID: v.Desired.Config.Images["parrot"].ID}]
		return failed && t.Attempts == 0
	})
	if said := other.answered(); said.Leaving || said.State != disk.Ready {
		t.Errorf("of a copy that stays it says %+v", said)
	}
	best.pass(func(string, *http.Request) bool { return false })
	v := other.until("silent", func(v *status.View) bool { return v.Observed.Peers[best.name].UnreachableFor > 0 })
	if p := v.Observed.Peers[best.name]; p.Responds() || !p.Queried || !best.holds(v) || !other.holds(v) {
		t.Errorf("the node is seen as %+v, the disks as %+v", p, v.Observed.Disks)
	}
	best.pass(nil)
	other.until("gone", func(v *status.View) bool { return !other.holds(v) })
}

// TestCleanupByHand does not wait for the interval, and for nothing else less.
func TestCleanupByHand(t *testing.T) {
	t.Parallel()
	c, nodes, one := surplus(t, 2, strings.Replace(clusterSettings, `"0s"`, "60", 1))
	best, other := nodes[0], nodes[1]
	c.declare(one, c.nodes...)
	for _, m := range c.nodes {
		m.until("taken", func(v *status.View) bool { return v.Desired.Config.Images["parrot"].Copies == 1 })
	}
	other.until("waits", func(v *status.View) bool { return len(v.Plan.Actions) == 1 && !v.Plan.Actions[0].Until.IsZero() })
	for _, tt := range []struct {
		on   *manager
		want plan.Op
	}{{best, plan.Wait}, {other, plan.Cleanup}} {
		a, err := tt.on.Cleanup(t.Context(), "parrot", "", schema.DiskRef{Node: tt.on.name, Disk: "a"})
		if err != nil || a.Op != tt.want {
			t.Errorf("on %s: %+v, %v", tt.on.name, a, err)
		}
	}
	other.until("gone", func(v *status.View) bool { return !other.holds(v) })
	if v := best.rounds(2); !best.holds(v) {
		t.Error("a copy that is wanted went")
	}
	if _, err := other.Cleanup(t.Context(), "parrot", "", schema.DiskRef{Node: other.name, Disk: "a"}); !errors.Is(err, ErrNotReady) {
		t.Errorf("of what is not there: %v", err)
	}
	if _, err := other.Cleanup(t.Context(), "nobody", "", schema.DiskRef{Node: other.name, Disk: "a"}); !errors.Is(err, ErrNotDeclared) {
		t.Errorf("of what is not declared: %v", err)
	}
}

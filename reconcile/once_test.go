package reconcile

import (
	"log/slog"
	"net/http"
	"testing"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// once converges a node that has no daemon, as its config directory says.
func (m *manager) once() (plan.Observed, plan.Plan) {
	m.t.Helper()
	snapshot, err := configdir.Read(m.conf)
	must(m.t, err)
	d, err := plan.NewDesired(schema.NewLoader().Load(m.t.Context(), snapshot), m.name, nil)
	must(m.t, err)
	r := New(fetch.Client{}, slog.New(slog.DiscardHandler), false)
	r.SetPeers(peer.NewClient(func() string { return m.name }, nil))
	r.WaitForPeers(m.t.Context(), d)
	o, plan, err := r.Converge(m.t.Context(), d)
	must(m.t, err)
	must(m.t, r.Close())
	return o, plan
}

// TestOneRunAmongDaemons: a single run takes copies from daemons, and asks them before
// it deletes one.
func TestOneRunAmongDaemons(t *testing.T) {
	t.Parallel()
	c := newLAN(t, 2)
	url := c.origin.Serve("/a", fetchtest.Bytes(fetchtest.Random(1, 3<<20)))
	c.start(clusterSettings + "\n" + c.image(1, url))
	best, other := c.ranked()[0], c.ranked()[1]
	best.until("ready", func(v *status.View) bool { return best.holds(v) && len(v.Observed.Running) == 0 })
	must(t, other.end())
	here := schema.DiskRef{Node: other.name, Disk: "a"}
	turn := func(copies int) (plan.Observed, plan.Plan) {
		c.declare(clusterSettings+"\n"+c.image(copies, url), c.nodes...)
		best.until("taken", func(v *status.View) bool { return v.Desired.Config.Images["parrot"].Copies == copies })
		return other.once()
	}
	o, planned := turn(2)
	if !planned.Empty() || !isReadyOn(&status.View{Observed: o}, here) || len(c.origin.Requests()) != 1 {
		t.Errorf("with two copies %+v is left, the disks are %+v; the origin was asked %d times", planned.Actions, o.Disks, len(c.origin.Requests()))
	}
	best.pass(func(_ string, r *http.Request) bool { return !looks(r) })
	if o, planned := turn(1); !isReadyOn(&status.View{Observed: o}, here) || len(planned.Actions) != 1 || planned.Actions[0].Op != plan.Wait {
		t.Errorf("with nobody who vouches for the other copy, %+v is left, the disks are %+v", planned.Actions, o.Disks)
	}
	best.pass(nil)
	if o, planned := turn(1); isReadyOn(&status.View{Observed: o}, here) || !planned.Empty() {
		t.Errorf("with one copy %+v is left, the disks are %+v", planned.Actions, o.Disks)
	}
}

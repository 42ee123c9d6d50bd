package reconcile

import (
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// A question that a node has broken off just now is no answer.
func TestLastAnswerOfASilentPeer(t *testing.T) {
	d := plan.Desired{Config: plantest.NewConfig(2, 1), Node: "node1"}
	now := time.Now()
	asked, brokenOff := now.Add(-time.Minute), now.Add(-time.Second)
	for problem, want := range map[string]time.Duration{"": time.Second, "it does not answer in time": time.Minute} {
		o := plan.Observed{Now: now.Add(time.Hour), Disks: map[schema.DiskRef]plan.Disk{}}
		of := peers{states: map[string]peerState{}}
		of.mergeResponses(d, &o, map[string]peer.Observation{"node2": {Polled: true, Problem: problem, LastSuccess: asked, LastSeen: brokenOff}}, now)
		if ago := o.Now.Sub(o.Peers["node2"].LastResponse); ago != want {
			t.Errorf("with the problem %q it answered %v ago, want %v", problem, ago, want)
		}
	}
}

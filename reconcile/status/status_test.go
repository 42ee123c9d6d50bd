package status_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

func TestPeerStatus(t *testing.T) {
	for _, tt := range []struct {
		name    string
		own     string
		p       plan.Peer
		skew    status.Skew
		silence string
	}{
		{"the same", "d1", plan.Peer{Queried: true, ConfigDigest: "d1", LastResponse: plantest.Now}, status.SkewSame, ""},
		{"another", "d1", plan.Peer{Queried: true, ConfigDigest: "d2", LastResponse: plantest.Now}, status.SkewOther, ""},
		{"broken there", "d1", plan.Peer{Queried: true, LastResponse: plantest.Now}, status.SkewInvalid, ""},
		{"broken here", "", plan.Peer{Queried: true, ConfigDigest: "d2", LastResponse: plantest.Now}, status.SkewUnknown, ""},
		{"not asked", "d1", plan.Peer{Problem: "not asked yet"}, status.SkewUnknown, "node node2 has not answered yet"},
		{"never heard", "d1", plan.Peer{Queried: true, Problem: "no route", UnreachableFor: time.Minute}, status.SkewUnknown, "node node2 has not answered for 1m0s: no route"},
		{"silent", "d1", plan.Peer{Queried: true, Problem: "no route", UnreachableFor: 12400 * time.Millisecond, ConfigDigest: "d2", LastResponse: plantest.Now}, status.SkewOther, "node node2 has not answered for 12s: no route"},
	} {
		v := status.View{Desired: plan.Desired{Node: "node1", Digest: tt.own}, Observed: plan.Observed{Now: plantest.Now, Peers: map[string]plan.Peer{"node2": tt.p}}}
		got := v.Peers()[0]
		if got.Skew != tt.skew || v.Unreachable("node2") != tt.silence || got.Answers != (tt.silence == "") {
			t.Errorf("%s: skew %q, answers %v, silence %q", tt.name, got.Skew, got.Answers, v.Unreachable("node2"))
		}
	}
	v := status.View{Desired: plan.Desired{Node: "node1"}}
	if own, other := v.Unreachable("node1"), v.Unreachable("node2"); own != "" || other != "node node2 was not asked" {
		t.Errorf("silence %q and %q where nobody is asked", own, other)
	}
}

func TestSkewIsOneBoundedLine(t *testing.T) {
	var peers []status.PeerStatus
	if got := status.SkewText([]status.PeerStatus{{Node: "node2", Skew: status.SkewSame}, {Node: "node3", Skew: status.SkewUnknown}}); got != "" {
		t.Errorf("no skew is %q", got)
	}
	for n := range 9 {
		peers = append(peers, status.PeerStatus{Node: fmt.Sprintf("node%d", n), Skew: threeSkews[n%3], Config: "0123456789abcdef"})
	}
	const want = "the configuration differs on 6 of 9 other nodes: node node1 has another one (digest 0123456789ab); " +
		"that of node node2 is not wholly valid; node node4 has another one (digest 0123456789ab); " +
		"that of node node5 is not wholly valid; node node7 has another one (digest 0123456789ab); and 1 more"
	if got := status.SkewText(peers); got != want {
		t.Errorf("the skew is\n%s\nwant\n%s", got, want)
	}
}

var threeSkews = []status.Skew{status.SkewSame, status.SkewOther, status.SkewInvalid}

func TestCopyStatusOfPeers(t *testing.T) {
	id := disk.ID{Name: "parrot", UUID: "0000000a"}
	key := plan.CopyRef{Disk: schema.DiskRef{Node: "node2", Disk: "disk1"}, ID: id}
	part := plan.Copy{Copy: disk.Copy{ID: id, State: disk.Pending, PartBytes: 256, PartTotal: 1024}}
	ready := plan.Copy{Copy: disk.Copy{ID: id, State: disk.Ready}}
	full := plan.Copy{Copy: disk.Copy{ID: id, State: disk.Pending}, Rejects: "not enough space"}
	away := ready
	away.Leaving = true
	failed := plan.Failure{Attempts: 1, RetryAt: plantest.Now.Add(time.Minute), Message: "it failed"}
	final := plan.Failure{Attempts: 1, RetryAt: plantest.Now.Add(time.Minute), Message: "it failed", Final: true}
	for _, tt := range []struct {
		name    string
		c       *plan.Copy
		try     *plan.Failure
		running bool
		silent  bool
		want    string // state, progress, message, whether it waits
	}{
		{"none", nil, nil, false, false, "pending 0 its node has not begun with it"},
		{"begun", nil, nil, true, false, "starting 0 under way on its node"},
		{"a part", &part, nil, true, false, "in-progress 25 under way on its node"},
		{"a failure", &part, &failed, false, false, "failed 25 it failed until"},
		{"a final one", &part, &final, false, false, "failed 25 it failed"},
		{"ready", &ready, nil, false, false, "ready 100 "},
		{"verified", &ready, nil, true, false, "ready 100 its node works on it"},
		{"leaving", &away, nil, true, false, "ready 100 withdrawn: it is about to go, or to stay"},
		{"refused", &full, nil, false, false, "pending 0 takes no copy: not enough space"},
		{"silent", &ready, nil, false, true, "unknown 0 node node2 has not answered for 12s: no route; it was ready then"},
		{"silent with a failure", &part, &failed, true, true, "unknown 0 node node2 has not answered for 12s: no route; it was pending then"},
		{"silent and none", nil, nil, false, true, "unknown 0 node node2 has not answered for 12s: no route"},
	} {
		o := plan.Observed{
			Now: plantest.Now, Peers: map[string]plan.Peer{"node2": {Queried: true}}, Running: map[plan.CopyRef]bool{}, Failures: map[plan.CopyRef]plan.Failure{},
			Disks: map[schema.DiskRef]plan.Disk{key.Disk: {Copies: map[disk.ID]plan.Copy{}}},
		}
		if tt.silent {
			o.Peers["node2"] = plan.Peer{Queried: true, Problem: "no route", UnreachableFor: 12 * time.Second}
		}
		if tt.c != nil {
			o.Disks[key.Disk].Copies[id] = *tt.c
		}
		if tt.try != nil {
			o.Failures[key] = *tt.try
		}
		o.Running[key] = tt.running
		c := status.View{Desired: plan.Desired{Node: "node1"}, Observed: o}.NewBuilder(nil).Copy(key)
		got := fmt.Sprintf("%s %d %s", c.State, c.Progress, c.Message)
		if !c.Until.IsZero() {
			got += " until"
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestStatusShowsTransferProgress(t *testing.T) {
	a := newTestCluster(1, 1)
	v := status.View{Desired: a.desired("node1"), Observed: a.seen["node1"]}
	p := &fetch.Progress{}
	p.Done.Store(50)
	p.Total.Store(200)
	c := v.Status(map[plan.CopyRef]job.Transfer{a.key("node1"): {Action: plan.Action{Op: plan.Download, Reason: "no copy"}, Progress: p}}).Images[0].Copies[0]
	if c.State != disk.InProgress || c.Progress != 25 || c.Message != "download: no copy" || c.Found != nil {
		t.Errorf("it is %+v", c)
	}
}

func TestPassedOver(t *testing.T) {
	a := newTestCluster(6, 5)
	for _, node := range []string{"node2", "node3"} {
		one := a.config.Nodes[node]
		one.AllowScheduling = false
		a.config.Nodes[node] = one
	}
	all := plan.Observed{Now: plantest.Now, Disks: map[schema.DiskRef]plan.Disk{}, Peers: map[string]plan.Peer{}}
	for node, seen := range a.seen {
		all.Disks[a.key(node).Disk] = seen.Disks[a.key(node).Disk]
		all.Peers[node] = plan.Peer{Queried: true}
	}
	text := func(s status.ImageStatus) string {
		var parts []string
		for _, p := range s.PassedOver {
			parts = append(parts, fmt.Sprintf("%d %s: %s", p.Count, strings.Join(p.Disks, " "), p.Why))
		}
		return strings.Join(parts, "; ")
	}
	v := status.View{Desired: a.desired("node1"), Observed: all}
	s := v.Status(nil).Images[0]
	if got := text(s); got != "2 node2/disk1 node3/disk1: scheduling on the node is disabled" || s.Wanted != 5 || s.Ready != 0 {
		t.Errorf("%d of %d; passed over are %s", s.Ready, s.Wanted, got)
	}
	names := 1
	if got := text(status.ImageStatus{PassedOver: status.PassedBy(v.Desired.Placements(all)[a.parrot.ID].PassedOver, &names)}); got != "2 node2/disk1: scheduling on the node is disabled" || names != 0 {
		t.Errorf("with one name left, passed over are %s", got)
	}
	for ref := range all.Disks { // enough copies: nothing is to be explained
		if !slices.Contains([]string{"node2", "node3"}, ref.Node) {
			all.Disks[ref].Copies[a.parrot.ID] = plan.Copy{Copy: disk.Copy{ID: a.parrot.ID, State: disk.Ready}}
		}
	}
	four := a.parrot
	four.Copies = 4
	a.config.Images["parrot"] = four
	if s := v.Status(nil).Images[0]; s.PassedOver != nil || s.Ready != 4 {
		t.Errorf("%d of %d ready, and passed over are %s", s.Ready, s.Wanted, text(s))
	}
}

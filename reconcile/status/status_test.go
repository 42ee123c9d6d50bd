package status

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// testNow is the time of the observed states in internal tests.
var testNow = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func testDigest(a ident.Algorithm, content string) ident.Digest {
	h := a.New()
	h.Write([]byte(content))
	return a.Digest(h)
}

func TestPeersShowSkewAndUnreachability(t *testing.T) {
	for _, tt := range []struct {
		name        string
		own         string // digest of the own configuration
		p           model.Peer
		skew        Skew
		unreachable string // reason
	}{
		{"the same configuration", "d1", model.Peer{Queried: true, ConfigDigest: "d1", LastResponse: testNow}, SkewSame, ""},
		{"another configuration", "d1", model.Peer{Queried: true, ConfigDigest: "d2", LastResponse: testNow}, SkewOther, ""},
		{"an invalid configuration there", "d1", model.Peer{Queried: true, LastResponse: testNow}, SkewInvalid, ""},
		{"an invalid configuration here", "", model.Peer{Queried: true, ConfigDigest: "d2", LastResponse: testNow}, SkewUnknown, ""},
		{"not queried yet", "d1", model.Peer{Problem: "not queried yet"}, SkewUnknown, "node node2 has not responded yet"},
		{"no response yet", "d1", model.Peer{Queried: true, Problem: "no route", UnreachableSince: testNow.Add(-time.Minute)}, SkewUnknown, "node node2 has not responded since 2026-12-01T11:59:00Z: no route"},
		{"no response any more", "d1", model.Peer{Queried: true, Problem: "no route", UnreachableSince: testNow.Add(-12400 * time.Millisecond), ConfigDigest: "d2", LastResponse: testNow}, SkewOther, "node node2 has not responded since 2026-12-01T11:59:48Z: no route"},
	} {
		v := View{Desired: plan.Desired{Node: "node1", Digest: tt.own}, Observed: plan.Observed{Now: testNow, Peers: map[string]model.Peer{"node2": tt.p}}}
		got := v.peers()[0]
		if got.Skew != tt.skew || v.unreachable("node2").Text != tt.unreachable || got.Responds != (tt.unreachable == "") {
			t.Errorf("%s: skew %q, answers %v, unreachable %q", tt.name, got.Skew, got.Responds, v.unreachable("node2").Text)
		}
	}
	v := View{Desired: plan.Desired{Node: "node1"}}
	if own, other := v.unreachable("node1"), v.unreachable("node2").Text; !own.IsZero() || other != "node node2 was not queried" {
		t.Errorf("without any query, the node is unreachable: %q, and another one: %q", own, other)
	}
}

func TestSkewIsOneBoundedLine(t *testing.T) {
	var peers []PeerStatus
	if got := skewText([]PeerStatus{{Node: "node2", Skew: SkewSame}, {Node: "node3", Skew: SkewUnknown}}); got != "" {
		t.Errorf("without skew, the text is %q", got)
	}
	for n := range 12 {
		peers = append(peers, PeerStatus{Node: fmt.Sprintf("node%d", n), Skew: threeSkews[n%3], Peer: model.Peer{ConfigDigest: "0123456789abcdef"}})
	}
	const want = "the configuration differs on 8 of 12 other nodes: node node1 has digest 0123456789ab; " +
		"on node node2 it is partly invalid; node node4 has digest 0123456789ab; " +
		"on node node5 it is partly invalid; node node7 has digest 0123456789ab and 3 more"
	if got := skewText(peers); got != want {
		t.Errorf("the skew is\n%s\nwant\n%s", got, want)
	}
}

var threeSkews = []Skew{SkewSame, SkewOther, SkewInvalid}

func TestCopyStatusShowsWhatPeersPublish(t *testing.T) {
	id := ident.ID{Name: "parrot", UUID: "0000000a"}
	key := ident.CopyRef{Disk: ident.DiskRef{Node: "node2", Disk: "disk1"}, ID: id}
	part := model.Copy{ID: id, State: model.Pending, PartBytes: 256, PartTotal: 1024}
	ready := model.Copy{ID: id, State: model.Ready}
	full := model.Copy{ID: id, State: model.Pending, Rejection: "not enough space"}
	away := ready
	away.Leaving = true
	failed := model.Failure{Attempts: 1, RetryAt: testNow.Add(time.Minute), Message: "it failed"}
	final := model.Failure{Attempts: 1, Message: "it failed", Final: true}
	rare := model.Failure{Attempts: 1, RetryAt: testNow.Add(time.Hour), Message: "it failed", Final: true}
	waiting, surplus, surplusPart := model.Copy{ID: id, State: model.Pending}, ready, part
	waiting.Reason = model.Reason{Code: plan.CodeReplenishOff, Text: "the limit is 0"}
	surplus.Reason = model.Reason{Code: plan.CodeCleanupInterval, Text: "surplus copy"}
	surplusPart.Reason = surplus.Reason
	for _, tt := range []struct {
		name        string
		c           *model.Copy
		failure     *model.Failure
		running     bool
		unreachable bool   // its node
		want        string // state, progress, message, whether it has a retry time
	}{
		{"no copy", nil, nil, false, false, "pending 0 its node has not begun to create it"},
		{"started", nil, nil, true, false, "starting 0 a job runs on its node"},
		{"a partial file", &part, nil, true, false, "in-progress 25 a job runs on its node"},
		{"a failure", &part, &failed, false, false, "failed 25 it failed until"},
		{"a final failure", &part, &final, false, false, "failed 25 it failed"},
		{"wrong bytes", &part, &rare, false, false, "failed 25 it failed until"},
		{"waiting", &waiting, nil, false, false, "pending 0 the limit is 0"},
		{"surplus", &surplus, nil, false, false, "ready 100 surplus copy"},
		{"surplus after a failure", &surplusPart, &failed, false, false, "pending 25 surplus copy"},
		{"ready", &ready, nil, false, false, "ready 100 "},
		{"being verified", &ready, nil, true, false, "ready 100 a job runs on its node"},
		{"leaving", &away, nil, true, false, "ready 100 withdrawn: its deletion is pending"},
		{"rejected", &full, nil, false, false, "pending 0 takes no copy: not enough space"},
		{"unreachable", &ready, nil, false, true, "unknown 0 node node2 has not responded since 2026-12-01T11:59:48Z: no route; it was ready then"},
		{"unreachable with a failure", &part, &failed, true, true, "unknown 0 node node2 has not responded since 2026-12-01T11:59:48Z: no route; it was pending then"},
		{"unreachable without a copy", nil, nil, false, true, "unknown 0 node node2 has not responded since 2026-12-01T11:59:48Z: no route"},
	} {
		o := plan.Observed{
			Now: testNow, Peers: map[string]model.Peer{"node2": {Queried: true}}, Running: map[ident.CopyRef]bool{}, Failures: map[ident.CopyRef]model.Failure{},
			Disks: map[ident.DiskRef]model.Disk{key.Disk: {Copies: map[ident.ID]model.Copy{}}},
		}
		if tt.unreachable {
			o.Peers["node2"] = model.Peer{Queried: true, Problem: "no route", UnreachableSince: testNow.Add(-12 * time.Second)}
		}
		if tt.c != nil {
			o.Disks[key.Disk].Copies[id] = *tt.c
		}
		if tt.failure != nil {
			o.Failures[key] = *tt.failure
		}
		o.Running[key] = tt.running
		c := (&View{Desired: plan.Desired{Node: "node1"}, Observed: o}).newBuilder(nil).copyStatus(key)
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
	c := newTestCluster(1, 1)
	v := View{Desired: c.desired("node1"), Observed: c.observed["node1"]}
	p := &fetch.Progress{}
	p.Done.Store(50)
	p.Total.Store(200)
	got := v.Status(map[ident.CopyRef]job.Transfer{c.key("node1"): {Action: plan.Action{Op: model.Download, Reason: model.Reason{Code: plan.CodeNoCopy, Text: "no copy"}}, Progress: p}}).Images[0].Copies[0]
	if got.State != model.InProgress || got.Progress != 25 || got.Message != "download: no copy" || got.Observed != nil {
		t.Errorf("the copy is %+v", got)
	}
}

func TestPassedOverDisksAreGroupedByReason(t *testing.T) {
	c := newTestCluster(6, 5)
	for _, node := range []string{"node2", "node3"} {
		disabled := c.config.Nodes[node]
		disabled.AllowScheduling = false
		c.config.Nodes[node] = disabled
	}
	all := plan.Observed{Now: testNow, Disks: map[ident.DiskRef]model.Disk{}, Peers: map[string]model.Peer{}}
	for node, seen := range c.observed {
		all.Disks[c.key(node).Disk] = seen.Disks[c.key(node).Disk]
		all.Peers[node] = model.Peer{Queried: true}
	}
	text := func(s ImageStatus) string {
		var parts []string
		for _, p := range s.PassedOver {
			parts = append(parts, fmt.Sprintf("%d %s: %s", p.Count, strings.Join(p.Disks, " "), p.Reason))
		}
		return strings.Join(parts, "; ")
	}
	v := View{Desired: c.desired("node1"), Observed: all}
	s := v.Status(nil).Images[0]
	if got := text(s); got != "2 node2/disk1 node3/disk1: scheduling on the node is disabled" || s.Desired != 5 || s.Ready != 0 {
		t.Errorf("%d of %d; passed over are %s", s.Ready, s.Desired, got)
	}
	names := 1
	if got := text(ImageStatus{PassedOver: groupPassedOver(plan.NewRound(v.Desired, all).Placements()[c.image.ID].PassedOver, &names)}); got != "2 node2/disk1: scheduling on the node is disabled" || names != 0 {
		t.Errorf("with one name left, passed over are %s", got)
	}
	for ref := range all.Disks { // with enough copies, no reasons are given
		if !slices.Contains([]string{"node2", "node3"}, ref.Node) {
			all.Disks[ref].Copies[c.image.ID] = model.Copy{ID: c.image.ID, State: model.Ready}
		}
	}
	four := c.image
	four.Copies = 4
	c.config.Images["parrot"] = four
	if s := v.Status(nil).Images[0]; s.PassedOver != nil || s.Ready != 4 {
		t.Errorf("%d of %d ready, and passed over are %s", s.Ready, s.Desired, text(s))
	}
}

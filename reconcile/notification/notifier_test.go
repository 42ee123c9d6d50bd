package notification

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/delivery"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// cluster has a Notifier for each node, in a bubble of package synctest, and one server that records what it accepts.
type cluster struct {
	t       *testing.T
	format  schema.NotifyFormat
	step    time.Duration // between two rounds
	nodes   map[string]*node
	failing string // the node whose copy fails; "": none

	mu     sync.Mutex
	refuse map[string]bool // the nodes of which the server accepts nothing
	never  string          // a kind of event that the server never accepts; "": none
	got    []received      // what the server accepted, since the last call of events
}

type node struct {
	*Notifier
	name string
	last atomic.Pointer[status.View]
	seen atomic.Pointer[map[string]peer.Observation]
	stop context.CancelFunc // nil: it does not run
	cut  bool               // no other node reaches it
	mute bool               // the server accepts what it sends, and does nothing
}

type received struct {
	node, kind, id string
	since          time.Time
	at             time.Time
}

func startCluster(t *testing.T, format schema.NotifyFormat, nodes int) *cluster {
	c := &cluster{t: t, format: format, step: 5 * time.Second, nodes: map[string]*node{}, refuse: map[string]bool{}}
	for i := range nodes {
		c.nodes[fmt.Sprintf("node%d", i+1)] = nil
	}
	for name := range c.nodes {
		c.start(name)
	}
	c.round()
	return c
}

// start starts the process of a node.
func (c *cluster) start(name string) *node {
	n := &node{name: name}
	observations := func() map[string]peer.Observation {
		if seen := n.seen.Load(); seen != nil {
			return *seen
		}
		return nil
	}
	n.Notifier = New(n.last.Load, observations, func(_ context.Context, _ time.Duration, _ schema.Settings, m fetch.Message) error {
		return c.receive(n, m)
	}, slog.New(slog.DiscardHandler))
	n.Outcome = delivery.NewOutcome("notification", slog.New(slog.DiscardHandler), func() float64 { return 0 })
	ctx, stop := context.WithCancel(c.t.Context())
	n.stop = stop
	c.nodes[name] = n
	offset := time.Duration(name[len(name)-1]-'0') * time.Second // so that no two nodes send at the same moment
	go func() {
		time.Sleep(offset)
		n.Run(ctx)
	}()
	return n
}

// end ends the process of a node.
func (c *cluster) end(n *node) {
	n.stop()
	n.stop = nil
	synctest.Wait()
}

// restart starts the process of a node again.
func (c *cluster) restart(name string, away time.Duration) {
	c.end(c.nodes[name])
	c.pass(away)
	c.start(name)
	c.round()
}

func (c *cluster) close() {
	for _, n := range c.nodes {
		if n.stop != nil {
			n.stop()
		}
	}
	synctest.Wait()
}

func (c *cluster) receive(n *node, m fetch.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.refuse[n.name]:
		return &fetch.Error{Class: fetch.Network, Err: errors.New("503")}
	case n.mute:
		return nil
	case c.format == schema.NotifyAlertmanager:
		return c.receiveAlerts(n, m.Body)
	}
	var e struct {
		ID, Type string
		Data     struct{ Since time.Time }
	}
	if err := json.Unmarshal(m.Body, &e); err != nil {
		c.t.Error(err)
	}
	kind := strings.TrimPrefix(e.Type, "backing-image-manager.")
	if kind == c.never {
		return &fetch.Error{Class: fetch.Refused, Err: errors.New("400 Bad Request")}
	}
	c.got = append(c.got, received{n.name, kind, e.ID, e.Data.Since, time.Now()})
	return nil
}

func (c *cluster) receiveAlerts(n *node, body []byte) error {
	var alerts []alert
	if err := json.Unmarshal(body, &alerts); err != nil {
		c.t.Error(err)
	}
	for _, a := range alerts {
		kind := a.Labels["alertname"]
		if !a.EndsAt.After(time.Now()) {
			kind += " over"
		}
		c.got = append(c.got, received{n.name, kind, fmt.Sprint(a.Labels), a.StartsAt, time.Now()})
	}
	return nil
}

// reaches reports whether a node gets responses of another one.
func (c *cluster) reaches(from, to *node) bool {
	return from.stop != nil && to.stop != nil && !from.cut && !to.cut
}

// view returns what a node observes.
func (c *cluster) view(n *node) *status.View {
	v := &status.View{Loaded: true, Desired: plan.Desired{Node: n.name, Digest: "d1", Allowed: schema.Everything}, Observed: plan.Observed{
		Now: time.Now().UTC(), Disks: map[ident.DiskRef]model.Disk{}, Peers: map[string]model.Peer{}, Failures: map[ident.CopyRef]model.Failure{},
	}}
	id := ident.ID{Name: "parrot", UUID: "0000000a"}
	image := schema.Image{ID: id, Copies: len(c.nodes), Source: schema.Source{Upload: &schema.Upload{}}}
	v.Desired.Config = schema.Config{
		Settings: schema.Settings{RecoveryWaitInterval: 5 * time.Minute, Notify: &schema.Notify{URL: "https://a.example/api/v2/alerts", Format: c.format}},
		Nodes:    map[string]schema.Node{}, Images: map[string]schema.Image{"parrot": image},
	}
	for name, other := range c.nodes {
		v.Desired.Config.Nodes[name] = schema.Node{AllowScheduling: true, Disks: map[string]schema.Disk{"disk1": {Path: "/d", AllowScheduling: true}}}
		ref := ident.DiskRef{Node: name, Disk: "disk1"}
		v.Observed.Disks[ref] = model.Disk{Path: "/d", UUID: name, Space: model.Space{Total: 1 << 40, Free: 1 << 40}, Copies: map[ident.ID]model.Copy{
			id: {ID: id, State: model.Ready, Owned: true, Size: 1, SHA512: ident.Digest{}}}}
		if name == c.failing {
			v.Observed.Disks[ref].Copies[id] = model.Copy{ID: id, State: model.Pending}
			v.Observed.Failures[ident.CopyRef{Disk: ref, ID: id}] = model.Failure{Attempts: 1, Since: time.Now(), RetryAt: time.Now().Add(time.Hour), Message: "no route to host"}
		}
		if name == n.name {
			continue
		}
		p := model.Peer{Queried: true, ConfigDigest: "d1", LastResponse: time.Now().UTC()}
		if !c.reaches(n, other) {
			p.Problem = "connection refused"
		}
		v.Observed.Peers[name] = p
	}
	return v
}

// round does a round of every node: each observes, and then publishes.
func (c *cluster) round() {
	published := map[string]peer.Observation{}
	for name, n := range c.nodes {
		published[name] = peer.Observation{State: model.Node{Conditions: n.Conditions()}}
	}
	for _, n := range c.nodes {
		if n.stop == nil {
			continue
		}
		seen := map[string]peer.Observation{}
		for name, other := range c.nodes {
			if other != n && c.reaches(n, other) {
				seen[name] = published[name]
			}
		}
		n.last.Store(c.view(n))
		n.seen.Store(&seen)
	}
}

// pass lets time pass, with a round after each step.
func (c *cluster) pass(d time.Duration) {
	for range d / c.step {
		time.Sleep(c.step)
		synctest.Wait()
		c.round()
	}
}

// events returns what the server accepted since the last call, without what has the same id.
func (c *cluster) events() (kinds []string) {
	known := map[string]bool{}
	for _, r := range c.got {
		if !known[r.id] {
			kinds = append(kinds, r.kind)
		}
		known[r.id] = true
	}
	c.got = nil
	slices.Sort(kinds)
	return kinds
}

// want asserts which events the server got since the last call, without what has the same id.
func (c *cluster) want(what string, want ...string) {
	c.t.Helper()
	if got := c.events(); !slices.Equal(got, want) {
		c.t.Errorf("%s: the server got %q, want %q", what, got, want)
	}
}

// senders returns which nodes sent a kind since the last call, and forgets all.
func (c *cluster) senders(kind string) []string {
	nodes := map[string]bool{}
	for _, r := range c.got {
		if r.kind == kind {
			nodes[r.node] = true
		}
	}
	c.got = nil
	return slices.Sorted(maps.Keys(nodes))
}

// ranked returns the names of the nodes by their rank for the condition that parrot is not ready.
func (c *cluster) ranked() []string {
	names := slices.Sorted(maps.Keys(c.nodes))
	slices.SortFunc(names, func(a, b string) int {
		condition := Condition{Kind: NotReady, Image: "parrot"}
		return strings.Compare(score(condition, a), score(condition, b))
	})
	return names
}

// Each change has one id, and nothing of a condition that flaps within five minutes is sent.
func TestEachChangeHasOneID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, schema.NotifyCloudEvents, 3)
		defer c.close()
		c.pass(10 * time.Minute)
		c.want("ready from the beginning")
		for range 10 { // it flaps
			c.failing = "node3"
			c.pass(4 * time.Minute)
			c.failing = ""
			c.pass(time.Minute)
		}
		c.want("flapping")
		c.failing = "node3"
		c.pass(Hold - 10*time.Second)
		c.want("before five minutes")
		c.pass(time.Minute)
		c.want("after five minutes", "failed", "not-ready")
		for range 4 {
			c.failing = ""
			c.pass(4 * time.Minute)
			c.failing = "node3"
			c.pass(30 * time.Second)
		}
		c.want("interruptions")
		c.failing = ""
		c.pass(Hold - 10*time.Second)
		c.want("gone for less than five minutes")
		c.pass(time.Minute)
		c.want("over", "failed.resolved", "not-ready.resolved")
		c.failing = "node3"
		c.pass(Hold + time.Minute)
		c.want("again", "failed", "not-ready")
		c.failing = ""
		c.pass(Hold + time.Minute)
		c.want("over again", "failed.resolved", "not-ready.resolved")
		c.pass(5 * time.Hour)
		c.want("long over")
	})
}

// A node sends what concerns its own copies. The first two nodes that respond send the rest, and none waits for the other one.
func TestWhoSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, schema.NotifyCloudEvents, 5)
		defer c.close()
		ranked := c.ranked()
		wantSenders := func(what, kind string, want ...string) {
			t.Helper()
			slices.Sort(want)
			if got := c.senders(kind); !slices.Equal(got, want) {
				t.Errorf("%s: %q sent %s, want %q", what, got, kind, want)
			}
		}
		last := ranked[4]
		c.failing = last
		c.refuse[ranked[0]] = true
		c.pass(Hold + time.Minute)
		if got := c.got; len(got) != 2 {
			t.Errorf("the server got %+v", got)
		}
		wantSenders("the server does not reach the first one", "not-ready", ranked[1])
		clear(c.refuse)
		c.pass(5 * time.Minute)
		wantSenders("it does again", "not-ready", ranked[0])
		c.failing = ""
		c.pass(Hold + time.Minute)
		wantSenders("over", "not-ready.resolved", ranked[0], ranked[1])

		c.failing = last
		c.pass(Hold + time.Minute)
		wantSenders("own copies", "failed", last)
		c.nodes[ranked[0]].cut = true
		c.pass(time.Minute)
		wantSenders("the first one is cut off", "not-ready", ranked[2])
		c.nodes[ranked[0]].cut, c.failing = false, ""
		c.pass(Hold + time.Minute)
		wantSenders("over, and each one ends what it began", "not-ready.resolved", ranked[:3]...)
	})
}

// The node that takes the place of another one sends the same event, and a node that starts again knows no other beginning.
func TestSuccessorSendsTheSameEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, schema.NotifyCloudEvents, 3)
		defer c.close()
		ranked := c.ranked()
		c.failing = ranked[1]
		c.pass(Hold + time.Minute)
		c.end(c.nodes[ranked[0]])
		c.pass(time.Minute)
		ids := map[string]bool{}
		for _, r := range c.got {
			if r.kind == "not-ready" {
				ids[r.id] = true
			}
		}
		if nodes := c.senders("not-ready"); len(nodes) != 3 || len(ids) != 1 {
			t.Errorf("%q sent the ids %v", nodes, ids)
		}
		c.start(ranked[0])
		c.pass(Hold + time.Minute)
		c.failing = ""
		c.pass(Hold + time.Minute)
		if nodes := c.senders("not-ready.resolved"); len(nodes) != 3 {
			t.Errorf("%q sent the end", nodes)
		}
	})
}

// A node that starts again sends what goes on with a new beginning, and no end of what it did not observe.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, schema.NotifyCloudEvents, 1)
		defer c.close()
		c.failing = "node1"
		c.pass(Hold + time.Minute)
		first := slices.Clone(c.got)
		c.want("on", "failed", "not-ready")
		c.restart("node1", 20*time.Minute)
		c.pass(Hold + time.Minute)
		for _, again := range c.got {
			if slices.ContainsFunc(first, func(r received) bool { return r.id == again.id }) {
				t.Errorf("the id of %+v is that of the time before the restart", again)
			}
		}
		c.want("after a restart", "failed", "not-ready")
		c.failing = ""
		c.restart("node1", time.Hour)
		c.pass(time.Hour)
		c.want("over while no process ran")
	})
}

// An Alertmanager gets each alert from two nodes, so that one that only pretends to send silences nothing.
func TestMuteNodeSilencesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, schema.NotifyAlertmanager, 5)
		defer c.close()
		ranked := c.ranked()
		c.failing, c.nodes[ranked[0]].mute = "node3", true
		c.pass(Hold + time.Minute)
		if nodes := c.senders("BackingImageNotReady"); !slices.Equal(nodes, ranked[1:2]) {
			t.Errorf("%q sent", nodes)
		}
	})
}

// A server that never accepts one event gets the other ones.
func TestRefusedEventBlocksNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, schema.NotifyCloudEvents, 1)
		defer c.close()
		c.failing, c.never = "node1", "failed"
		c.pass(20 * time.Minute)
		c.want("one event is refused", "not-ready")
		c.never = ""
		c.pass(6 * time.Minute)
		c.want("it is accepted", "failed")
	})
}

// What began and ended while the server accepted nothing comes later, for a week. Each beginning comes before its end.
func TestChangesDuringAnOutageComeLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, schema.NotifyCloudEvents, 1)
		defer c.close()
		c.refuse["node1"], c.step = true, observeGap
		episode := func() {
			c.failing = "node1"
			c.pass(Hold + time.Minute)
			c.failing = ""
			c.pass(Hold + time.Minute)
		}
		episode()
		c.pass(8 * 24 * time.Hour)
		episode()
		episode()
		clear(c.refuse)
		c.pass(10 * time.Minute)
		var kinds []string
		for _, r := range c.got {
			kinds = append(kinds, r.kind)
		}
		want := slices.Repeat([]string{"failed", "failed.resolved"}, 2)
		slices.SortStableFunc(kinds, func(a, b string) int { return strings.Compare(a[:6], b[:6]) })
		if want = append(want, slices.Repeat([]string{"not-ready", "not-ready.resolved"}, 2)...); !slices.Equal(kinds, want) {
			t.Errorf("the server got %q, want %q", kinds, want)
		}
		c.got, c.refuse["node1"] = nil, true
		for range maxEnded + 5 {
			episode()
		}
		clear(c.refuse)
		c.pass(10 * time.Minute)
		if len(c.got) != 4*maxEnded {
			t.Errorf("the server got %d events, want %d", len(c.got), 4*maxEnded)
		}
	})
}

// Alertmanager gets an alert again and again while it goes on, and its end. A server that does not accept it is tried again.
func TestAlertsAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, schema.NotifyAlertmanager, 3)
		defer c.close()
		c.failing = "node3"
		for name := range c.nodes {
			c.refuse[name] = true
		}
		c.pass(20 * time.Minute)
		c.want("refused")
		clear(c.refuse)
		c.pass(10 * time.Minute)
		if n := len(c.got); n < 3*6 || n > 3*11 { // from one node about its copy, and from two that the image is not ready
			t.Errorf("in ten minutes the server got %d alerts", n)
		}
		c.failing = ""
		c.pass(time.Minute)
		c.events()
		c.pass(3*time.Minute + 30*time.Second)
		c.want("an interruption")
		c.pass(2 * time.Minute)
		c.want("over", "BackingImageFailed over", "BackingImageNotReady over")
		if c.refuse["node3"] = true; len(c.nodes) == 3 {
			c.failing = "node3"
			c.pass(Hold + time.Minute)
			c.failing = ""
			c.pass(Hold + time.Minute)
			c.failing = "node3"
			c.pass(Hold + time.Minute)
			c.events()
			clear(c.refuse)
			c.pass(10 * time.Minute)
			c.want("an end that was not accepted, and a new beginning", "BackingImageFailed", "BackingImageNotReady")
		}
	})
}

// Random failures, outages of the server and nodes that are cut off: the server gets each change at least once, and from each node,
// beginnings and ends come in turn. No two episodes have one id, also with restarts.
func TestEachChangeIsSentAtLeastOnce(t *testing.T) {
	for seed := range uint64(*notifyingSeeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { sendsEachChange(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

var notifyingSeeds = flag.Int("notifying.seeds", 5, "number of clusters of TestEachChangeIsSentAtLeastOnce")

// failure is one time during which the copy of a node failed.
type failure struct {
	node       string
	began, end time.Time
}

func sendsEachChange(t *testing.T, rnd *rand.Rand) {
	c := startCluster(t, schema.NotifyCloudEvents, 1+rnd.IntN(5))
	defer c.close()
	c.step = observeGap
	names := slices.Sorted(maps.Keys(c.nodes))
	anyNode := func() string { return names[rnd.IntN(len(names))] }
	restarts, cuts := rnd.IntN(3) == 0, rnd.IntN(2) == 0
	var failures []failure
	fail := func(node string) {
		if c.failing != "" {
			failures[len(failures)-1].end = time.Now()
		}
		if c.failing = node; node != "" {
			failures = append(failures, failure{node: node, began: time.Now()})
		}
	}
	for range 40 {
		c.pass(time.Duration(rnd.IntN(20)) * time.Minute)
		switch what := rnd.IntN(10); {
		case what < 4 && c.failing == "":
			fail(anyNode())
		case what < 4:
			fail("")
			c.pass(2*Hold + time.Minute)
		case what < 6:
			c.refuse[anyNode()] = true
		case what < 7:
			clear(c.refuse)
		case what < 9 && cuts:
			n := c.nodes[anyNode()]
			n.cut = !n.cut
		case restarts:
			c.restart(anyNode(), time.Duration(rnd.IntN(10))*time.Minute)
		}
	}
	fail("")
	clear(c.refuse)
	for _, n := range c.nodes {
		n.cut = false
	}
	c.pass(time.Hour)
	var kinds []string
	if !restarts { // which lose what was not sent
		kinds = []string{"failed", "failed.resolved"}
	}
	if !restarts && !cuts { // while a node is cut off, the image is not ready
		kinds = append(kinds, "not-ready", "not-ready.resolved")
	}
	c.checkEvents(failures, kinds)
}

// checkEvents asserts that the server got the events of these kinds for each failure that was long enough.
func (c *cluster) checkEvents(failures []failure, kinds []string) {
	for _, f := range failures {
		if f.end.Sub(f.began) < Hold+2*observeGap {
			continue
		}
		for _, kind := range kinds {
			if !slices.ContainsFunc(c.got, func(r received) bool {
				return r.kind == kind && r.since.Sub(f.began).Abs() < time.Minute
			}) {
				c.t.Errorf("no %s of the failure of %s from %v to %v", kind, f.node, f.began, f.end)
			}
		}
	}
	since, last := map[string]time.Time{}, map[string]bool{}
	for _, r := range c.got {
		if known, ok := since[r.id]; ok && !known.Equal(r.since) {
			c.t.Errorf("the id of %+v is also that of another episode, which began at %v", r, known)
		}
		since[r.id] = r.since
		kind, over := strings.CutSuffix(r.kind, ".resolved")
		if key := r.node + " " + kind; len(kinds) > 0 && last[key] == !over {
			c.t.Errorf("%s: over is %t twice, at %v", key, over, r.at)
		} else {
			last[key] = !over
		}
	}
	if c.t.Failed() {
		for _, r := range c.got {
			c.t.Logf("%s %s sent %s since %s", r.at.Format("02 15:04:05"), r.node, r.kind, r.since.Format("02 15:04:05"))
		}
	}
}

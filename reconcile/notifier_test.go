package reconcile

import (
	"cmp"
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
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/notification"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// notifying is a cluster of notifiers in a bubble of package synctest, with one server that records what it accepts.
type notifying struct {
	t       *testing.T
	format  schema.NotifyFormat
	nodes   map[string]*notifyingNode
	step    time.Duration // between two rounds
	failing string        // the node whose copy fails; "": none
	refuse  map[string]error
	never   string            // a kind of event that the server refuses for ever; "": none
	digests map[string]string // config digests of nodes with another configuration

	mu  sync.Mutex
	got []received // what the server accepted, since the last call of events
}

type notifyingNode struct {
	*notifier
	disks map[ident.DiskRef]*disk.Disk
	stop  context.CancelFunc
	away  bool
	since time.Time // when it went away or came back
	cut   bool      // it is away because no other node and no server reaches it; otherwise, because it does not run
	mute  bool      // it does not send, and claims nothing else
}

type received struct {
	node, kind, id string
	at             time.Time
}

func startNotifying(t *testing.T, format schema.NotifyFormat, nodes int) *notifying {
	c := &notifying{t: t, format: format, step: 5 * time.Second, nodes: map[string]*notifyingNode{}, refuse: map[string]error{}, digests: map[string]string{}}
	for i := range nodes {
		c.start(fmt.Sprintf("node%d", i+1), nil)
	}
	c.round()
	return c
}

// start starts the process of a node, with the disks of the one before.
func (c *notifying) start(node string, disks map[ident.DiskRef]*disk.Disk) {
	if disks == nil {
		dir := c.t.TempDir()
		_, err := disk.Init(dir)
		must(c.t, err)
		d, err := disk.Open(dir)
		must(c.t, err)
		c.t.Cleanup(func() { d.Close() })
		disks = map[ident.DiskRef]*disk.Disk{{Node: node, Disk: "disk1"}: d}
	}
	ctx, stop := context.WithCancel(c.t.Context())
	log := slog.New(slog.DiscardHandler)
	n := &notifyingNode{notifier: NewLoop(New(fetch.Client{}, log, true), LoopOptions{Node: node, Log: log}).notifier, disks: disks, stop: stop}
	n.state.random = func() float64 { return 0 }
	n.ask = func(_ context.Context, at peer.Address) ([]byte, error) {
		if to := c.nodes[at.Node]; !to.away && !n.away {
			return to.published(), nil
		}
		return nil, errors.New("connection refused")
	}
	n.send = func(_ context.Context, _ schema.Settings, m fetch.Message) error { return c.receive(n, m) }
	c.nodes[node] = n
	offset := time.Duration(node[len(node)-1]-'0') * time.Second // so that no two nodes send at the same moment
	go func() {
		time.Sleep(offset)
		n.run(ctx)
	}()
}

func (c *notifying) receive(n *notifyingNode, m fetch.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch err := c.refuse[n.node]; {
	case n.cut:
		return &fetch.Error{Class: fetch.Network, Err: errors.New("no route")}
	case n.mute:
		return nil
	case err != nil:
		return err
	}
	if c.format == schema.NotifyCloudEvents {
		var e struct{ ID, Type string }
		must(c.t, json.Unmarshal(m.Body, &e))
		if strings.HasSuffix(e.Type, c.never) && c.never != "" {
			return &fetch.Error{Class: fetch.Refused, Err: errors.New("400 Bad Request")}
		}
		c.got = append(c.got, received{n.node, strings.TrimPrefix(e.Type, "backing-image-manager."), e.ID, time.Now()})
		return nil
	}
	var alerts []struct {
		Labels map[string]string
		EndsAt time.Time
	}
	must(c.t, json.Unmarshal(m.Body, &alerts))
	for _, a := range alerts {
		kind := a.Labels["alertname"]
		if !a.EndsAt.After(time.Now()) {
			kind += " over"
		}
		c.got = append(c.got, received{n.node, kind, fmt.Sprint(a.Labels), time.Now()})
	}
	return nil
}

// view returns what a node observes.
func (c *notifying) view(node string) *status.View {
	v := &status.View{Loaded: true, Desired: plan.Desired{Node: node, Digest: c.digest(node), Allowed: schema.Everything}, Observed: plan.Observed{
		Now: time.Now().UTC(), Disks: map[ident.DiskRef]model.Disk{}, Peers: map[string]model.Peer{}, Failures: map[ident.CopyRef]model.Failure{},
	}}
	id := ident.ID{Name: "parrot", UUID: "0000000a"}
	image := schema.Image{ID: id, Copies: len(c.nodes), Source: schema.Source{Upload: &schema.Upload{}}}
	v.Desired.Config = schema.Config{
		Settings: schema.Settings{RecoveryWaitInterval: 5 * time.Minute, Notify: &schema.Notify{URL: "https://a.example/api/v2/alerts", Format: c.format}},
		Nodes:    map[string]schema.Node{}, Images: map[string]schema.Image{"parrot": image},
	}
	for name, n := range c.nodes {
		v.Desired.Config.Nodes[name] = schema.Node{AllowScheduling: true, Disks: map[string]schema.Disk{"disk1": {Path: "/d", AllowScheduling: true}}}
		ref := ident.DiskRef{Node: name, Disk: "disk1"}
		v.Observed.Disks[ref] = model.Disk{Path: "/d", UUID: name, Space: model.Space{Total: 1 << 40, Free: 1 << 40}, Copies: map[ident.ID]model.Copy{
			id: {ID: id, State: model.Ready, Owned: true, Size: 1, SHA512: ident.Digest{}}}}
		if reaches := name == node || !n.away && !c.nodes[node].away; name == c.failing && reaches {
			v.Observed.Disks[ref].Copies[id] = model.Copy{ID: id, State: model.Pending}
			v.Observed.Failures[ident.CopyRef{Disk: ref, ID: id}] = model.Failure{Attempts: 1, Since: time.Now(), RetryAt: time.Now().Add(time.Hour), Message: "no route to host"}
		}
		if name == node {
			continue
		}
		p := model.Peer{Queried: true, ConfigDigest: c.digest(name), LastResponse: time.Now().UTC()}
		if self := c.nodes[node]; n.away || self.away {
			p.Problem, p.UnreachableSince = "connection refused", time.Now().Add(-min(time.Since(n.since), time.Since(self.since)))
		}
		v.Observed.Peers[name] = p
	}
	return v
}

func (c *notifying) digest(node string) string { return cmp.Or(c.digests[node], "d1") }

// round does a round of every node.
func (c *notifying) round() {
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		if n := c.nodes[name]; !n.away || n.cut {
			v := c.view(name)
			n.loop.view.Store(v)
			must(c.t, n.persist(v, func() map[ident.DiskRef]*disk.Disk { return n.disks }))
		}
	}
}

// pass lets time pass, with a round after each step.
func (c *notifying) pass(d time.Duration) {
	for range d / c.step {
		time.Sleep(c.step)
		synctest.Wait()
		c.round()
	}
}

// events returns the kinds of what the server accepted since the last call, sorted.
func (c *notifying) events() (kinds []string) {
	for _, r := range c.got {
		kinds = append(kinds, r.kind)
	}
	c.got = nil
	slices.Sort(kinds)
	return kinds
}

// want asserts which events the server accepted since the last call.
func (c *notifying) want(what string, want ...string) {
	c.t.Helper()
	if got := c.events(); !slices.Equal(got, want) {
		c.t.Errorf("%s: the server got %q, want %q", what, got, want)
	}
}

func (c *notifying) end() {
	for _, n := range c.nodes {
		n.stop()
	}
	synctest.Wait()
}

// Each change is sent once per cluster, and nothing of a condition that flaps within five minutes.
func TestNotifiesOncePerCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startNotifying(t, schema.NotifyCloudEvents, 3)
		defer c.end()
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
		c.pass(5*time.Minute - 10*time.Second)
		c.want("before five minutes")
		c.pass(time.Minute)
		c.want("after five minutes", "failed", "not-ready")
		for range 4 {
			c.failing = ""
			c.pass(4 * time.Minute)
			c.failing = "node3"
			c.pass(30 * time.Second)
		}
		c.want("interruptions, and longer than the recovery interval")
		c.failing = ""
		c.pass(5*time.Minute - 10*time.Second)
		c.want("gone for less than five minutes")
		c.pass(time.Minute)
		c.want("over", "failed.resolved", "not-ready.resolved")
		c.failing = "node3"
		c.pass(5*time.Minute - 10*time.Second)
		c.want("before five minutes, again")
		c.pass(time.Minute)
		c.want("again", "failed", "not-ready")
		c.failing = ""
		c.pass(6 * time.Minute)
		c.want("over again", "failed.resolved", "not-ready.resolved")
		c.pass(5 * time.Hour)
		c.want("the second node")
		time.Sleep(keepOver)
		c.pass(time.Minute)
		if n := len(c.nodes["node1"].published()); n > 100 {
			t.Errorf("what was sent a week ago is kept: %s", c.nodes["node1"].published())
		}
	})
}

// first returns the node that sends first that a copy failed.
func (c *notifying) first() *notifyingNode {
	for name, n := range c.nodes {
		if notification.Rank(notification.Condition{Kind: notification.Failed, Image: "parrot"}, name, slices.Collect(maps.Keys(c.nodes))) == 0 {
			return n
		}
	}
	panic("no node is first")
}

// failed asserts which nodes sent that a copy failed, since the last call.
func (c *notifying) failed(what string, want ...string) {
	c.t.Helper()
	var nodes []string
	for _, r := range c.got {
		if strings.HasPrefix(r.kind, "failed") || strings.HasPrefix(r.kind, "BackingImageFailed") {
			nodes = append(nodes, r.node)
		}
	}
	if c.got = nil; !slices.Equal(nodes, want) {
		c.t.Errorf("%s: %q sent, want %q", what, nodes, want)
	}
}

// Whichever of the nodes can send does, once: also if the first one cannot, is away for some time, or loses what it knows.
func TestAnotherNodeSendsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startNotifying(t, schema.NotifyCloudEvents, 3)
		defer c.end()
		first := c.first()
		second := ""
		for name := range c.nodes {
			if name != first.node && notification.Rank(notification.Condition{Kind: notification.Failed, Image: "parrot"}, name, slices.Collect(maps.Keys(c.nodes))) == 1 {
				second = name
			}
		}
		c.failing = first.node
		c.refuse[first.node] = &fetch.Error{Class: fetch.Network, Err: errors.New("no route")}
		c.pass(10 * time.Minute)
		c.failed("the first node cannot send")
		c.pass(2 * time.Minute)
		c.failed("after the recovery interval", second)
		clear(c.refuse)
		c.pass(time.Hour)
		c.failed("the first node can send again")

		// It crashes, and comes back with empty disks.
		first.stop()
		synctest.Wait()
		c.start(first.node, nil)
		c.pass(time.Hour)
		c.failed("the first node has forgotten everything")

		c.failing = ""
		c.pass(6 * time.Minute)
		c.failed("over", first.node)
		c.pass(5 * time.Hour)
		c.failed("long over")

		// The first node dies soon after it has sent the beginning.
		c.failing = second
		c.pass(5*time.Minute + 30*time.Second)
		c.failed("again", first.node)
		c.nodes[first.node].stop()
		c.nodes[first.node].away = true
		c.pass(3 * time.Hour)
		c.failed("the first node is dead")
		c.failing = ""
		c.pass(6 * time.Minute)
		c.failed("unknown without the first node")
		delete(c.nodes, first.node)
		c.pass(6 * time.Minute)
		c.failed("over without the first node", second)
		c.pass(5 * time.Hour)
		c.failed("long over without the first node")
	})
}

// An Alertmanager gets the alerts from two nodes, so that a node that only pretends to send silences nothing.
func TestSilentNodeSilencesNoAlertForLongerThanTheRecoveryInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startNotifying(t, schema.NotifyAlertmanager, 5)
		defer c.end()
		c.failing, c.first().mute = "node3", true
		c.pass(9 * time.Minute)
		c.failed("the first node is silent")
		c.pass(3 * time.Minute)
		if nodes := c.senders("BackingImageFailed"); len(nodes) != 1 {
			t.Errorf("%v sent", nodes)
		}
	})
}

// senders returns which nodes sent a kind since the last call, and how often.
func (c *notifying) senders(kind string) map[string]int {
	nodes := map[string]int{}
	for _, r := range c.got {
		if r.kind == kind {
			nodes[r.node]++
		}
	}
	c.got = nil
	return nodes
}

// After a restart nothing is sent twice, and the end of what was sent is not lost, also if it came while no process ran.
func TestNotificationsSurviveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startNotifying(t, schema.NotifyCloudEvents, 1)
		defer c.end()
		restart := func(away time.Duration) {
			old := c.nodes["node1"]
			old.stop()
			synctest.Wait()
			time.Sleep(away)
			c.start("node1", old.disks)
		}
		c.failing = "node1"
		c.pass(7 * time.Minute)
		c.want("on", "failed", "not-ready")
		restart(20 * time.Minute)
		c.pass(2 * time.Hour)
		c.want("after a restart")
		c.failing = ""
		restart(time.Hour)
		c.pass(4 * time.Minute)
		c.want("less than five minutes after the restart")
		c.pass(2 * time.Minute)
		c.want("over", "failed.resolved", "not-ready.resolved")
		restart(time.Minute)
		c.pass(time.Hour)
		c.want("after it was over")
	})
}

// A server that never accepts one event gets the other ones.
func TestRefusedEventBlocksNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startNotifying(t, schema.NotifyCloudEvents, 1)
		defer c.end()
		c.failing, c.never = "node1", ".failed"
		c.pass(20 * time.Minute)
		c.want("one event is refused", "not-ready")
		c.never = ""
		c.pass(6 * time.Minute)
		c.want("it is accepted", "failed")
	})
}

// Alertmanager gets an alert again and again while it goes on, and its end. A server that does not accept it is tried again.
func TestAlertsAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startNotifying(t, schema.NotifyAlertmanager, 3)
		defer c.end()
		c.failing = "node3"
		for name := range c.nodes {
			c.refuse[name] = &fetch.Error{Class: fetch.Network, Err: errors.New("503")}
		}
		c.pass(20 * time.Minute)
		c.want("refused")
		clear(c.refuse)
		c.pass(10 * time.Minute)
		got := c.events()
		if n := len(got); n < 2*8 || n > 2*2*11 {
			t.Errorf("in ten minutes the server got %d alerts", n)
		}
		c.failing = ""
		c.pass(time.Minute)
		c.events()
		c.pass(3*time.Minute + 30*time.Second)
		c.want("an interruption")
		c.pass(2 * time.Minute)
		c.want("over", "BackingImageFailed over", "BackingImageNotReady over")
	})
}

// Random failures, outages of nodes and of the server, restarts, lost disks and configurations that differ: the receiver of CloudEvents
// gets beginnings and ends in turn, none of what was shorter than five minutes, and each beginning has its end. A node that has just
// sent an event is not disturbed for a minute: the other ones ask it.
func TestEventsAlternate(t *testing.T) {
	for seed := range uint64(*notifyingSeeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { eventsAlternate(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

var notifyingSeeds = flag.Int("notifying.seeds", 2, "number of clusters of TestEventsAlternate")

// othersKnow reports whether the nodes that respond know together what a node has sent; true if there are no other nodes.
func (c *notifying) othersKnow(n *notifyingNode) bool {
	known := map[notification.Saved]bool{}
	episodes := func(n *notifyingNode) notification.SavedList {
		var r notificationRecord
		must(c.t, json.Unmarshal(n.published(), &r))
		for i := range r.Episodes {
			r.Episodes[i].Own, r.Episodes[i].After = false, time.Time{}
		}
		return r.Episodes
	}
	for _, other := range c.nodes {
		if other != n && !other.away {
			for _, e := range episodes(other) {
				known[e] = true
			}
		}
	}
	return len(c.nodes) == 1 || !slices.ContainsFunc(episodes(n), func(e notification.Saved) bool { return !known[e] })
}

func eventsAlternate(t *testing.T, rnd *rand.Rand) {
	c := startNotifying(t, schema.NotifyCloudEvents, 1+rnd.IntN(5))
	defer c.end()
	c.step = observeGap
	names := slices.Sorted(maps.Keys(c.nodes))
	anyNode := func() string { return names[rnd.IntN(len(names))] }
	var log []string
	note := func(format string, args ...any) {
		log = append(log, time.Now().Format("02 15:04:05 ")+fmt.Sprintf(format, args...))
	}
	longest, began := 0, time.Time{} // how many failures lasted long enough, and when the last one began
	fail := func(node string) {
		if began != (time.Time{}) && time.Since(began) >= notification.Hold-2*observeGap {
			longest++
		}
		began = time.Time{}
		if node != "" {
			began = time.Now()
		}
		c.failing = node
		note("failing: %q", node)
	}
	refuse := func(nodes ...string) {
		clear(c.refuse)
		for _, name := range nodes {
			c.refuse[name] = &fetch.Error{Class: fetch.Network, Err: errors.New("503")}
		}
		note("the server refuses %q", nodes)
	}
	back := func(n *notifyingNode, lost bool) {
		switch {
		case n.cut:
			n.away, n.cut = false, false
		case lost:
			c.start(n.node, nil)
		default:
			c.start(n.node, n.disks)
		}
		c.nodes[n.node].since = time.Now()
		c.round()
		note("%s is back; its disks were lost: %t", n.node, lost)
	}
	settled := func(d time.Duration) { // waits until nodes had the time to ask each other
		for len(c.got) > 0 && time.Since(c.got[len(c.got)-1].at) < d {
			c.pass(observeGap)
		}
	}
	pass := func() {
		switch rnd.IntN(3) {
		case 0:
			c.pass(time.Duration(rnd.IntN(60)) * time.Second)
		case 1:
			c.pass(time.Duration(rnd.IntN(12)) * time.Minute)
		default:
			c.pass(time.Duration(rnd.IntN(60)) * time.Minute)
		}
	}
	for range 40 {
		pass()
		switch what := rnd.IntN(10); {
		case what < 3:
			if c.failing == "" {
				fail(anyNode())
			} else {
				fail("")
			}
		case what == 3:
			refuse()
		case what == 4:
			refuse(names...)
		case what == 5: // only while the others know what this node cannot send
			if !slices.ContainsFunc(names, func(name string) bool {
				return c.nodes[name].away || time.Since(c.nodes[name].since) < 2*notification.Hold
			}) {
				refuse(anyNode())
				pass()
				refuse()
				c.pass(notification.Hold + time.Minute)
			}
		case what == 6:
			settled(time.Minute)
			if name := anyNode(); c.digests[name] == "" {
				c.digests[name] = fmt.Sprint("d", rnd.IntN(3))
				note("%s has the configuration %s", name, c.digests[name])
			} else {
				clear(c.digests)
				note("all have the same configuration")
			}
		default:
			settled(time.Minute)
			n := c.nodes[anyNode()]
			if n.away {
				back(n, false)
				break
			}
			if !c.othersKnow(n) {
				break
			}
			n.away, n.since, n.cut = true, time.Now(), rnd.IntN(2) == 0
			if !n.cut {
				n.stop()
				synctest.Wait()
			}
			note("%s is away; it runs: %t", n.node, n.cut)
			if rnd.IntN(4) == 0 && len(names) > 1 && len(c.refuse) == 0 && !slices.ContainsFunc(names, func(name string) bool { return name != n.node && c.nodes[name].away }) {
				c.pass(time.Duration(rnd.IntN(60)) * time.Minute)
				back(n, !n.cut)
				c.pass(11 * time.Minute) // it learns from the others
			}
		}
	}
	fail("")
	refuse()
	clear(c.digests)
	for _, name := range names {
		if n := c.nodes[name]; n.away {
			back(n, false)
		}
	}
	c.pass(3 * time.Hour)
	begins, last := map[string]int{}, map[string]bool{}
	for _, r := range c.got {
		kind, over := strings.CutSuffix(r.kind, ".resolved")
		log = append(log, fmt.Sprintf("%s %s sent %s", r.at.Format("02 15:04:05"), r.node, r.kind))
		if last[kind] == !over {
			t.Errorf("%s: over is %t twice, sent by %s at %v", kind, over, r.node, r.at)
		}
		if last[kind] = !over; !over {
			begins[kind]++
		}
	}
	for kind, on := range last {
		if on {
			t.Errorf("%s has no end", kind)
		}
	}
	if begins["failed"] > longest {
		t.Errorf("%d failures were sent, and %d were long enough", begins["failed"], longest)
	}
	if t.Failed() {
		slices.SortStableFunc(log, func(a, b string) int { return strings.Compare(a[:11], b[:11]) })
		t.Logf("%d nodes:\n%s", len(names), strings.Join(log, "\n"))
	}
}

package reconcile

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/notification"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// notifier sends changes of state to the server of settings.notify: package notification decides which ones, and whether this
// node does. It works beside the rounds, so that no server delays them. The rounds only write its record to the disks.
type notifier struct {
	loop  *Loop
	node  string
	send  sender
	ask   func(ctx context.Context, at peer.Address) ([]byte, error) // what another node published; see published
	state delivery

	// For the goroutine of run, by the steady clock.
	next    time.Time              // no attempt before it
	failed  time.Time              // the last failed attempt; zero: none
	refused notification.Condition // of the last failed attempt
	joined  bool                   // this node has asked others about all conditions since it started, or was alone

	unrecorded chan struct{} // receives when the server has accepted an event

	mu       sync.Mutex
	target   schema.Notify // zero: none
	tracker  notification.Tracker
	response []byte          // the response to other nodes; nil: the tracker has changed
	record   []byte          // what the disks have to have; nil: nothing yet
	nothing  bool            // record has no episode, so that no disk needs a new file for it
	on       map[string]bool // the disks that have a record, by their uuid; true: this record

	restored bool // the records of the disks were read; for the goroutine of the rounds
}

const (
	// observeGap is the time between two looks at the conditions.
	observeGap = 15 * time.Second
	// alertRepeat is how often an alert that goes on is sent again.
	alertRepeat = time.Minute
	// alertExpires is after what time, beside the recovery interval, Alertmanager resolves an alert that nobody sends again. It is longer
	// than an interruption of a condition that does not count, and than a restart.
	alertExpires = 3 * notification.Hold
	// minTakeover is the least time after which the second node sends what the first one should have sent. It is longer than the first
	// one waits between two attempts.
	minTakeover = 6 * time.Minute
	// keepOver is for how long an episode that is over is kept, with what was sent, if each event is sent once: its end waits for
	// the server, and a node that returns learns that it was sent.
	keepOver = 7 * 24 * time.Hour
	// notifyTimeout is how long a message may take.
	notifyTimeout = 30 * time.Second
	// askTimeout is how long the questions to other nodes may take together.
	askTimeout = 10 * time.Second
	// maxAsked is how many nodes are asked at the same time.
	maxAsked = 8
)

func newNotifier(l *Loop, o LoopOptions) *notifier {
	s := l.reconciler.system
	n := &notifier{
		loop: l, node: o.Node, send: newSender(o.Client), on: map[string]bool{}, unrecorded: make(chan struct{}, 1),
		state: delivery{what: "notification", log: o.Log, now: s.Now, random: s.Random},
	}
	if o.Peers != nil {
		n.ask = o.Peers.Notifications
	}
	return n
}

// run observes and sends until ctx ends.
func (n *notifier) run(ctx context.Context) {
	tick := time.NewTicker(observeGap)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if v := n.loop.View(); v != nil && v.Loaded {
			n.step(ctx, v)
		}
	}
}

// step observes a view, and sends what is due.
func (n *notifier) step(ctx context.Context, v *status.View) {
	if !n.observe(v) {
		return
	}
	if n.target.Format == schema.NotifyCloudEvents { // Alertmanager combines what several nodes send
		n.learn(ctx, v)
	}
	now := n.state.now()
	if now.Steady.Before(n.next) {
		return
	}
	settings := v.Desired.Config.Settings
	for _, m := range n.afterRefused(n.due(v, now)) {
		if n.state.now().Steady.Sub(now.Steady) >= observeGap {
			return // the conditions are older than the next look: it continues
		}
		timed, cancel := context.WithTimeoutCause(ctx, notifyTimeout, fmt.Errorf("the request was not done within %v", notifyTimeout))
		err := n.send(timed, settings, fetch.Message{
			URL: n.target.URL, Credentials: n.target.Credentials, Method: http.MethodPost, ContentType: m.ContentType, Body: m.Body,
		})
		cancel()
		if err != nil && ctx.Err() != nil {
			return
		}
		n.next = n.state.now().Steady.Add(n.state.done(err))
		if err != nil {
			n.failed, n.refused = n.state.now().Steady, m.Events[0].Condition
			return
		}
		n.accepted(m.Events)
	}
}

// afterRefused orders messages so that the next attempt begins after the message that failed: a server that never accepts one message must
// not block the others.
func (n *notifier) afterRefused(messages []notification.Message) []notification.Message {
	i := slices.IndexFunc(messages, func(m notification.Message) bool {
		return notification.CompareConditions(m.Events[0].Condition, n.refused) > 0
	})
	i = max(i, 0)
	return slices.Concat(messages[i:], messages[:i])
}

// observe adopts the setting of a view, and continues the episodes. It returns false without the setting.
func (n *notifier) observe(v *status.View) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	var target schema.Notify
	if declared := v.Desired.Config.Settings.Notify; declared != nil {
		target = *declared
	}
	if target != n.target {
		n.retarget(target)
		n.response = nil
	}
	if target == (schema.Notify{}) {
		return false
	}
	now := n.state.now()
	n.response = nil
	n.tracker.Update(notification.Observe(v.Status(nil)), now.Wall, now.Steady)
	return true
}

// retarget adopts another setting. A server that was not the receiver before knows nothing.
func (n *notifier) retarget(target schema.Notify) {
	server := ""
	switch {
	case target == (schema.Notify{}):
		n.tracker = notification.Tracker{}
	case targetKey(target) != targetKey(n.target) && n.target != (schema.Notify{}):
		n.tracker.Forget()
	}
	if target != (schema.Notify{}) {
		server = target.Server()
	}
	n.tracker.Repeat = 0
	if target.Format == schema.NotifyAlertmanager {
		n.tracker.Repeat = alertRepeat
	}
	n.target, n.next, n.failed, n.joined = target, time.Time{}, time.Time{}, false
	n.state.to(server)
}

// learn asks other nodes what they have sent. A node that does not respond has sent nothing, as far as this node knows.
func (n *notifier) learn(ctx context.Context, v *status.View) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	nodes := responding(v)
	n.joined = n.joined && len(nodes) > 0
	join := !n.joined
	var questions errgroup.Group
	questions.SetLimit(maxAsked)
	for node, about := range n.questions(v, nodes, join) {
		at := peer.Address{Node: node, URL: v.Desired.Config.Nodes[node].Address}
		questions.Go(func() error {
			data, err := n.ask(ctx, at)
			var r notificationRecord
			if err != nil || json.Unmarshal(data, &r) != nil {
				return nil
			}
			n.mu.Lock()
			defer n.mu.Unlock()
			if r.Target != targetKey(n.target) {
				return nil
			}
			n.response = nil
			now := n.state.now()
			if join {
				declared := func(image string) bool { _, ok := v.Desired.Config.Images[image]; return ok }
				n.tracker.Join(r.Episodes, declared, now.Wall, now.Steady)
				n.joined = true
			}
			n.tracker.Learn(about, r.Episodes, now.Wall, now.Steady)
			return nil
		})
	}
	_ = questions.Wait() // no question returns an error
}

// questions returns which nodes to ask about which conditions: those that may have sent their events, and all that respond to join them.
func (n *notifier) questions(v *status.View, nodes []string, join bool) map[string][]notification.Condition {
	n.mu.Lock()
	defer n.mu.Unlock()
	questions := map[string][]notification.Condition{}
	if join {
		for _, node := range nodes {
			questions[node] = nil
		}
	}
	all, _ := senders(v)
	for _, c := range n.tracker.Questions() {
		for _, node := range notification.Partners(c, n.node, all) {
			questions[node] = append(questions[node], c)
		}
	}
	return questions
}

// responding returns the other nodes that respond.
func responding(v *status.View) []string {
	var nodes []string
	for name, p := range v.Observed.Peers {
		if p.Responds() {
			nodes = append(nodes, name)
		}
	}
	return nodes
}

// published returns what other nodes can read: which events the server has got.
func (n *notifier) published() []byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.response == nil { // a node that asks again and again must not delay the others
		n.response = encodeRecord(notificationRecord{targetKey(n.target), n.tracker.Published()})
	}
	return n.response
}

// due returns the messages that are due.
func (n *notifier) due(v *status.View, now Instant) []notification.Message {
	n.mu.Lock()
	defer n.mu.Unlock()
	takeover := takeoverInterval(v)
	keep := 2*takeover + time.Hour // nobody sends it any more
	if n.target.Format == schema.NotifyCloudEvents {
		keep = keepOver
	}
	n.response = nil
	events := n.tracker.Due(now.Steady, n.turns(v, now.Steady), keep)
	x := notification.Context{Cluster: n.target.Cluster, Now: now.Wall, Expires: alertExpires + takeover, Address: v.Desired.Config.Nodes[n.node].Address}
	if n.target.Format == schema.NotifyAlertmanager {
		return x.Alerts(events)
	}
	return x.CloudEvents(events)
}

// takeoverInterval returns for how long a node leaves an event to the node before it.
func takeoverInterval(v *status.View) time.Duration {
	return max(v.Desired.Config.Settings.RecoveryWaitInterval, minTakeover)
}

// turns returns when this node sends. All nodes that respond have ranks, so that all agree which one is first, also while their
// configurations differ. The first two may not send: they have another configuration, or were not there when the episode began. So the
// first one of those with the same configuration, and the one that sent the beginning, are last. After the server refused messages,
// the first one is first again.
func (n *notifier) turns(v *status.View, now time.Time) func(c notification.Condition, own bool) notification.Turn {
	all, alike := senders(v)
	takeover := takeoverInterval(v)
	return func(c notification.Condition, own bool) notification.Turn {
		turn := notification.Rank(c, n.node, all)
		if turn > 1 && (own || notification.Rank(c, n.node, alike) == 0) {
			turn = 2
		}
		wait := time.Duration(turn) * takeover
		if turn > 2 || turn > 0 && !n.failed.IsZero() && now.Sub(n.failed) < wait {
			return notification.Turn{}
		}
		return notification.Turn{Sends: true, After: wait}
	}
}

// senders returns the other nodes that may send notifications: those that have responded within the recovery interval, and which of
// them have the configuration of this node.
func senders(v *status.View) (all, alike []string) {
	recovery := v.Desired.Config.Settings.RecoveryWaitInterval
	for name, p := range v.Observed.Peers {
		if !p.Responds() && (!p.Queried || p.LastResponse.IsZero() || p.UnreachableFor(v.Observed.Now) >= recovery) {
			continue
		}
		all = append(all, name)
		if p.ConfigDigest == v.Desired.Digest {
			alike = append(alike, name)
		}
	}
	return all, alike
}

func (n *notifier) accepted(events []notification.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.response = nil
	n.tracker.Sent(events, n.state.now().Steady)
	notify(n.unrecorded)
}

// notificationRecord is the content of the record on the disks, and of what a node publishes.
type notificationRecord struct {
	Target   string                 `json:"target"` // targetKey
	Episodes notification.SavedList `json:"episodes"`
}

// targetKey identifies the receiver of messages, without secrets.
func targetKey(t schema.Notify) string {
	address, _, _ := strings.Cut(t.URL, "?")
	sum := sha256.Sum256([]byte(address + " " + string(t.Format) + " " + t.Cluster))
	return hex.EncodeToString(sum[:16])
}

func encodeRecord(r notificationRecord) []byte {
	data, err := json.Marshal(r)
	if err != nil {
		panic("reconcile: encode a record: " + err.Error()) // its types have no values that JSON lacks
	}
	return data
}

// updateRecord makes the record that the disks have to have. Before the first observation there is none.
func (n *notifier) updateRecord() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.target == (schema.Notify{}) {
		return
	}
	r := notificationRecord{targetKey(n.target), n.tracker.Record()}
	data := encodeRecord(r)
	if !bytes.Equal(data, n.record) {
		n.record, n.nothing = data, len(r.Episodes) == 0
		for uuid := range n.on {
			n.on[uuid] = false
		}
	}
}

// persist reads the records of the disks at the first call with a setting, and later writes the current record to the disks that
// do not have it. The error is why a disk does not have it. It is for the goroutine of the rounds.
func (n *notifier) persist(v *status.View, folders func() map[ident.DiskRef]*disk.Disk) (failed error) {
	declared := v.Desired.Config.Settings.Notify
	if declared == nil {
		return nil
	}
	disks := folders()
	if len(disks) == 0 {
		return nil
	}
	if !n.restored {
		n.restore(*declared, disks)
		return nil
	}
	n.updateRecord()
	for _, d := range disks {
		record := n.missing(d.UUID())
		if record == nil {
			continue
		}
		switch err := d.SetNotified(record); { // without the mutex: a slow disk must not delay the sender
		case err == nil:
			n.recorded(d.UUID(), record)
		case !errors.Is(err, disk.ErrReadOnly):
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// missing returns the record that a disk has to have, and does not have; nil: it needs none.
func (n *notifier) missing(uuid string) []byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	has, exists := n.on[uuid]
	if has || n.nothing && !exists {
		return nil
	}
	return n.record
}

// recorded notes that a disk has a record.
func (n *notifier) recorded(uuid string, record []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.on[uuid] = bytes.Equal(record, n.record)
}

// restore adds the episodes of the disks. A record that cannot be read is none: its episodes are sent again.
func (n *notifier) restore(target schema.Notify, disks map[ident.DiskRef]*disk.Disk) {
	for _, d := range disks {
		data, err := d.Notified()
		if err != nil || data == nil {
			continue
		}
		n.restoreFrom(d.UUID(), data, target)
	}
	n.restored = true
}

func (n *notifier) restoreFrom(uuid string, data []byte, target schema.Notify) {
	var r notificationRecord
	if json.Unmarshal(data, &r) != nil || r.Target != targetKey(target) {
		r = notificationRecord{} // another server got nothing of it
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.on[uuid], n.response = false, nil
	now := n.state.now()
	n.tracker.Restore(r.Episodes, now.Wall, now.Steady)
}

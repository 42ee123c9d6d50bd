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
	"strings"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
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
	state delivery
	next  time.Time // no attempt before it, by the steady clock; for the goroutine of run

	mu       sync.Mutex
	target   schema.Notify // zero: none
	tracker  notification.Tracker
	restored bool            // the records of the disks were read
	record   []byte          // what the disks have to have; nil: nothing yet
	nothing  bool            // record has no episode, so that no disk needs a new file for it
	on       map[string]bool // the disks that have a record, by their uuid; true: this record
}

const (
	// observeGap is the time between two looks at the conditions.
	observeGap = 15 * time.Second
	// alertRepeat is how often an alert that goes on is sent again.
	alertRepeat = time.Minute
	// alertExpires is after what time, beside the recovery interval, Alertmanager resolves an alert that nobody sends again. It is longer
	// than an interruption of a condition that does not count, and than a restart.
	alertExpires = 3 * notification.Hold
	// minTakeover is the least time after which the second node sends what the first one should have sent.
	minTakeover = time.Minute
	// notifyTimeout is how long a message may take.
	notifyTimeout = 30 * time.Second
)

func newNotifier(l *Loop, o LoopOptions) *notifier {
	s := l.reconciler.system
	return &notifier{
		loop: l, node: o.Node, send: newSender(o.Client), on: map[string]bool{},
		state: delivery{what: "notification", log: o.Log, now: s.Now, random: s.Random},
	}
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
	now := n.state.now()
	if now.Steady.Before(n.next) {
		return
	}
	settings := v.Desired.Config.Settings
	for _, m := range n.due(v, now) {
		timed, cancel := context.WithTimeoutCause(ctx, notifyTimeout, fmt.Errorf("the request was not done within %v", notifyTimeout))
		err := n.send(timed, settings, fetch.Message{
			URL: n.target.URL, Credentials: n.target.Credentials, Method: http.MethodPost, ContentType: m.ContentType, Body: m.Body,
		})
		cancel()
		if ctx.Err() != nil {
			return
		}
		n.next = n.state.now().Steady.Add(n.state.done(err))
		if err != nil {
			return
		}
		n.accepted(m.Events)
	}
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
	}
	if target == (schema.Notify{}) {
		return false
	}
	now := n.state.now()
	n.tracker.Update(notification.Observe(v.Status(nil)), now.Wall, now.Steady)
	n.updateRecord()
	return true
}

// retarget adopts another setting. A server that was not the receiver before knows nothing.
func (n *notifier) retarget(target schema.Notify) {
	server := ""
	switch {
	case target == (schema.Notify{}):
		n.tracker = notification.Tracker{}
	case targetKey(target) != targetKey(n.target) && n.target != (schema.Notify{}):
		n.tracker.Unsend()
	}
	if target != (schema.Notify{}) {
		server = target.Server()
	}
	n.target, n.next = target, time.Time{}
	n.state.to(server)
}

// due returns the messages that are due.
func (n *notifier) due(v *status.View, now Instant) []notification.Message {
	n.mu.Lock()
	defer n.mu.Unlock()
	recovery := v.Desired.Config.Settings.RecoveryWaitInterval
	nodes := senders(v, recovery)
	rank := func(c notification.Condition) int { return notification.Rank(c, n.node, nodes) }
	x := notification.Context{
		Cluster: n.target.Cluster, Now: now.Wall, Expires: alertExpires + max(recovery, minTakeover), Address: v.Desired.Config.Nodes[n.node].Address,
	}
	repeat := time.Duration(0)
	if n.target.Format == schema.NotifyAlertmanager {
		repeat = alertRepeat
	}
	events := n.tracker.Due(now.Steady, rank, max(recovery, minTakeover), repeat)
	if n.target.Format == schema.NotifyAlertmanager {
		return x.Alerts(events)
	}
	return x.CloudEvents(events)
}

// senders returns the other nodes that send notifications, as far as this node knows: they have its configuration, and have
// responded within the recovery interval.
func senders(v *status.View, recovery time.Duration) []string {
	var nodes []string
	for name, p := range v.Observed.Peers {
		responds := p.Responds() || p.Queried && !p.LastResponse.IsZero() && p.UnreachableFor < recovery
		if responds && (v.Desired.Digest == "" || p.ConfigDigest == v.Desired.Digest) {
			nodes = append(nodes, name)
		}
	}
	return nodes
}

func (n *notifier) accepted(events []notification.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tracker.Sent(events, n.state.now().Steady)
	n.updateRecord()
}

// notificationRecord is the content of the record on the disks.
type notificationRecord struct {
	Target   string               `json:"target"` // targetKey
	Episodes []notification.Saved `json:"episodes"`
}

// targetKey identifies the receiver of messages, without secrets.
func targetKey(t schema.Notify) string {
	address, _, _ := strings.Cut(t.URL, "?")
	sum := sha256.Sum256([]byte(address + " " + string(t.Format) + " " + t.Cluster))
	return hex.EncodeToString(sum[:16])
}

// updateRecord makes the record that the disks have to have.
func (n *notifier) updateRecord() {
	r := notificationRecord{targetKey(n.target), n.tracker.Record()}
	data, err := json.Marshal(r)
	if err != nil {
		panic("reconcile: encode a record: " + err.Error()) // its types have no values that JSON lacks
	}
	if !bytes.Equal(data, n.record) {
		n.record, n.nothing = data, len(r.Episodes) == 0
		for uuid := range n.on {
			n.on[uuid] = false
		}
	}
}

// persist reads the records of the disks at the first call with a setting, and later writes the current record to the disks that
// do not have it. The error is why a disk does not have it. It is for the goroutine of the rounds.
func (n *notifier) persist(v *status.View, folders func() map[schema.DiskRef]*disk.Disk) (failed error) {
	n.mu.Lock()
	defer n.mu.Unlock()
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
	for _, d := range disks {
		has, exists := n.on[d.UUID()]
		if has || n.record == nil || n.nothing && !exists {
			continue
		}
		err := d.SetNotified(n.record)
		if n.on[d.UUID()] = err == nil; err != nil && !errors.Is(err, disk.ErrReadOnly) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// restore adds the episodes of the disks. A record that cannot be read is none: its episodes are sent again.
func (n *notifier) restore(target schema.Notify, disks map[schema.DiskRef]*disk.Disk) {
	for _, d := range disks {
		data, err := d.Notified()
		if err != nil || data == nil {
			continue
		}
		n.on[d.UUID()] = false
		var r notificationRecord
		if json.Unmarshal(data, &r) != nil {
			continue
		}
		for i := range r.Episodes {
			r.Episodes[i].Sent = r.Episodes[i].Sent && r.Target == targetKey(target)
		}
		n.tracker.Restore(r.Episodes, n.state.now().Steady)
	}
	n.restored = true
}

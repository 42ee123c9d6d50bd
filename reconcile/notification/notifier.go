package notification

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/delivery"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Notifier sends changes of state to the server of settings.notify. It works beside the rounds, so that no server delays them.
type Notifier struct {
	Outcome *delivery.Outcome

	view  func() *status.View
	peers func() map[string]peer.Observation
	send  delivery.Sender

	// For the goroutine of Run.
	target   schema.Notify // zero: none
	episodes episodes
	next     time.Time // no attempt before it
	refused  Condition // of the first event in the last failed attempt

	conditions atomic.Pointer[[]model.Condition] // see Conditions
}

const (
	// observeGap is the time between two looks at the conditions.
	observeGap = 15 * time.Second
	// alertRepeat is how often an alert that goes on is sent again.
	alertRepeat = time.Minute
	// alertExpires is after what time Alertmanager resolves an alert that nobody sends again. It is longer than a restart, and than
	// an interruption that does not end an episode.
	alertExpires = 3 * Hold
	// notifyTimeout is how long a message may take.
	notifyTimeout = 30 * time.Second
)

// New returns a Notifier. view returns the last round of this node, nil before the first one. peers returns what the other nodes published.
func New(view func() *status.View, peers func() map[string]peer.Observation, send delivery.Sender, log *slog.Logger) *Notifier {
	return &Notifier{view: view, peers: peers, send: send, Outcome: delivery.NewOutcome("notification", log, rand.Float64)}
}

// Conditions returns the conditions of the whole cluster that this node observes, for the other nodes. It may be called concurrently, and
// the caller must not change the result.
func (n *Notifier) Conditions() []model.Condition {
	if published := n.conditions.Load(); published != nil {
		return *published
	}
	return nil
}

// Run observes and sends until ctx ends.
func (n *Notifier) Run(ctx context.Context) {
	tick := time.Tick(observeGap)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		if v := n.view(); v != nil && v.Loaded {
			n.step(ctx, v)
		}
	}
}

// step observes a view, and sends what is due.
func (n *Notifier) step(ctx context.Context, v *status.View) {
	n.retarget(v.Desired.Config.Settings.Notify)
	if n.target == (schema.Notify{}) {
		return
	}
	begin, sends := time.Now(), senders(v)
	n.observe(v, begin, sends)
	if begin.Before(n.next) {
		return
	}
	for _, m := range n.afterRefused(n.messages(v, n.episodes.due(begin, sends))) {
		if time.Since(begin) >= observeGap {
			return // the next look is due: its step sends the rest
		}
		err := n.send(ctx, notifyTimeout, v.Desired.Config.Settings, fetch.Message{
			URL: n.target.URL, Credentials: n.target.Credentials, Method: http.MethodPost, ContentType: m.contentType, Body: m.body,
		})
		if err != nil && ctx.Err() != nil {
			return
		}
		n.next = time.Now().Add(n.Outcome.Done(err))
		if err != nil {
			n.refused = m.events[0].Condition
			return
		}
		n.episodes.accepted(m.events, time.Now())
	}
}

// retarget adopts the setting. For another server than before, all episodes are new.
func (n *Notifier) retarget(declared *schema.Notify) {
	target, server := schema.Notify{}, ""
	if declared != nil {
		target, server = *declared, declared.Server()
	}
	if target == n.target {
		return
	}
	before := n.target
	n.target, n.next = target, time.Time{}
	n.Outcome.To(server)
	if before.Credentials = target.Credentials; before != target {
		n.episodes.forget()
	}
	n.episodes.repeat = 0
	if target.Format == schema.NotifyAlertmanager {
		n.episodes.repeat = alertRepeat
	}
	if declared == nil {
		n.episodes = episodes{}
		n.conditions.Store(nil)
	}
}

// observe updates the episodes from a view.
func (n *Notifier) observe(v *status.View, now time.Time, sends func(Condition) bool) {
	if n.episodes.young {
		for _, o := range n.peers() {
			n.episodes.adopt(o.State.Conditions)
		}
	}
	n.episodes.update(observe(v.Status(nil)), now, sends)
	published := n.episodes.published()
	n.conditions.Store(&published)
}

// messages returns the messages that contain the events.
func (n *Notifier) messages(v *status.View, events []event) []message {
	if n.target.Format == schema.NotifyAlertmanager {
		return alerts(events, alertContext{cluster: n.target.Cluster, now: time.Now(), address: v.Desired.Config.Nodes[v.Desired.Node].Address})
	}
	return cloudEvents(events, n.target.Cluster)
}

// afterRefused orders messages so that the next attempt begins after the message that failed: a server that never accepts one message must
// not block the others.
func (n *Notifier) afterRefused(messages []message) []message {
	i := slices.IndexFunc(messages, func(m message) bool { return compareConditions(m.events[0].Condition, n.refused) > 0 })
	i = max(i, 0)
	return slices.Concat(messages[i:], messages[:i])
}

// senders returns a function that reports whether this node sends the events of a condition: those of its own copies always, and others
// if this node is one of the first two nodes that respond.
func senders(v *status.View) func(Condition) bool {
	var others []string
	for name, p := range v.Observed.Peers {
		if p.Responds() {
			others = append(others, name)
		}
	}
	return func(c Condition) bool { return c.Node != "" || rank(c, v.Desired.Node, others) < 2 }
}

// rank returns how many of the other nodes come before a node for a condition, by rendezvous hashing: 0 is the first one. The score of a
// node is the SHA-256 of the kind, the image and the node, each preceded by its length as 8 bytes, big-endian; the smallest one is first.
func rank(c Condition, node string, others []string) (before int) {
	own := score(c, node)
	for _, other := range others {
		if score(c, other) < own {
			before++
		}
	}
	return before
}

// score returns the hash as a string, which is comparable.
func score(c Condition, node string) string {
	var b []byte
	for _, name := range []string{string(c.Kind), c.Image, node} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(name)))
		b = append(b, name...)
	}
	sum := sha256.Sum256(b)
	return string(sum[:])
}

// compareConditions orders conditions by image, kind and node.
func compareConditions(a, b Condition) int {
	return cmp.Or(cmp.Compare(a.Image, b.Image), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Node, b.Node))
}

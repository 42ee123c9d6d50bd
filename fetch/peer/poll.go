package peer

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/backoff"
)

// Observation is the known state of a peer. Its times contain monotonic readings of this node's
// clock.
type Observation struct {
	// State is the last received state. It is current if Problem is "". It must not be modified.
	State model.Node
	URL   string // the declared address
	// Polled is true after the first request has ended, successfully or not.
	Polled bool
	// Problem is the reason why the peer does not respond; "" if it responds.
	Problem string
	// LastSuccess is the time when the last successful request was sent; State is not older. It is
	// zero if no request was successful.
	LastSuccess time.Time
	// Received is the time when State was received. Times in State are translated by it.
	Received time.Time
	// LastSeen is the last time when the peer was known to be reachable: its last response, or the end
	// of the pending request that failed. Before the first response it is the start of polling.
	LastSeen time.Time
	// Outdated: State was read for an earlier scope, and may lack what is needed now, such as disks that
	// were declared later. A new State is requested, and takes a moment.
	Outdated bool

	etag string
}

// Target is a node to poll.
type Target struct {
	URL   string // "": a node without a declared address
	Scope Scope
}

// Poller keeps the states of peers up to date. One request to each peer, usually a long poll, is
// always pending. It is safe for concurrent use.
type Poller struct {
	client  *Client
	config  pollConfig
	changed chan struct{} // see Changed
	running sync.WaitGroup

	mu     sync.Mutex // also guards the observation of each peer
	peers  map[string]*polledPeer
	closed bool
}

type polledPeer struct {
	target      Target
	observation Observation
	cancel      context.CancelFunc      // nil if the peer has no address
	interrupt   context.CancelCauseFunc // ends the pending request; nil before the first one
}

// pollConfig contains the intervals of polling.
type pollConfig struct {
	wait        time.Duration    // wait of one long poll
	minInterval time.Duration    // between the starts of two requests
	retry       backoff.Doubling // delay after a failure
	// idleFactor is the least time between the starts of two requests, as a multiple of the time to decode
	// the response. A peer whose large state always changes thus takes about a tenth of a processor.
	idleFactor time.Duration
}

var defaultPolling = pollConfig{wait: 30 * time.Second, minInterval: 100 * time.Millisecond, retry: backoff.Doubling{First: 300 * time.Millisecond, Max: 5 * time.Second}, idleFactor: 9}

// NewPoller returns a Poller without peers.
func NewPoller(c *Client) *Poller {
	return &Poller{client: c, config: defaultPolling, changed: make(chan struct{}, 1), peers: map[string]*polledPeer{}}
}

// SetPeers replaces the polled nodes, by name. If the URL of a node did not change, its observation is
// kept. SetPeers does not wait for a response. Polling of a node ends when the ctx of the call that
// added the node ends, or with Close.
func (p *Poller) SetPeers(ctx context.Context, nodes map[string]Target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	for name, peer := range p.peers {
		if target, ok := nodes[name]; !ok || target.URL != peer.target.URL {
			peer.stop()
			delete(p.peers, name)
			p.notify()
		}
	}
	for name, target := range nodes {
		if peer := p.peers[name]; peer != nil {
			peer.setScope(target.Scope)
		} else {
			p.peers[name] = p.startPolling(ctx, name, target)
		}
	}
}

// errNewScope ends a request whose response would leave out what is needed now.
var errNewScope = errors.New("the scope changed")

// setScope replaces the scope. If the scope changed and the last state left out anything, setScope ends the
// pending request, and the state is requested again.
func (peer *polledPeer) setScope(s Scope) {
	changed := !peer.target.Scope.equal(s)
	peer.target.Scope = s
	if changed && peer.observation.State.Partial {
		peer.observation.Outdated = true
		peer.interrupt(errNewScope)
	}
}

func (p *Poller) startPolling(ctx context.Context, name string, target Target) *polledPeer {
	peer := &polledPeer{target: target, observation: Observation{URL: target.URL, LastSeen: time.Now()}}
	if target.URL == "" {
		peer.observation.Polled, peer.observation.Problem = true, errNoAddress.Error()
		p.notify()
		return peer
	}
	ctx, peer.cancel = context.WithCancel(ctx)
	p.running.Go(func() { p.poll(ctx, peer, Address{Node: name, URL: target.URL}) })
	return peer
}

func (peer *polledPeer) stop() {
	if peer.cancel != nil {
		peer.cancel()
	}
}

// Observations returns the observation of each peer, by name.
func (p *Poller) Observations() map[string]Observation {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]Observation, len(p.peers))
	for name, peer := range p.peers {
		all[name] = peer.observation
	}
	return all
}

// Changed returns a channel that receives a value after an observation changed, except for volatile
// values and times. Several changes may send only one value.
func (p *Poller) Changed() <-chan struct{} { return p.changed }

// Close ends all requests and waits for their goroutines.
func (p *Poller) Close() {
	p.mu.Lock()
	p.closed = true
	for peer := range maps.Values(p.peers) {
		peer.stop()
	}
	p.mu.Unlock()
	p.running.Wait()
}

// record stores the result of a request that was sent for a scope.
func (p *Poller) record(peer *polledPeer, now Observation, scope Scope) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := peer.observation
	now.Outdated = now.Problem == "" && now.State.Partial && !peer.target.Scope.equal(scope)
	peer.observation = now
	if was.etag != now.etag || was.Problem != now.Problem || was.Polled != now.Polled || was.Outdated != now.Outdated {
		p.notify()
	}
}

// begin returns the context and the scope of the next request, and the observation before it. The context ends when the
// request is of no use any more. An outdated observation has no ETag, because the whole state is needed.
func (p *Poller) begin(ctx context.Context, peer *polledPeer) (context.Context, Scope, Observation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, peer.interrupt = context.WithCancelCause(ctx)
	last := peer.observation
	if last.Outdated {
		last.etag = ""
	}
	return ctx, peer.target.Scope, last
}

func (p *Poller) notify() {
	select {
	case p.changed <- struct{}{}:
	default: // the value in the channel stands for this change too
	}
}

// poll polls one peer until ctx ends.
func (p *Poller) poll(ctx context.Context, peer *polledPeer, at Address) {
	failures := 0
	for {
		start := time.Now()
		request, scope, last := p.begin(ctx, peer)
		next, cost := p.query(request, last, at, scope)
		interrupted := errors.Is(context.Cause(request), errNewScope)
		peer.interrupt(nil)
		switch {
		case ctx.Err() != nil:
			return
		case interrupted:
			continue
		}
		p.record(peer, next, scope)
		pause := max(p.config.minInterval, p.config.idleFactor*cost) - time.Since(start)
		if next.Problem == "" {
			failures = 0
		} else {
			pause = max(pause, jitter(p.config.retry.After(failures)))
			failures++
		}
		if fetch.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// query sends one request and returns the new observation, and the time that it took to decode the
// response. The first request, and each request after a failure, is not a long poll: a peer that is reachable again then
// responds immediately, even if its state did not change.
func (p *Poller) query(ctx context.Context, last Observation, at Address, scope Scope) (Observation, time.Duration) {
	start, wait, responded := time.Now(), time.Duration(0), last.Polled && last.Problem == ""
	if responded {
		wait = p.config.wait
	}
	r, err := p.client.pollState(ctx, at, scope, last.etag, wait)
	last.Polled = true
	switch {
	case errors.Is(err, ErrUnchanged):
	case err != nil:
		if responded { // the peer was reachable until this request failed
			last.LastSeen = time.Now()
		}
		last.Problem = err.Error()
		return last, r.cost
	default:
		last.State, last.etag, last.Received = r.state, r.etag, time.Now()
	}
	last.Problem, last.LastSuccess, last.LastSeen = "", start, time.Now()
	return last, r.cost
}

// jitter returns 75 to 125 % of d, so that nodes do not poll at the same time.
func jitter(d time.Duration) time.Duration {
	return time.Duration((0.75 + rand.Float64()/2) * float64(d))
}

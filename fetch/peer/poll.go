package peer

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"time"
)

// Observation is the known state of a peer. Its times contain monotonic readings of this node's
// clock.
type Observation struct {
	// State is the last received State. It is current if Problem is "". It must not be modified.
	State State
	URL   string // the declared address
	// Polled is true after the first request has ended, successfully or not.
	Polled bool
	// Problem is the reason why the peer does not respond; "" if it responds.
	Problem string
	// LastSuccess is the time when the last successful request was sent; State is not older. It is
	// zero if no request was successful.
	LastSuccess time.Time
	// Received is the time when State was received. Relative times in State refer to it.
	Received time.Time
	// LastSeen is the last time when the peer was known to be reachable: its last response, or the end
	// of the pending request that failed. Before the first response it is the start of polling.
	LastSeen time.Time

	etag string
}

// Poller keeps the States of peers up to date. One request to each peer, usually a long poll, is
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
	url         string
	observation Observation
	cancel      context.CancelFunc // nil if the peer has no address
}

// pollConfig contains the intervals of polling.
type pollConfig struct {
	wait        time.Duration // wait of one long poll
	minInterval time.Duration // between the starts of two requests
	firstRetry  time.Duration // delay after the first failure; it doubles with each further failure
	maxRetry    time.Duration
}

var defaultPolling = pollConfig{wait: 30 * time.Second, minInterval: 100 * time.Millisecond, firstRetry: 300 * time.Millisecond, maxRetry: 5 * time.Second}

// NewPoller returns a Poller without peers.
func NewPoller(c *Client) *Poller {
	return &Poller{client: c, config: defaultPolling, changed: make(chan struct{}, 1), peers: map[string]*polledPeer{}}
}

// SetPeers replaces the polled nodes: nodes maps their names to URLs; "" is a node without a declared
// address. If the URL of a node did not change, its observation is kept. SetPeers does not wait for a
// response. Polling of a node ends when the ctx of the call that added the node ends, or with Close.
func (p *Poller) SetPeers(ctx context.Context, nodes map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	for name, peer := range p.peers {
		if url, ok := nodes[name]; !ok || url != peer.url {
			peer.stop()
			delete(p.peers, name)
			p.notify()
		}
	}
	for name, url := range nodes {
		if p.peers[name] == nil {
			p.peers[name] = p.startPolling(ctx, Address{Node: name, URL: url})
		}
	}
}

func (p *Poller) startPolling(ctx context.Context, at Address) *polledPeer {
	peer := &polledPeer{url: at.URL, observation: Observation{URL: at.URL, LastSeen: time.Now()}}
	if at.URL == "" {
		peer.observation.Polled, peer.observation.Problem = true, errNoAddress.Error()
		p.notify()
		return peer
	}
	ctx, peer.cancel = context.WithCancel(ctx)
	p.running.Go(func() { p.poll(ctx, peer, at) })
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

// record stores the result of a request.
func (p *Poller) record(peer *polledPeer, now Observation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := peer.observation
	peer.observation = now
	if was.etag != now.etag || was.Problem != now.Problem || was.Polled != now.Polled {
		p.notify()
	}
}

func (p *Poller) notify() {
	select {
	case p.changed <- struct{}{}:
	default: // the value in the channel stands for this change too
	}
}

// poll polls one peer until ctx ends. The first request, and each request after a failure, is not a
// long poll, so that a peer that is reachable again is detected immediately even if its State did not
// change.
func (p *Poller) poll(ctx context.Context, peer *polledPeer, at Address) {
	last := Observation{URL: at.URL, LastSeen: peer.observation.LastSeen}
	retry := p.config.firstRetry
	for {
		wait := p.config.wait
		if !last.Polled || last.Problem != "" {
			wait = 0
		}
		start := time.Now()
		last = p.query(ctx, last, at, wait)
		if ctx.Err() != nil {
			return
		}
		p.record(peer, last)
		pause := p.config.minInterval - time.Since(start)
		if last.Problem == "" {
			retry = p.config.firstRetry
		} else {
			pause = jitter(retry)
			retry = min(2*retry, p.config.maxRetry)
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

// query sends one request and returns the new observation.
func (p *Poller) query(ctx context.Context, last Observation, at Address, wait time.Duration) Observation {
	start := time.Now()
	s, etag, err := p.client.State(ctx, at, last.etag, wait)
	responded := last.Polled && last.Problem == ""
	last.Polled = true
	switch {
	case errors.Is(err, ErrUnchanged):
	case err != nil:
		if responded { // the peer was reachable until this request failed
			last.LastSeen = time.Now()
		}
		last.Problem = err.Error()
		return last
	default:
		last.State, last.etag, last.Received = s, etag, time.Now()
	}
	last.Problem, last.LastSuccess, last.LastSeen = "", start, time.Now()
	return last
}

// jitter returns 75 to 125 % of d, so that nodes do not poll at the same time.
func jitter(d time.Duration) time.Duration {
	return time.Duration((0.75 + rand.Float64()/2) * float64(d))
}

// sleep waits for d. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

package peer

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"time"
)

// Observation is what a Watch knows of a node. The times are monotonic.
type Observation struct {
	// State is what the node told last, and stands if Problem is "". Nothing of it
	// may be written to.
	State State
	URL   string // where it was asked
	// Asked: a question has ended, well or not.
	Polled bool
	// Problem says why the node does not answer.
	Problem string
	// LastSuccess is when the last question with a good answer was begun, so that State is
	// not older; zero when there was none.
	LastSuccess time.Time
	// Received is when State came; what is relative in it is so to then.
	Received time.Time
	// LastSeen is when the node last gave a sign of life: its last answer, or the end of
	// the question that it broke off. Before the first, when it was first followed.
	LastSeen time.Time

	etag string
}

// Poller follows what other nodes tell of themselves, with a question to each that
// is under way all the time. Its methods may be called concurrently.
type Poller struct {
	client  *Client
	config  pollConfig
	changed chan struct{}
	running sync.WaitGroup

	mu     sync.Mutex
	peers  map[string]*polledPeer
	closed bool
}

// polledPeer is a node that is watched. What it knows is guarded by the Watch's mutex.
type polledPeer struct {
	url         string
	observation Observation
	cancel      context.CancelFunc // nil when there is no address to ask
}

// NewPoller returns a Watch that follows nobody yet.
func NewPoller(c *Client) *Poller {
	return &Poller{client: c, config: defaultPolling, changed: make(chan struct{}, 1), peers: map[string]*polledPeer{}}
}

// SetPeers watches these nodes from now on and no others: their names, and the
// addresses they answer at, "" where none is declared. Of a node that was followed
// at the same address nothing is forgotten. It does not wait for an answer. What is
// followed is followed until ctx ends, or Close is called, also beyond the next Follow.
func (w *Poller) SetPeers(ctx context.Context, nodes map[string]string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	for name, f := range w.peers {
		if url, ok := nodes[name]; !ok || url != f.url {
			f.stop()
			delete(w.peers, name)
			w.notify()
		}
	}
	for name, url := range nodes {
		if w.peers[name] == nil {
			w.peers[name] = w.startPolling(ctx, Address{Node: name, URL: url})
		}
	}
}

func (w *Poller) startPolling(ctx context.Context, at Address) *polledPeer {
	f := &polledPeer{url: at.URL, observation: Observation{URL: at.URL, LastSeen: time.Now()}}
	if at.URL == "" {
		f.observation.Polled, f.observation.Problem = true, errNoAddress.Error()
		w.notify()
		return f
	}
	ctx, f.cancel = context.WithCancel(ctx)
	w.running.Go(func() { w.poll(ctx, f, at) })
	return f
}

func (f *polledPeer) stop() {
	if f.cancel != nil {
		f.cancel()
	}
}

// Observations returns what is known of each node that is followed, by name.
func (w *Poller) Observations() map[string]Observation {
	w.mu.Lock()
	defer w.mu.Unlock()
	answers := make(map[string]Observation, len(w.peers))
	for name, f := range w.peers {
		answers[name] = f.observation
	}
	return answers
}

// Changed is sent to when something else is known of a node than before, but for what
// is volatile and for times. Several changes may come as one.
func (w *Poller) Changed() <-chan struct{} { return w.changed }

// Close ends all questions and waits for that.
func (w *Poller) Close() {
	w.mu.Lock()
	w.closed = true
	for f := range maps.Values(w.peers) {
		f.stop()
	}
	w.mu.Unlock()
	w.running.Wait()
}

// record keeps what the last question to a node brought.
func (w *Poller) record(f *polledPeer, now Observation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := f.observation
	f.observation = now
	if was.etag != now.etag || was.Problem != now.Problem || was.Polled != now.Polled {
		w.notify()
	}
}

func (w *Poller) notify() {
	select {
	case w.changed <- struct{}{}:
	default: // who is poked already looks at this too
	}
}

// pollConfig is how often a node is asked.
type pollConfig struct {
	wait        time.Duration // for a change, in one question
	minInterval time.Duration // from one question to the next
	firstRetry  time.Duration // after the first failure, then twice as long each time
	maxRetry    time.Duration // after many
}

var defaultPolling = pollConfig{wait: 30 * time.Second, minInterval: 100 * time.Millisecond, firstRetry: 300 * time.Millisecond, maxRetry: 5 * time.Second}

// poll asks a node until ctx ends. After a failure it asks without waiting for a
// change, so that a node that is back is known at once.
func (w *Poller) poll(ctx context.Context, f *polledPeer, at Address) {
	known := Observation{URL: at.URL, LastSeen: f.observation.LastSeen}
	retry := w.config.firstRetry
	for {
		wait := w.config.wait
		if !known.Polled || known.Problem != "" {
			wait = 0
		}
		begun := time.Now()
		known = w.query(ctx, known, at, wait)
		if ctx.Err() != nil {
			return
		}
		w.record(f, known)
		pause := w.config.minInterval - time.Since(begun)
		if known.Problem == "" {
			retry = w.config.firstRetry
		} else {
			pause = jitter(retry)
			retry = min(2*retry, w.config.maxRetry)
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

// query asks once and returns what is known then.
func (w *Poller) query(ctx context.Context, known Observation, at Address, wait time.Duration) Observation {
	begun := time.Now()
	s, etag, err := w.client.State(ctx, at, known.etag, wait)
	answered := known.Polled && known.Problem == ""
	known.Polled = true
	switch {
	case errors.Is(err, ErrUnchanged):
	case err != nil:
		if answered { // an open question broke off only now
			known.LastSeen = time.Now()
		}
		known.Problem = err.Error()
		return known
	default:
		known.State, known.etag, known.Received = s, etag, time.Now()
	}
	known.Problem, known.LastSuccess, known.LastSeen = "", begun, time.Now()
	return known
}

// jitter returns 75 to 125 % of d, so that not everybody asks at the same moment.
func jitter(d time.Duration) time.Duration {
	return time.Duration((0.75 + rand.Float64()/2) * float64(d))
}

// sleep waits for d, and reports whether ctx has not ended.
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

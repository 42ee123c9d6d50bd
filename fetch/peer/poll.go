package peer

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"time"
)

// Answer is what a Watch knows of a node. The times are monotonic.
type Answer struct {
	// State is what the node told last, and stands if Problem is "". Nothing of it
	// may be written to.
	State State
	URL   string // where it was asked
	// Asked: a question has ended, well or not.
	Asked bool
	// Problem says why the node does not answer.
	Problem string
	// Last is when the last question with a good answer was begun, so that State is
	// not older; zero when there was none.
	Last time.Time
	// Told is when State came; what is relative in it is so to then.
	Told time.Time
	// Since is when the node last gave a sign of life: its last answer, or the end of
	// the question that it broke off. Before the first, when it was first followed.
	Since time.Time

	etag string
}

// Watch follows what other nodes tell of themselves, with a question to each that
// is under way all the time. Its methods may be called concurrently.
type Watch struct {
	client  *Client
	pace    pace
	changed chan struct{}
	running sync.WaitGroup

	mu     sync.Mutex
	nodes  map[string]*followed
	closed bool
}

// followed is a node that is watched. What it knows is guarded by the Watch's mutex.
type followed struct {
	url    string
	known  Answer
	cancel context.CancelFunc // nil when there is no address to ask
}

// NewWatch returns a Watch that follows nobody yet.
func NewWatch(c *Client) *Watch {
	return &Watch{client: c, pace: usual, changed: make(chan struct{}, 1), nodes: map[string]*followed{}}
}

// Follow watches these nodes from now on and no others: their names, and the
// addresses they answer at, "" where none is declared. Of a node that was followed
// at the same address nothing is forgotten. It does not wait for an answer. What is
// followed is followed until ctx ends, or Close is called, also beyond the next Follow.
func (w *Watch) Follow(ctx context.Context, nodes map[string]string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	for name, f := range w.nodes {
		if url, ok := nodes[name]; !ok || url != f.url {
			f.stop()
			delete(w.nodes, name)
			w.poke()
		}
	}
	for name, url := range nodes {
		if w.nodes[name] == nil {
			w.nodes[name] = w.follow(ctx, Address{Node: name, URL: url})
		}
	}
}

func (w *Watch) follow(ctx context.Context, at Address) *followed {
	f := &followed{url: at.URL, known: Answer{URL: at.URL, Since: time.Now()}}
	if at.URL == "" {
		f.known.Asked, f.known.Problem = true, errNoAddress.Error()
		w.poke()
		return f
	}
	ctx, f.cancel = context.WithCancel(ctx)
	w.running.Go(func() { w.listen(ctx, f, at) })
	return f
}

func (f *followed) stop() {
	if f.cancel != nil {
		f.cancel()
	}
}

// Answers returns what is known of each node that is followed, by name.
func (w *Watch) Answers() map[string]Answer {
	w.mu.Lock()
	defer w.mu.Unlock()
	answers := make(map[string]Answer, len(w.nodes))
	for name, f := range w.nodes {
		answers[name] = f.known
	}
	return answers
}

// Changed is sent to when something else is known of a node than before, but for what
// is volatile and for times. Several changes may come as one.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Close ends all questions and waits for that.
func (w *Watch) Close() {
	w.mu.Lock()
	w.closed = true
	for f := range maps.Values(w.nodes) {
		f.stop()
	}
	w.mu.Unlock()
	w.running.Wait()
}

// learn keeps what the last question to a node brought.
func (w *Watch) learn(f *followed, now Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := f.known
	f.known = now
	if was.etag != now.etag || was.Problem != now.Problem || was.Asked != now.Asked {
		w.poke()
	}
}

func (w *Watch) poke() {
	select {
	case w.changed <- struct{}{}:
	default: // who is poked already looks at this too
	}
}

// pace is how often a node is asked.
type pace struct {
	wait  time.Duration // for a change, in one question
	least time.Duration // from one question to the next
	retry time.Duration // after the first failure, then twice as long each time
	most  time.Duration // after many
}

var usual = pace{wait: 30 * time.Second, least: 100 * time.Millisecond, retry: 300 * time.Millisecond, most: 5 * time.Second}

// listen asks a node until ctx ends. After a failure it asks without waiting for a
// change, so that a node that is back is known at once.
func (w *Watch) listen(ctx context.Context, f *followed, at Address) {
	known := Answer{URL: at.URL, Since: f.known.Since}
	retry := w.pace.retry
	for {
		wait := w.pace.wait
		if !known.Asked || known.Problem != "" {
			wait = 0
		}
		begun := time.Now()
		known = w.question(ctx, known, at, wait)
		if ctx.Err() != nil {
			return
		}
		w.learn(f, known)
		pause := w.pace.least - time.Since(begun)
		if known.Problem == "" {
			retry = w.pace.retry
		} else {
			pause = jitter(retry)
			retry = min(2*retry, w.pace.most)
		}
		if !rest(ctx, pause) {
			return
		}
	}
}

// question asks once and returns what is known then.
func (w *Watch) question(ctx context.Context, known Answer, at Address, wait time.Duration) Answer {
	begun := time.Now()
	s, etag, err := w.client.State(ctx, at, known.etag, wait)
	answered := known.Asked && known.Problem == ""
	known.Asked = true
	switch {
	case errors.Is(err, ErrUnchanged):
	case err != nil:
		if answered { // an open question broke off only now
			known.Since = time.Now()
		}
		known.Problem = err.Error()
		return known
	default:
		known.State, known.etag, known.Told = s, etag, time.Now()
	}
	known.Problem, known.Last, known.Since = "", begun, time.Now()
	return known
}

// jitter returns 75 to 125 % of d, so that not everybody asks at the same moment.
func jitter(d time.Duration) time.Duration {
	return time.Duration((0.75 + rand.Float64()/2) * float64(d))
}

// rest waits for d, and reports whether ctx has not ended.
func rest(ctx context.Context, d time.Duration) bool {
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

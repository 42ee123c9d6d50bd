package peer

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	// maxLanes is how many sources are asked at once.
	maxLanes = 8
	// hopeless is how long a transfer goes on without a source.
	hopeless = 30 * time.Second
	// fewBreaks is how often in a row the connection to a source may break before that
	// counts as having none.
	fewBreaks = 3
	// longestQueue is how long peers are believed that they are busy with others, when
	// nothing comes of any.
	longestQueue = time.Hour
)

// originName is what the roster calls the origin: no node can be called so.
const originName = "the origin"

// ending is the end of a lane.
type ending struct {
	lane *lane
	err  error
}

// supervise keeps as many lanes at work as there are sources for, until ctx ends. It
// fails when there is no use in going on.
func (x *exchange) supervise(ctx context.Context) error {
	var work sync.WaitGroup
	defer work.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		x.engage(ctx, &work)
		x.consider(ctx, &work)
		if len(x.lanes) == 0 && !x.complete && x.lost() {
			return x.roster.failure()
		}
		select {
		case <-ctx.Done():
			return nil
		case e := <-x.ended:
			if err := x.settle(e); err != nil {
				return err
			}
		case <-time.After(x.roster.pause()):
		}
	}
}

// lost reports whether nothing was of use for too long, and nobody asked to come back.
func (x *exchange) lost() bool { return min(x.sound.since(), x.busy.since()) >= hopeless }

// engage starts a lane for each source that may be asked and is not, one for a node.
func (x *exchange) engage(ctx context.Context, work *sync.WaitGroup) {
	if x.complete {
		return
	}
	sources := x.shuffled()
	started := false
	for _, s := range sources {
		if x.roster.of(s.name()).usable() {
			started = x.start(ctx, work, s) || started
		}
	}
	if started || len(x.lanes) > 0 {
		return
	}
	for _, s := range sources { // better a poor one than none
		if x.roster.of(s.name()).poor {
			x.start(ctx, work, s)
		}
	}
}

// shuffled returns the sources in an order of chance, so that receivers spread.
func (x *exchange) shuffled() []Source {
	sources := slices.Clone(x.Sources())
	rand.Shuffle(len(sources), func(i, j int) { sources[i], sources[j] = sources[j], sources[i] })
	return sources
}

// start starts a lane for s, unless the node of s is asked already or sends chunks
// of something else.
func (x *exchange) start(ctx context.Context, work *sync.WaitGroup, s Source) bool {
	if len(x.lanes) >= maxLanes || !s.Chunks.IsZero() && s.Chunks != x.root {
		return false
	}
	for _, l := range x.lanes {
		if l.node == s.Node {
			return false
		}
	}
	x.launch(ctx, work, x.lane(s))
	return true
}

func (x *exchange) launch(ctx context.Context, work *sync.WaitGroup, l *lane) {
	x.lanes[l.name()] = l
	work.Go(func() { x.ended <- ending{l, l.work(ctx)} })
}

// settle notes how a lane ended. An error of its own is one of this side.
func (x *exchange) settle(e ending) error {
	delete(x.lanes, e.lane.name())
	switch {
	case e.err == nil:
		x.complete = true
		return nil
	case errors.Is(e.err, errLeft):
		return nil
	}
	if ours, ok := errors.AsType[*manifestError](e.err); ok {
		return ours.err
	}
	if x.Final != nil && x.Final(e.err) {
		return e.err
	}
	s := x.roster.of(e.lane.name())
	s.failed(e.err, e.lane.brought, cmp.Or(x.Aside, longestAside))
	if broken(e.err) && s.tries <= fewBreaks {
		x.sound.touch() // the chunk that it broke in may have taken longer than hopeless
	}
	if s.busy && x.peers.since() < longestQueue { // the sends that it is busy with may hang
		x.busy.touch()
	}
	if wrong(e.err) && x.Warn != nil {
		x.Warn(e.err)
	}
	return nil
}

package simulation

import (
	"container/heap"
	"iter"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// event is a function that is called at a moment of true time.
type event struct {
	at  time.Duration
	tie uint64 // random, so that events of one moment happen in any order
	do  func()
}

// queue is a heap of the future events, for container/heap.
type queue []event

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].tie < q[j].tie
}

func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

func (q *queue) Push(x any) { *q = append(*q, x.(event)) }

func (q *queue) Pop() any {
	last := len(*q) - 1
	next := (*q)[last]
	(*q)[last] = event{}
	*q = (*q)[:last]
	return next
}

// after calls do when wait has passed.
func (c *cluster) after(wait time.Duration, do func()) {
	heap.Push(&c.queue, event{c.now + wait, c.Uint64(), do})
}

// runUntil runs all events until the time end, or until a rule is broken.
func (c *cluster) runUntil(end time.Duration) {
	for len(c.queue) > 0 && c.queue[0].at <= end && len(c.violations) == 0 {
		next := heap.Pop(&c.queue).(event)
		c.now = next.at
		next.do()
		for _, r := range c.deletions {
			r.sample()
		}
	}
	if len(c.violations) == 0 {
		c.now = end
	}
}

// moment returns the duration of a step: usually a few milliseconds, and sometimes so long that many
// other events happen before it ends.
func (c *cluster) moment() time.Duration {
	switch n := c.IntN(40); {
	case n == 0 && !c.healed:
		return time.Duration(c.IntN(40)) * time.Second
	case n < 7:
		return time.Duration(c.IntN(3000)) * time.Millisecond
	}
	return time.Duration(1+c.IntN(50)) * time.Millisecond
}

// between returns a random duration from least to most.
func (c *cluster) between(least, most time.Duration) time.Duration {
	return least + time.Duration(c.Int64N(int64(most-least)+1))
}

// fiber runs product code that takes simulated time: the code runs until it calls something of
// the simulated system that pauses, and continues when that time has passed. Only one fiber
// runs at a time, so that a seed replays exactly.
type fiber struct {
	node   *node
	starts int // of the node when the fiber began; it ends with that process
	next   func() (time.Duration, bool)
	stop   func()
	yield  func(time.Duration) bool
	// listed is called when the fiber lists the copies on a disk; nil in rounds.
	listed func(ident.DiskRef)
}

// killed is the panic that ends the code of a fiber whose node crashed.
type killed struct{}

// spawn runs do as a fiber of a node.
func (c *cluster) spawn(f *fiber, do func()) {
	f.starts = f.node.starts
	f.next, f.stop = iter.Pull(func(yield func(time.Duration) bool) {
		defer func() {
			if r := recover(); r != nil && r != (killed{}) {
				panic(r)
			}
		}()
		f.yield = yield
		do()
	})
	c.fibers[f] = true
	c.resume(f)
}

// resume continues a fiber until it pauses or ends.
func (c *cluster) resume(f *fiber) {
	if !f.node.up || f.node.starts != f.starts {
		c.kill(f)
		return
	}
	before := c.running
	c.running = f
	wait, paused := f.next()
	c.running = before
	if !paused {
		delete(c.fibers, f)
		return
	}
	c.after(wait, func() { c.resume(f) })
}

// kill ends a fiber where it has paused.
func (c *cluster) kill(f *fiber) {
	f.stop()
	delete(c.fibers, f)
}

// pause suspends the running fiber for a time. It does nothing outside of fibers.
func (c *cluster) pause(wait time.Duration) {
	if f := c.running; f != nil && !f.yield(wait) {
		panic(killed{})
	}
}

// close ends all fibers.
func (c *cluster) close() {
	for f := range c.fibers {
		c.kill(f)
	}
}

package reconcile

import (
	"container/heap"
	"time"
)

// happening is something that comes about at a moment of true time.
type happening struct {
	at  time.Duration
	tie uint64 // by the dice, so that what comes at one moment comes in any order
	do  func()
}

// queue holds what is still to come.
type queue []happening

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].tie < q[j].tie
}

func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

func (q *queue) Push(x any) { *q = append(*q, x.(happening)) }

func (q *queue) Pop() any {
	last := len(*q) - 1
	h := (*q)[last]
	(*q)[last] = happening{}
	*q = (*q)[:last]
	return h
}

// after lets do come about when wait has passed.
func (c *cluster) after(wait time.Duration, do func()) {
	heap.Push(&c.queue, happening{c.now + wait, c.Uint64(), do})
}

// until lets everything happen that comes before the time end, or until a rule was
// broken.
func (c *cluster) until(end time.Duration) {
	for len(c.queue) > 0 && c.queue[0].at <= end && len(c.found) == 0 {
		h := heap.Pop(&c.queue).(happening)
		c.now = h.at
		h.do()
		for _, r := range c.removals {
			r.sample()
		}
	}
	if len(c.found) == 0 {
		c.now = end
	}
}

// moment is how long a step takes that is not worth a word: mostly next to nothing,
// at times so long that much happens meanwhile.
func (c *cluster) moment() time.Duration {
	switch n := c.IntN(40); {
	case n == 0 && !c.calm:
		return time.Duration(c.IntN(40)) * time.Second
	case n < 7:
		return time.Duration(c.IntN(3000)) * time.Millisecond
	}
	return time.Duration(1+c.IntN(50)) * time.Millisecond
}

func (c *cluster) between(least, most time.Duration) time.Duration {
	return least + time.Duration(c.Int64N(int64(most-least)+1))
}

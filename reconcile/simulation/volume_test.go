package simulation

import (
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// attachSome lets a volume begin to use a copy, and end some time.
func (c *cluster) attachSome() {
	if key, ok := c.some(ready); ok {
		c.attach(key)
	}
}

func (c *cluster) attach(key plan.CopyRef) {
	s := c.slot(key)
	if c.calm || s == nil {
		return
	}
	if r := c.removing(key); r != nil {
		c.pairs[pairAttach]++
		c.tell("", "a volume wants to use %s, which is %s", key, r.phase)
	}
	if s.aside || s.letter == "" {
		return // it finds no file
	}
	if s.users++; s.users == 1 {
		s.usedFrom = c.now
	}
	c.tell("", "a volume uses %s", key)
	wait := c.between(0, 15*time.Minute)
	if c.one(2) {
		wait = c.between(0, 5*time.Second)
	}
	c.after(wait, func() { c.unlessCalm(func() { s.users = max(0, s.users-1) }) })
}

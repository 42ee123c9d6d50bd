package simulation

import (
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// trouble lets things go wrong, and change, again and again.
func (c *cluster) trouble() {
	c.unlessCalm(func() {
		faults := []func(){
			c.editConfig, c.editConfig, c.editConfig, c.editConfig,
			c.attachSome, c.attachSome, c.attachSome,
			func() { c.fall(c.nodes[pick1(c.dice, c.names...)]) }, func() { c.fall(c.nodes[pick1(c.dice, c.names...)]) },
			func() { c.cut(pick1(c.dice, c.names...), pick1(c.dice, c.names...)) }, c.isolate, c.slowDown, c.lie,
			c.loseDisk, c.loseDisk, c.moveDisk, c.fillDisk, c.unclear, c.failDisk,
			c.rot, c.damage, c.touch, c.leave,
			c.breakSome, c.breakSome, c.setClock,
			c.originDown, c.originChanges, c.cleanByHand,
			c.replicasMove, c.uploadSome, c.uploadSome, c.uploadSome,
			c.cloneSome, c.troubleClones, c.troubleClones,
		}
		pick1(c.dice, faults...)()
		wait := c.between(0, 40*time.Second)
		if c.one(6) {
			wait = c.between(0, 6*time.Minute)
		}
		c.after(wait, c.trouble)
	})
}

func (c *cluster) unlessCalm(do func()) {
	if !c.calm {
		do()
	}
}

// some gives a copy for which which is true, if it finds one soon.
func (c *cluster) some(which func(plan.CopyRef, *slot) bool) (plan.CopyRef, bool) {
	places := c.places()
	for range 8 {
		ref := pick1(c.dice, places...)
		d := c.drives[ref]
		ids := d.ids()
		if !d.there || len(ids) == 0 {
			continue
		}
		if key := (plan.CopyRef{Disk: ref, ID: pick1(c.dice, ids...)}); which(key, d.slots[key.ID]) {
			return key, true
		}
	}
	return plan.CopyRef{}, false
}

func ready(_ plan.CopyRef, s *slot) bool { return s.letter != "" && !s.aside }

// fall lets a node crash and come back.
func (c *cluster) fall(m *node) {
	if c.calm {
		return
	}
	m.crash()
	wait := c.between(0, 20*time.Second)
	if c.one(2) {
		wait = c.between(0, 8*time.Minute)
	}
	c.after(wait, m.start)
}

// cut takes down the way between two nodes, in one direction or both.
func (c *cluster) cut(a, b string) {
	if c.calm || a == b {
		return
	}
	one, two := c.wire(a, b), c.wire(b, a)
	one.down = true
	two.down = two.down || c.one(2)
	c.tell("", "the way from %s to %s is cut (back: %v)", a, b, two.down)
	c.after(c.between(0, 6*time.Minute), func() {
		one.down, two.down = false, false
		c.noteReturn(c.nodes[a])
		c.noteReturn(c.nodes[b])
	})
}

// isolate cuts a node off from all others, or the cluster in two.
func (c *cluster) isolate() {
	side := map[string]bool{pick1(c.dice, c.names...): true}
	for _, name := range c.names {
		side[name] = side[name] || c.one(4)
	}
	wait := c.between(0, 8*time.Minute)
	var cut []*wire
	for _, a := range c.names {
		for _, b := range c.names {
			if side[a] && !side[b] {
				cut = append(cut, c.wire(a, b), c.wire(b, a))
			}
		}
	}
	c.tell("", "%v are cut off from the others", side)
	for _, w := range cut {
		w.down = true
	}
	c.after(wait, func() {
		for _, w := range cut {
			w.down = false
		}
		for _, name := range c.names {
			if side[name] {
				c.noteReturn(c.nodes[name])
			}
		}
	})
}

func (c *cluster) slowDown() {
	w := c.wire(pick1(c.dice, c.names...), pick1(c.dice, c.names...))
	w.slow = c.between(0, 20*time.Second)
	c.after(c.between(0, 10*time.Minute), func() { w.slow = 0 })
}

// lie lets a node send wrong bytes.
func (c *cluster) lie() {
	name := pick1(c.dice, c.names...)
	c.lying[name] = true
	c.after(c.between(0, 10*time.Minute), func() { c.lying[name] = false })
}

// loseDisk takes a disk away. It comes back as it was, or another one comes, empty.
func (c *cluster) loseDisk() {
	ref := pick1(c.dice, c.places()...)
	d := c.drives[ref]
	if !d.there {
		return
	}
	c.loseAll(ref, d)
	d.there = false
	c.tell("", "%s is lost", ref)
	empty := c.one(3)
	c.after(c.between(10*time.Second, 8*time.Minute), func() {
		if d.there {
			return // the faults are over
		}
		if empty {
			c.disks++
			c.drives[ref] = &drive{uuid: newUUID(c.disks), slots: map[disk.ID]*slot{}}
			d = c.drives[ref]
		}
		d.comesBack(c.drives[ref] == d)
		c.tell("", "%s is back%s", ref, ifSo(empty, ", empty"))
	})
}

// comesBack is a disk that is there again: whoever opens it puts back what was renamed.
func (d *drive) comesBack(there bool) {
	d.there = there
	for _, s := range d.slots {
		s.aside = false
	}
}

// moveDisk swaps two disks of two nodes, which takes a person at least a minute.
func (c *cluster) moveDisk() {
	a, b := pick1(c.dice, c.places()...), pick1(c.dice, c.places()...)
	one, two := c.drives[a], c.drives[b]
	if a == b || !one.there || !two.there {
		return
	}
	c.loseAll(a, one)
	c.loseAll(b, two)
	one.there, two.there = false, false
	c.tell("", "%s and %s are on their way to each other's place", a, b)
	c.after(c.between(time.Minute, 5*time.Minute), func() {
		if c.drives[a] == one && c.drives[b] == two && !one.there && !two.there {
			c.drives[a], c.drives[b] = two, one
			one.comesBack(true)
			two.comesBack(true)
			c.tell("", "%s and %s are swapped", a, b)
		}
	})
}

func (c *cluster) fillDisk() {
	d := c.drives[pick1(c.dice, c.places()...)]
	d.filled = pick1(c.dice, int64(6*gib), driveSize)
	c.after(c.between(0, 10*time.Minute), func() { d.filled = 0 })
}

func (c *cluster) unclear() {
	d := c.drives[pick1(c.dice, c.places()...)]
	d.unclear = true
	c.after(c.between(0, 5*time.Minute), func() { d.unclear = false })
}

// rot is what nobody sees before it reads the file, damage what a look sees, and touch
// what only looks like it.
func (c *cluster) rot() {
	if key, ok := c.some(ready); ok {
		c.slot(key).letter = "rotten"
		c.tell("", "%s rots", key)
		if m := c.nodes[key.Disk.Node]; c.one(2) && m.up { // a scrub finds it
			m.later(c.between(0, 5*time.Minute), func() {
				if s := c.slot(key); s.sound() && s.letter != s.digest {
					c.lose(key, s)
					_ = m.verify(s)
					m.kick()
				}
			})
		}
	}
}

func (c *cluster) damage() {
	if key, ok := c.some(ready); ok {
		c.lose(key, c.slot(key))
		c.slot(key).touched, c.slot(key).letter = true, "damaged"
		c.tell("", "%s is damaged", key)
	}
}

func (c *cluster) touch() {
	if key, ok := c.some(ready); ok {
		c.lose(key, c.slot(key))
		c.slot(key).touched = true
	}
}

// leave is what Longhorn left: a file of a declared generation that is not ours.
func (c *cluster) leave() {
	config := c.head().config
	name, ok := c.declaredName(&config)
	ref := pick1(c.dice, c.places()...)
	if d := c.drives[ref]; ok && d.there && d.slots[config.Images[name].ID] == nil && d.free() > gib {
		image := config.Images[name]
		letter := c.content(config, image)
		if !image.Checksum.IsZero() {
			letter = c.letterOf(image.Checksum)
		}
		if letter == "" {
			return
		}
		s := d.slot(image.ID)
		s.letter, s.born = letter, c.now
		c.tell("", "somebody leaves a file as %s on %s", image.ID, ref)
	}
}

// breakSome breaks the configuration of a node, or of many.
func (c *cluster) breakSome() {
	all := c.one(3)
	for _, name := range c.names {
		if m := c.nodes[name]; all && !c.one(4) || !all && c.one(len(c.names)) {
			c.after(c.between(0, 10*time.Second), func() { c.unlessCalm(m.breakDir) })
			c.after(c.between(10*time.Second, 8*time.Minute), m.mendDir)
		}
	}
}

// setClock sets the wall clock of a node while its manager runs.
func (c *cluster) setClock() {
	if m := c.nodes[pick1(c.dice, c.names...)]; m.up {
		m.wall += pick1(c.dice, -48*time.Hour, -10*time.Minute, 10*time.Minute, time.Hour, 24*time.Hour, 1000*time.Hour)
		c.tell(m.name, "the clock is set, and is off by %s", m.wall)
	}
}

func (c *cluster) originDown() {
	c.offline = true
	c.after(c.between(0, 6*time.Minute), func() { c.offline = false })
}

func (c *cluster) originChanges() {
	config := c.head().config
	if name, ok := c.declaredName(&config); ok && config.Images[name].Source.Clone == nil {
		c.serves[origin(config.Images[name])] = pick1(c.dice, plantest.Letters...)
	}
}

// cleanByHand asks a node to remove a surplus copy now.
func (c *cluster) cleanByHand() {
	key, ok := c.some(ready)
	if m := c.nodes[key.Disk.Node]; ok && m.up {
		m.cleanUp(key)
	}
}

// cleanUp asks the node to delete a copy before its interval is over.
func (m *node) cleanUp(key plan.CopyRef) {
	m.loop.RequestCleanup(key.ID.Name, key.ID.UUID, key.Disk, func(_ plan.Action, err error) {
		if err == nil {
			m.byHand[key] = true
		}
	})
	m.kick()
}

// failDisk lets a disk write nothing for a while, or no data.
func (c *cluster) failDisk() {
	d := c.drives[pick1(c.dice, c.places()...)]
	if c.one(2) {
		d.readOnly = true
	} else {
		d.dying = true
	}
	c.after(c.between(0, 8*time.Minute), func() { d.readOnly, d.dying = false, false })
}

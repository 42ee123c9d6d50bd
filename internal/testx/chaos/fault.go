package chaos

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

// errSkipped: an event has no effect, because no node, disk or copy is suitable now.
var errSkipped = errors.New("no node, disk or copy is suitable for the event")

// effect is the effect of an event.
type effect struct {
	text string       // for the report
	heal func() error // ends the fault; nil: the fault has no end
}

// happenings has the function that executes each kind of event. The caller has the lock of the cluster.
var happenings = map[Kind]func(*cluster, Event) (effect, error){
	Kill: kill, Halt: halt, Pause: pause,
	Silence: silence, OneWay: oneWay, Refuse: refuse, Isolate: isolate, Offline: offline,
	Full: fill, Vanish: vanish, ReadOnly: readOnly, Lose: lose,
	Rot: rot, Overwrite: rot, Garble: garble,
	Stale: damageConfig, Broken: damageConfig, Emptied: damageConfig,
	Upstream: misbehave, Volume: useByVolume, Open: useByProcess,
	Generation: newGeneration, Undeclare: undeclare, Copies: changeCopies,
	Evict: changeDisk, NoSchedule: changeDisk, Suspend: suspend,
	CleanUp: cleanUp, Retry: retry, Verify: verify,
	Upload: upload, Interrupted: upload, Download: download,
}

// occupy reserves things, such as disks, for an event, so that no other event changes them at the same
// time. It returns false, and reserves nothing, if one of them is already reserved.
func (c *cluster) occupy(things ...string) bool {
	for _, thing := range things {
		if c.busy[thing] {
			return false
		}
	}
	for _, thing := range things {
		c.busy[thing] = true
	}
	return true
}

func (c *cluster) release(things ...string) {
	for _, thing := range things {
		delete(c.busy, thing)
	}
}

// occupyOne reserves one of the candidates that are not reserved. n selects it.
func occupyOne[T any](c *cluster, n uint64, candidates []T, thing func(T) string) (T, bool) {
	free := slices.DeleteFunc(slices.Clone(candidates), func(t T) bool { return c.busy[thing(t)] })
	if len(free) == 0 {
		var none T
		return none, false
	}
	chosen := pick(n, free)
	return chosen, c.occupy(thing(chosen))
}

func processOf(n *node) string { return "process " + n.name }
func configOf(n *node) string  { return "config " + n.name }
func diskOf(d *disk) string    { return "disk " + d.ref() }

// mortal returns the nodes that may be killed.
func (c *cluster) mortal() []*node {
	return slices.DeleteFunc(slices.Clone(c.nodes), func(n *node) bool { return n == c.steady || !n.running() })
}

func kill(c *cluster, e Event) (effect, error) {
	n, ok := occupyOne(c, e.Pick[0], c.mortal(), processOf)
	if !ok {
		return effect{}, errSkipped
	}
	return effect{n.name, func() error { return c.restart(n) }}, n.kill()
}

func halt(c *cluster, e Event) (effect, error) {
	// A process that has just started does not handle signals yet.
	started := slices.DeleteFunc(c.mortal(), func(n *node) bool { return n.upFor() < 10*time.Second })
	n, ok := occupyOne(c, e.Pick[0], started, processOf)
	if !ok {
		return effect{}, errSkipped
	}
	if err := n.halt(); err != nil {
		c.violation("halt "+err.Error(), "%v", err)
	}
	return effect{n.name, func() error { return c.restart(n) }}, nil
}

func (c *cluster) restart(n *node) error {
	c.release(processOf(n))
	if n.daemon != nil {
		return nil
	}
	return n.start()
}

func pause(c *cluster, e Event) (effect, error) {
	running := slices.DeleteFunc(slices.Clone(c.nodes), func(n *node) bool { return !n.running() })
	n, ok := occupyOne(c, e.Pick[0], running, processOf)
	if !ok {
		return effect{}, errSkipped
	}
	heal := func() error {
		c.release(processOf(n))
		return n.resume()
	}
	return effect{n.name, heal}, n.pause()
}

// pair selects two nodes and reserves the network between them.
func (c *cluster) pair(e Event) (a, b int, thing string, ok bool) {
	a = int(e.Pick[0] % uint64(len(c.nodes)))
	b = (a + 1 + int(e.Pick[1]%uint64(len(c.nodes)-1))) % len(c.nodes)
	thing = fmt.Sprintf("link %d-%d", min(a, b), max(a, b))
	return a, b, thing, c.occupy(thing)
}

// cut changes the network between two nodes, in one or both directions.
func cut(c *cluster, e Event, both bool, do, undo func(node int, address string) error) (effect, error) {
	a, b, thing, ok := c.pair(e)
	if !ok {
		return effect{}, errSkipped
	}
	text := fmt.Sprintf("%s to %s", c.nodes[a].name, c.nodes[b].name)
	err := do(a, nodeAddress(b))
	if both && err == nil {
		text = fmt.Sprintf("%s and %s", c.nodes[a].name, c.nodes[b].name)
		err = do(b, nodeAddress(a))
	}
	return effect{text, func() error {
		c.release(thing)
		err := undo(a, nodeAddress(b))
		if both {
			err = errors.Join(err, undo(b, nodeAddress(a)))
		}
		return err
	}}, err
}

func silence(c *cluster, e Event) (effect, error) {
	return cut(c, e, true, c.network.drop, c.network.undrop)
}

func oneWay(c *cluster, e Event) (effect, error) {
	return cut(c, e, false, c.network.drop, c.network.undrop)
}

func refuse(c *cluster, e Event) (effect, error) {
	return cut(c, e, true, c.network.refuse, c.network.unrefuse)
}

func isolate(c *cluster, e Event) (effect, error) {
	a := int(e.Pick[0] % uint64(len(c.nodes)))
	var links []string
	for b := range c.nodes {
		if b != a {
			links = append(links, fmt.Sprintf("link %d-%d", min(a, b), max(a, b)))
		}
	}
	if !c.occupy(links...) {
		return effect{}, errSkipped
	}
	each := func(do func(node int, address string) error) (err error) {
		for b := range c.nodes {
			if b != a {
				err = errors.Join(err, do(a, nodeAddress(b)), do(b, nodeAddress(a)))
			}
		}
		return err
	}
	return effect{c.nodes[a].name, func() error {
		c.release(links...)
		return each(c.network.undrop)
	}}, each(c.network.drop)
}

func offline(c *cluster, e Event) (effect, error) {
	n, ok := occupyOne(c, e.Pick[0], c.nodes, func(n *node) string { return "upstream of " + n.name })
	if !ok {
		return effect{}, errSkipped
	}
	return effect{n.name, func() error {
		c.release("upstream of " + n.name)
		return c.network.undrop(n.index, upstreamAddress)
	}}, c.network.drop(n.index, upstreamAddress)
}

func fill(c *cluster, e Event) (effect, error) {
	d, ok := occupyOne(c, e.Pick[0], c.disks(), diskOf)
	if !ok {
		return effect{}, errSkipped
	}
	leave := int64(e.Pick[1] % (256 * kib))
	err := d.fill(leave)
	if errors.Is(err, unix.ENOSPC) {
		err = nil // the daemon filled the disk first
	}
	return effect{fmt.Sprintf("%s (%d KiB left)", d.ref(), leave/kib), func() error {
		c.release(diskOf(d))
		return d.unfill()
	}}, err
}

func vanish(c *cluster, e Event) (effect, error) {
	d, ok := occupyOne(c, e.Pick[0], c.disks(), diskOf)
	if !ok {
		return effect{}, errSkipped
	}
	return effect{d.ref(), func() error {
		c.release(diskOf(d))
		c.observer.noteBack(d)
		return d.attach()
	}}, d.detach()
}

func readOnly(c *cluster, e Event) (effect, error) {
	d, ok := occupyOne(c, e.Pick[0], c.disks(), diskOf)
	if !ok {
		return effect{}, errSkipped
	}
	if err := d.setReadOnly(true); err != nil {
		c.release(diskOf(d))
		if errors.Is(err, syscall.EBUSY) { // the daemon writes to a file
			err = errSkipped
		}
		return effect{}, err
	}
	return effect{d.ref(), func() error {
		c.release(diskOf(d))
		return d.setReadOnly(false)
	}}, nil
}

// lose replaces a disk by an empty one. It does not select a disk with a copy that must not be lost.
func lose(c *cluster, e Event) (effect, error) {
	candidates := slices.DeleteFunc(c.disks(), func(d *disk) bool {
		return slices.ContainsFunc(c.observer.copiesOn(d), func(k *copyOnDisk) bool { return !c.observer.mayLose(k) })
	})
	d, ok := occupyOne(c, e.Pick[0], candidates, diskOf)
	if !ok {
		return effect{}, errSkipped
	}
	defer c.release(diskOf(d))
	c.observer.forget(d)
	for name, u := range c.uses {
		if u.copy.disk == d {
			c.endUse(name)
		}
	}
	return effect{text: d.ref()}, errors.Join(d.remove(), d.insert(c.Binary))
}

// rot flips a bit of a copy. It pauses the daemon meanwhile, so that the daemon cannot write the record
// between the two changes of the disk.
func rot(c *cluster, e Event) (effect, error) {
	k, ok := c.expendable(e.Pick[0])
	if !ok {
		return effect{}, errSkipped
	}
	defer c.release(diskOf(k.disk))
	resume := c.stopBriefly(k.disk.node)
	defer resume()
	err := k.disk.flip(k.folder, e.Pick[1], e.Kind == Rot)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EAGAIN) {
		return effect{}, errSkipped // the daemon is deleting the copy
	}
	c.observer.noteRot(k)
	return effect{text: fmt.Sprintf("%s, byte %d", k, e.Pick[1]%uint64(max(1, k.size)))}, err
}

func garble(c *cluster, e Event) (effect, error) {
	k, ok := c.expendable(e.Pick[0])
	if !ok {
		return effect{}, errSkipped
	}
	defer c.release(diskOf(k.disk))
	resume := c.stopBriefly(k.disk.node)
	defer resume()
	name, err := k.disk.garble(k.folder, e.Pick[1])
	if errors.Is(err, os.ErrNotExist) {
		return effect{}, errSkipped
	}
	k.garbled, c.observer.hurt[k.generation] = true, time.Now()
	if name == "backing.record" {
		c.observer.torn[k.copyKey] = true
	}
	return effect{text: fmt.Sprintf("%s of %s", name, k)}, err
}

// expendable selects a copy that may be lost, and reserves its disk.
func (c *cluster) expendable(n uint64) (*copyOnDisk, bool) {
	var candidates []*copyOnDisk
	for _, d := range c.disks() {
		if !c.busy[diskOf(d)] {
			candidates = append(candidates, slices.DeleteFunc(c.observer.copiesOn(d), func(k *copyOnDisk) bool {
				return !k.sound() || !c.observer.mayLose(k)
			})...)
		}
	}
	if len(candidates) == 0 {
		return nil, false
	}
	slices.SortFunc(candidates, func(a, b *copyOnDisk) int { return cmp.Compare(a.String(), b.String()) })
	k := pick(n, candidates)
	return k, c.occupy(diskOf(k.disk))
}

// stopBriefly pauses the daemon of a node, if it runs, until the caller calls resume.
func (c *cluster) stopBriefly(n *node) (resume func()) {
	if !n.running() {
		return func() {}
	}
	process := n.daemon.cmd.Process
	_ = process.Signal(syscall.SIGSTOP) // on an error the daemon has just exited
	return func() { _ = process.Signal(syscall.SIGCONT) }
}

func damageConfig(c *cluster, e Event) (effect, error) {
	n, ok := occupyOne(c, e.Pick[0], c.nodes, configOf)
	if !ok {
		return effect{}, errSkipped
	}
	var err error
	switch e.Kind {
	case Broken:
		n.damaged = true
		text := c.truth.text(c.nodes, c.upstreamURL(), c.intervals())
		err = n.config.write(text[:e.Pick[1]%uint64(len(text))])
	case Emptied:
		n.damaged = true
		err = n.config.write(nil)
	}
	return effect{n.name, func() error {
		c.release(configOf(n))
		err := c.apply(n, c.truth.text(c.nodes, c.upstreamURL(), c.intervals()))
		c.observer.noteDeclared()
		return err
	}}, err
}

// upstreamFaults returns a fault of the upstream that a download can detect. The fault can be wrong bytes
// only if the image has a declared checksum.
func upstreamFaults(n uint64, g *generation) fetchtest.Fault {
	kinds := []fetchtest.Kind{
		fetchtest.Cut, fetchtest.Reset, fetchtest.Stall, fetchtest.Drip, fetchtest.Silent, fetchtest.Unavailable, fetchtest.Flaky,
		fetchtest.Busy, fetchtest.NotFound, fetchtest.NoRange, fetchtest.Loop,
	}
	if g.image.checksum {
		kinds = append(kinds, fetchtest.Flip, fetchtest.Flip, fetchtest.Long, fetchtest.Short, fetchtest.BadRange, fetchtest.Changing,
			fetchtest.Page, fetchtest.Empty, fetchtest.NoValidator, fetchtest.NoLength)
	}
	return fetchtest.Fault{Kind: pick(n, kinds), At: int64(n>>8) % g.size, After: "1"}
}

// misbehave causes a fault of the upstream of an image. In most cases the image also gets a new
// generation, because otherwise no node would send a request to the upstream.
func misbehave(c *cluster, e Event) (effect, error) {
	images := slices.DeleteFunc(slices.Clone(c.images), func(m *image) bool { return m.upload })
	m, ok := occupyOne(c, e.Pick[0], images, func(m *image) string { return "upstream of " + m.name })
	if !ok {
		return effect{}, errSkipped
	}
	text := ""
	if _, declared := c.truth.images[m.name]; declared && e.Pick[2]%4 != 0 {
		if err := c.declareNext(m); err != nil {
			return effect{}, err
		}
		text = " of its new generation"
	}
	g := m.now
	fault := upstreamFaults(e.Pick[1], g)
	return effect{fmt.Sprintf("%s: %s at %d%s", g, fault.Kind, fault.At, text), func() error {
		c.release("upstream of " + m.name)
		return c.serveGeneration(g)
	}}, c.serveGeneration(g, fault)
}

// use is a use of a copy.
type use struct {
	copy  *copyOnDisk
	since time.Time
	end   func() error
}

// usable selects a copy that a volume or a process can begin to use. The daemon of the copy must run, so
// that it observes the use before it decides about a deletion.
func (c *cluster) usable(n uint64) (*copyOnDisk, bool) {
	var candidates []*copyOnDisk
	for _, d := range c.disks() {
		if !c.busy[diskOf(d)] && d.node.running() {
			candidates = append(candidates, c.observer.copiesOn(d)...)
		}
	}
	if len(candidates) == 0 {
		return nil, false
	}
	slices.SortFunc(candidates, func(a, b *copyOnDisk) int { return cmp.Compare(a.String(), b.String()) })
	return pick(n, candidates), true
}

func useByVolume(c *cluster, e Event) (effect, error) {
	k, ok := c.usable(e.Pick[0])
	if !ok {
		return effect{}, errSkipped
	}
	c.counter++
	volume := fmt.Sprintf("volume-%d-0a1b2c3d", c.counter)
	folder, err := k.disk.addReplica(volume, k.folder)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EROFS) {
		return effect{}, errSkipped
	}
	if err != nil {
		return effect{}, err
	}
	return c.beginUse(k, volume, func() error { return os.RemoveAll(folder) }), nil
}

func useByProcess(c *cluster, e Event) (effect, error) {
	k, ok := c.usable(e.Pick[0])
	if !ok {
		return effect{}, errSkipped
	}
	f, err := os.OpenFile(filepath.Join(k.disk.folder(k.folder), "backing"), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return effect{}, errSkipped // the daemon is deleting the copy
	}
	c.counter++
	return c.beginUse(k, fmt.Sprintf("process %d", c.counter), f.Close), nil
}

func (c *cluster) beginUse(k *copyOnDisk, name string, end func() error) effect {
	c.uses[name] = &use{k, time.Now(), end}
	return effect{k.String(), func() error { return c.endUse(name) }}
}

func (c *cluster) endUse(name string) error {
	u := c.uses[name]
	if u == nil {
		return nil // its disk was lost
	}
	if err := u.end(); err != nil {
		return err
	}
	delete(c.uses, name)
	return nil
}

package chaos

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// declareNext declares the next generation of an image.
func (c *cluster) declareNext(m *image) error {
	g, err := c.nextGeneration(m)
	if err != nil {
		return err
	}
	to := c.truth.clone()
	to.images[m.name] = declaration{g, to.images[m.name].copies}
	return c.declare(to)
}

func newGeneration(c *cluster, e Event) (effect, error) {
	d, ok := c.declared(e.Pick[0], func(m *image) bool { return m.checksum || !m.upload })
	if !ok {
		return effect{}, errSkipped
	}
	err := c.declareNext(d.generation.image)
	return effect{text: fmt.Sprintf("%s, %d KiB, in place of %s", d.generation.image.now, d.generation.image.now.size/kib, d.generation)}, err
}

// declared chooses a declared image.
func (c *cluster) declared(n uint64, suitable func(*image) bool) (declaration, bool) {
	all := slices.DeleteFunc(c.truth.sorted(), func(d declaration) bool { return !suitable(d.generation.image) })
	if len(all) == 0 {
		return declaration{}, false
	}
	return pick(n, all), true
}

func anyImage(*image) bool { return true }

func undeclare(c *cluster, e Event) (effect, error) {
	d, ok := c.declared(e.Pick[0], anyImage)
	if !ok {
		return effect{}, errSkipped
	}
	name := d.generation.image.name
	to := c.truth.clone()
	delete(to.images, name)
	return effect{name, func() error {
		to := c.truth.clone()
		to.images[name] = declaration{d.generation.image.now, d.copies}
		return c.declare(to)
	}}, c.declare(to)
}

func changeCopies(c *cluster, e Event) (effect, error) {
	d, ok := c.declared(e.Pick[0], func(m *image) bool { return m.copies != 0 })
	if !ok {
		return effect{}, errSkipped
	}
	name, to := d.generation.image.name, c.truth.clone()
	copies := 1 + int(e.Pick[1]%3)
	to.images[name] = declaration{d.generation, copies}
	return effect{text: fmt.Sprintf("%s: %d in place of %d", name, copies, d.copies)}, c.declare(to)
}

// changeDisk drains or closes a disk. At most one disk is drained at once, so that there are always more
// ranked disks than copies.
func changeDisk(c *cluster, e Event) (effect, error) {
	d := pick(e.Pick[0], c.disks())
	thing := string(e.Kind)
	if !c.occupy(thing) {
		return effect{}, errSkipped
	}
	set := func(to *config, on bool) error {
		if e.Kind == Evict {
			to.evicted[d.ref()] = on
		} else {
			to.closed[d.ref()] = on
		}
		return c.declare(to)
	}
	return effect{d.ref(), func() error {
		c.release(thing)
		return set(c.truth.clone(), false)
	}}, set(c.truth.clone(), true)
}

func suspend(c *cluster, e Event) (effect, error) {
	if !c.occupy("suspension") {
		return effect{}, errSkipped
	}
	set := func(on bool) error {
		to := c.truth.clone()
		to.suspend = on
		return c.declare(to)
	}
	return effect{"everything", func() error {
		c.release("suspension")
		return set(false)
	}}, set(true)
}

const commandTime = 30 * time.Second

// told returns a function that notes the result of a command. A command may fail during faults.
func (c *cluster) told(what string) func(string, error) {
	return func(out string, err error) {
		result := strings.TrimSpace(out)
		if err != nil {
			result = err.Error()
		}
		result, _, _ = strings.Cut(result, "\n")
		c.note("    %s: %s", what, result[:min(len(result), 200)])
	}
}

func cleanUp(c *cluster, e Event) (effect, error) {
	var all []*copyOnDisk
	for _, d := range c.disks() {
		all = append(all, c.observer.copiesOn(d)...)
	}
	if len(all) == 0 {
		return effect{}, errSkipped
	}
	k := pick(e.Pick[0], all)
	c.command(commandTime, k.disk.node, c.told("clean-up of "+k.String()), "backing-image", "cleanup", k.generation.image.name, "--uuid", k.generation.uuid, "--on", k.disk.ref())
	return effect{text: k.String()}, nil
}

func retry(c *cluster, e Event) (effect, error) {
	d, ok := c.declared(e.Pick[0], anyImage)
	if !ok {
		return effect{}, errSkipped
	}
	n, name := pick(e.Pick[1], c.nodes), d.generation.image.name
	c.command(commandTime, n, c.told("retry of "+name+" on "+n.name), "backing-image", "retry", name)
	return effect{text: name + " on " + n.name}, nil
}

func verify(c *cluster, e Event) (effect, error) {
	d, ok := c.declared(e.Pick[0], anyImage)
	if !ok {
		return effect{}, errSkipped
	}
	n, name := pick(e.Pick[1], c.nodes), d.generation.image.name
	c.command(commandTime, n, c.told("verification of "+name+" on "+n.name), "backing-image", "verify", name)
	return effect{text: name + " on " + n.name}, nil
}

// upload uploads an image that only people have, also if it is ready. An interrupted upload continues with
// the next one.
func upload(c *cluster, e Event) (effect, error) {
	d, ok := c.declared(e.Pick[0], func(m *image) bool { return m.upload })
	if !ok {
		return effect{}, errSkipped
	}
	n, timeout := pick(e.Pick[1], c.nodes), commandTime
	if e.Kind == Interrupted {
		timeout = e.For
	}
	c.uploadTo(n, d.generation, timeout, func(err error) {
		if err == nil {
			c.note("    upload of %s to %s: ready", d.generation, n.name)
		}
	})
	return effect{text: fmt.Sprintf("%s to %s", d.generation, n.name)}, nil
}

func (c *cluster) uploadTo(n *node, g *generation, timeout time.Duration, then func(error)) {
	c.command(timeout, n, func(_ string, err error) { then(err) }, "backing-image", "upload", g.image.name, g.file)
}

// download downloads an image as a person does, and compares the bytes.
func download(c *cluster, e Event) (effect, error) {
	d, ok := c.declared(e.Pick[0], anyImage)
	if !ok {
		return effect{}, errSkipped
	}
	n, m := pick(e.Pick[1], c.nodes), d.generation.image
	c.counter++
	file := filepath.Join(c.memory(), fmt.Sprintf("download-%d", c.counter))
	c.command(commandTime, n, func(_ string, err error) {
		defer os.Remove(file)
		defer os.Remove(file + ".image-part")
		if err != nil {
			return // faults may be the reason
		}
		c.checkDownload(n, m, file)
	}, "backing-image", "download", m.name, file)
	return effect{text: m.name + " from " + n.name}, nil
}

func (c *cluster) checkDownload(n *node, m *image, file string) {
	b, err := os.ReadFile(file)
	if err != nil {
		c.violation("download "+file, "the download of %s from %s succeeded, but: %v", m.name, n.name, err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := sha256.Sum256(b)
	for _, g := range m.generations {
		if g.digest == sum {
			c.note("    download of %s from %s: %d KiB, true", g, n.name, len(b)/kib)
			return
		}
	}
	c.violation("download "+file, "the download of %s from %s succeeded with %d bytes that are no generation of it", m.name, n.name, len(b))
}

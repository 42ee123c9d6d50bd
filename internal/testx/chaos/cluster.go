package chaos

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

// Scale is the size of a run.
type Scale struct {
	Seed    uint64
	Cycle   time.Duration // of faults, until all are healed and the nodes have to converge
	Cycles  int
	Apart   time.Duration // mean time between two events
	Longest time.Duration // of one fault
	Nodes   int           // 0: the seed decides, from 3 to 5
	Images  int
	Largest int // image, about, in bytes
	Binary  string
	Dir     string // of the run; it must be empty
}

// cluster is everything that the suite runs and knows.
type cluster struct {
	Scale
	*report
	network  *network
	upstream *fetchtest.Server
	client   *client
	nodes    []*node
	images   []*image
	observer *observer
	steady   *node // is never killed, so that its growth shows

	// mu guards the fields below, the nodes, the disks and the observer. Whoever has it also keeps
	// the suite from changing a disk. The program changes disks at any time.
	mu       sync.Mutex
	truth    *config // what people have declared
	busy     map[string]bool
	uses     map[string]*use // by a name
	commands sync.WaitGroup
	counter  int // for names of replicas and files
}

func (c *cluster) intervals() intervals {
	return intervals{cleanup: 2 * time.Second, recovery: 4 * time.Second}
}

func (c *cluster) upstreamURL() string { return "http://" + upstreamAddress + ":8080" }

// memory is a folder in memory, for what needs no keeping: a busy disk would slow down the suite.
func (c *cluster) memory() string { return filepath.Join(c.Dir, "memory") }

func (c *cluster) contents() string { return filepath.Join(c.memory(), "contents") }

// nextGeneration creates the next generation of an image, and serves it.
func (c *cluster) nextGeneration(m *image) (*generation, error) {
	g, err := m.next(c.Seed, c.contents(), c.upstreamURL())
	if err != nil {
		return nil, err
	}
	return g, c.serveGeneration(g)
}

func (c *cluster) serveGeneration(g *generation, faults ...fetchtest.Fault) error {
	if g.image.upload {
		return nil
	}
	b, err := os.ReadFile(g.packed)
	if err == nil {
		c.upstream.Serve(g.path, fetchtest.Bytes(b), faults...)
	}
	return err
}

// declare makes a configuration the truth, and writes it to the config directories that get
// changes.
func (c *cluster) declare(to *config) error {
	c.truth = to
	text := to.text(c.nodes, c.upstreamURL(), c.intervals())
	for _, n := range c.nodes {
		if c.busy["config "+n.name] {
			continue
		}
		if err := c.apply(n, text); err != nil {
			return err
		}
	}
	c.observer.noteDeclared()
	return nil
}

// apply writes the truth, as text, to one config directory.
func (c *cluster) apply(n *node, text []byte) error {
	n.applied, n.damaged = c.truth, false
	return n.config.write(text)
}

// disks returns all disks.
func (c *cluster) disks() []*disk {
	var all []*disk
	for _, n := range c.nodes {
		all = append(all, n.disks...)
	}
	return all
}

// ids returns the generations by the names of their folders.
func (c *cluster) ids() map[string]*generation {
	all := map[string]*generation{}
	for _, m := range c.images {
		for _, g := range m.generations {
			all[g.id()] = g
		}
	}
	return all
}

// command starts a command of a person, and calls then with its result. Its arguments begin after
// the name of the program; the flags for TLS are added.
func (c *cluster) command(timeout time.Duration, n *node, then func(out string, err error), args ...string) {
	tls := filepath.Join(c.Dir, "observer")
	line := append([]string{c.Binary}, args...)
	line = append(line, "--url", n.url(), "--tls-ca", filepath.Join(tls, "ca.crt"), "--tls-cert", filepath.Join(tls, "tls.crt"), "--tls-key", filepath.Join(tls, "tls.key"))
	c.commands.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		then(runIn(ctx, c.network.hub, line...))
	})
}

// sortedImages returns the declared images in the order of their names.
func (c *config) sorted() []declaration {
	var all []declaration
	for _, name := range slices.Sorted(maps.Keys(c.images)) {
		all = append(all, c.images[name])
	}
	return all
}

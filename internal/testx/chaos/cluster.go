package chaos

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/certtest"
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

// newCluster creates network, disks, certificates, images and config directories. No daemon runs yet.
func newCluster(t testing.TB, scale Scale) (*cluster, error) {
	r, err := newReport(t, scale.Dir)
	if err != nil {
		return nil, err
	}
	dice := rand.New(rand.NewPCG(scale.Seed, 1<<33))
	if chosen := 3 + dice.IntN(3); scale.Nodes == 0 {
		scale.Nodes = chosen
	}
	c := &cluster{
		Scale: scale, report: r, network: newNetwork(t, scale.Nodes), upstream: fetchtest.New(),
		images: newImages(scale.Seed, scale.Images, scale.Largest),
		truth:  &config{images: map[string]declaration{}, evicted: map[string]bool{}, closed: map[string]bool{}},
		busy:   map[string]bool{}, uses: map[string]*use{},
	}
	c.observer = newObserver(c)
	for i := range scale.Nodes {
		c.nodes = append(c.nodes, c.newNode(i))
	}
	c.steady = pick(dice.Uint64(), c.nodes)
	for _, setUp := range []func() error{c.mountMemory, c.issueCertificates, c.insertDisks, c.serve, c.declareImages} {
		if err := setUp(); err != nil {
			return c, err
		}
	}
	c.client, err = newClient(c.network, filepath.Join(c.Dir, "observer"))
	return c, err
}

func (c *cluster) newNode(i int) *node {
	n := &node{index: i, name: fmt.Sprint("node", i+1), network: c.network.nodes[i], binary: c.Binary}
	n.dir = filepath.Join(c.Dir, n.name)
	n.config = &configDir{path: filepath.Join(c.memory(), n.name), configMap: i%2 == 1}
	for k := range 2 {
		name := fmt.Sprint("disk", k+1)
		n.disks = append(n.disks, &disk{
			node: n, name: name, path: filepath.Join(n.dir, name), store: filepath.Join(c.memory(), n.name+"-"+name), size: 192 * mib,
		})
	}
	return n
}

func (c *cluster) issueCertificates() error {
	authority, err := certtest.NewAuthority("chaos")
	if err != nil {
		return err
	}
	issue := func(dir, name string, change func(*x509.Certificate)) error {
		cert, err := authority.Issue(name, func(x *x509.Certificate) {
			x.NotAfter = time.Now().Add(7 * 24 * time.Hour)
			change(x)
		})
		return errors.Join(err, os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "tls.crt"), cert.Cert, 0o644),
			os.WriteFile(filepath.Join(dir, "tls.key"), cert.Key, 0o600), os.WriteFile(filepath.Join(dir, "ca.crt"), authority.PEM(), 0o644))
	}
	for i, n := range c.nodes {
		err := issue(filepath.Join(n.dir, "tls"), n.name, func(x *x509.Certificate) {
			x.DNSNames, x.IPAddresses = nil, []net.IP{net.ParseIP(nodeAddress(i))}
		})
		if err != nil {
			return err
		}
	}
	return issue(filepath.Join(c.Dir, "observer"), "observer", certtest.AsAdmin)
}

func (c *cluster) insertDisks() error {
	for _, d := range c.disks() {
		if err := d.insert(c.Binary); err != nil {
			return err
		}
		c.t.Cleanup(func() {
			if err := d.remove(); err != nil {
				c.t.Error(err)
			}
		})
	}
	return nil
}

func (c *cluster) serve() error {
	c.upstream.URL = c.upstreamURL()
	l, err := c.network.listen(upstreamAddress + ":8080")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: c.upstream, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = server.Serve(l) }() // ends with Close
	c.t.Cleanup(func() { _ = server.Close() })
	return nil
}

func (c *cluster) declareImages() error {
	for _, n := range c.nodes {
		if err := os.MkdirAll(n.config.path, 0o755); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(c.contents(), 0o755); err != nil {
		return err
	}
	first := c.truth.clone()
	for _, m := range c.images {
		g, err := c.nextGeneration(m)
		if err != nil {
			return err
		}
		first.images[m.name] = declaration{g, m.copies}
	}
	return c.declare(first)
}

// memory is a folder in memory, for what needs no keeping: a busy disk would slow down the suite.
func (c *cluster) memory() string { return filepath.Join(c.Dir, "memory") }

func (c *cluster) contents() string { return filepath.Join(c.memory(), "contents") }

func (c *cluster) mountMemory() error {
	if err := os.MkdirAll(c.memory(), 0o755); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", c.memory(), "tmpfs", 0, "size=4g"); err != nil {
		return fmt.Errorf("mount %s: %w", c.memory(), err)
	}
	c.t.Cleanup(func() {
		if err := syscall.Unmount(c.memory(), syscall.MNT_DETACH); err != nil {
			c.t.Error(err)
		}
	})
	return nil
}

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

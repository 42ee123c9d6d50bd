package chaos

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/certtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

// setup creates what a cluster consists of. Cleanups of the test remove it.
type setup struct{ *cluster }

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
		c.nodes = append(c.nodes, setup{c}.newNode(i))
	}
	c.steady = pick(dice.Uint64(), c.nodes)
	in := setup{c}
	for _, step := range []func() error{in.mountMemory, in.issueCertificates, in.insertDisks, in.serve, in.declareImages} {
		if err := step(); err != nil {
			return c, err
		}
	}
	c.client, err = newClient(c.network, filepath.Join(c.Dir, "observer"))
	return c, err
}

func (c setup) mountMemory() error {
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

func (c setup) newNode(i int) *node {
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

func (c setup) issueCertificates() error {
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

func (c setup) insertDisks() error {
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

func (c setup) serve() error {
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

func (c setup) declareImages() error {
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

package chaos

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// observed is a cluster without processes and mounts: three nodes with a disk each, and an image with a true
// copy on each disk, which all nodes have declared for a long time.
func observed(t *testing.T) (*cluster, *generation) {
	t.Helper()
	dir := t.TempDir()
	r, err := newReport(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{report: r, busy: map[string]bool{}, uses: map[string]*use{}}
	c.Dir = dir
	m := &image{name: "parrot", checksum: true, format: "raw", size: 64 * kib, copies: 2, generations: map[string]*generation{}}
	g, err := m.next(1, dir, "http://upstream")
	if err != nil {
		t.Fatal(err)
	}
	c.images = []*image{m}
	c.truth = &config{images: map[string]declaration{m.name: {g, m.copies}}}
	for _, name := range []string{"node1", "node2", "node3"} {
		n := &node{name: name, applied: c.truth, resumed: time.Now().Add(-time.Hour)}
		d := &disk{node: n, name: "disk1", store: filepath.Join(dir, name), attached: true}
		n.disks, c.nodes = []*disk{d}, append(c.nodes, n)
		if err := os.MkdirAll(d.folder(g.id()), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := d.writeUnmanaged(); err != nil {
			t.Fatal(err)
		}
		writeCopy(t, d, g)
	}
	c.observer = newObserver(c)
	c.observer.noteDeclared()
	c.observer.named[m.name] = time.Now().Add(-time.Hour)
	c.observer.everywhere[g] = time.Now().Add(-time.Hour)
	c.observer.least[m.name] = leastCopies{copies: m.copies}
	c.observer.look()
	if c.broken() || len(c.observer.copies) != 3 {
		t.Fatalf("before the test: %d copies, violations %v", len(c.observer.copies), c.violations)
	}
	return c, g
}

func writeCopy(t *testing.T, d *disk, g *generation) {
	t.Helper()
	b, err := os.ReadFile(g.file)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeFile(filepath.Join(d.folder(g.id()), "backing"), b); err != nil {
		t.Fatal(err)
	}
}

func TestObserverReports(t *testing.T) {
	remove := func(t *testing.T, d *disk, g *generation) {
		if err := os.RemoveAll(d.folder(g.id())); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name   string
		change func(t *testing.T, c *cluster, g *generation)
		want   string // "": no violation
	}{
		{"nothing", func(*testing.T, *cluster, *generation) {}, ""},
		{"a surplus copy is deleted", func(t *testing.T, c *cluster, g *generation) { remove(t, c.nodes[0].disks[0], g) }, ""},
		{"a copy too many is deleted", func(t *testing.T, c *cluster, g *generation) {
			remove(t, c.nodes[0].disks[0], g)
			remove(t, c.nodes[1].disks[0], g)
		}, "1 copies left of 2"},
		{"all copies are deleted", func(t *testing.T, c *cluster, g *generation) {
			for _, d := range c.disks() {
				remove(t, d, g)
			}
		}, "last true copy"},
		{"a copy is renamed aside", func(t *testing.T, c *cluster, g *generation) {
			d := c.nodes[0].disks[0]
			if err := os.Rename(d.folder(g.id()), d.folder(".removing-"+g.id())); err != nil {
				t.Fatal(err)
			}
		}, ""},
		{"wrong bytes", func(t *testing.T, c *cluster, g *generation) {
			if err := c.nodes[0].disks[0].flip(g.id(), 5, false); err != nil {
				t.Fatal(err)
			}
		}, "has other bytes"},
		{"wrong bytes of the suite", func(t *testing.T, c *cluster, g *generation) {
			k := c.observer.copiesOn(c.nodes[0].disks[0])[0]
			if err := k.disk.flip(g.id(), 5, false); err != nil {
				t.Fatal(err)
			}
			c.observer.noteRot(k)
		}, ""},
		{"a used copy is deleted", func(t *testing.T, c *cluster, g *generation) {
			k := c.observer.copiesOn(c.nodes[0].disks[0])[0]
			c.uses["volume"] = &use{k, time.Now().Add(-time.Minute), func() error { return nil }}
			remove(t, k.disk, g)
		}, "was deleted while volume had used it"},
		{"a used copy is replaced", func(t *testing.T, c *cluster, g *generation) {
			k := c.observer.copiesOn(c.nodes[0].disks[0])[0]
			c.uses["volume"] = &use{k, time.Now().Add(-time.Minute), func() error { return nil }}
			writeCopy(t, k.disk, g)
		}, "was replaced while volume had used it"},
		{"an unmanaged file is deleted", func(t *testing.T, c *cluster, g *generation) {
			if err := os.Remove(filepath.Join(c.nodes[0].disks[0].store, "tmp/image-0-leftover")); err != nil {
				t.Fatal(err)
			}
		}, "does not own"},
		{"a copy of a generation that one node does not declare is deleted", func(t *testing.T, c *cluster, g *generation) {
			c.nodes[0].applied = &config{}
			c.observer.noteDeclared()
			for _, d := range c.disks() {
				remove(t, d, g)
			}
		}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, g := observed(t)
			test.change(t, c, g)
			c.observer.look()
			got := strings.Join(c.violations, "\n")
			if (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
				t.Errorf("violations %q, want %q", got, test.want)
			}
		})
	}
}

package disk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfigCommit(t *testing.T) {
	d := newDisk(t)
	if c, err := d.ConfigCommit(); c != "" || err != nil {
		t.Errorf("of a new disk: %q, %v", c, err)
	}
	for _, want := range []string{strings.Repeat("a", 40), strings.Repeat("1", 64)} {
		if err := d.SetConfigCommit(want); err != nil {
			t.Fatal(err)
		}
		if c, err := d.ConfigCommit(); c != want || err != nil {
			t.Errorf("got %q, %v", c, err)
		}
	}
	if l, err := d.List(); err != nil || len(l.Unmanaged) > 0 || len(l.Copies) > 0 {
		t.Errorf("it is listed: %+v, %v", l, err)
	}
	// Nothing is known then, and that must not look like a new disk.
	path := filepath.Join(d.Path(), commitFile)
	for _, content := range []string{"", "abc", strings.Repeat("A", 40), strings.Repeat("a", 41)} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if c, err := d.ConfigCommit(); err == nil {
			t.Errorf("%q is the commit %q", content, c)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("longhorn-disk.cfg", path); err != nil {
		t.Fatal(err)
	}
	if c, err := d.ConfigCommit(); err == nil {
		t.Errorf("a symlink is the commit %q", c)
	}
	if err := d.SetConfigCommit(strings.Repeat("b", 40)); err != nil {
		t.Error(err)
	}
}

package disk

import (
	"os"
	"path/filepath"
	"testing"
)

func TestNotified(t *testing.T) {
	d := newDisk(t)
	if data, err := d.Notified(); data != nil || err != nil {
		t.Errorf("of a new disk: %q, %v", data, err)
	}
	for _, want := range []string{"{}", `{"episodes":[]}`} {
		if err := d.SetNotified([]byte(want)); err != nil {
			t.Fatal(err)
		}
		if data, err := d.Notified(); string(data) != want || err != nil {
			t.Errorf("got %q, %v", data, err)
		}
	}
	if l, err := d.List(); err != nil || len(l.Unmanaged) > 0 || len(l.Copies) > 0 {
		t.Errorf("it is listed: %+v, %v", l, err)
	}
	path := filepath.Join(d.Path(), notifiedFile)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("longhorn-disk.cfg", path); err != nil {
		t.Fatal(err)
	}
	if data, err := d.Notified(); err == nil {
		t.Errorf("a symlink has the content %q", data)
	}
}

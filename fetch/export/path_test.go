package export

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

// TestMapped writes, while a file is exported, to a page of it that was written to
// before: by itself that does not move the file's time.
func TestMapped(t *testing.T) {
	f, memory := fetchtest.Mapped(t, make([]byte, 8<<20))
	write := func(b byte) { memory[0], memory[len(memory)-1] = b, b }
	d := openDisk(t, t.TempDir())
	s := find(t, d, Request{Path: f, Format: disk.Raw})
	halfway(s, func() { write('b') })
	if c, err := export(t.Context(), d, disk.ID{Name: "parrot", UUID: "00000001"}, s); !errors.Is(err, disk.ErrModified) {
		t.Errorf("the copy is %s (%v), want disk.ErrChanging", c.State, err)
	} else if strings.Count(err.Error(), f) != 1 {
		t.Errorf("the error does not name the path once: %v", err)
	}
}

// TestNotOpened has somebody wait for a reader of a pipe, who must not be one that
// only looks what is there: a watchdog begins to count when it is opened.
func TestNotOpened(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	opened := make(chan error, 1)
	go func() {
		f, err := os.OpenFile(pipe, os.O_WRONLY, 0)
		opened <- errors.Join(err, f.Close())
	}()
	for range 3000 { // until the writer waits, and beyond
		if _, err := Find(&fetch.Client{AllowAnyFile: true}, nil, Request{Path: pipe, Format: disk.Raw}); err == nil {
			t.Fatal("a pipe is taken for a volume")
		}
	}
	select {
	case err := <-opened:
		t.Errorf("the pipe was opened (%v)", err)
	default:
		r, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0) // lets the writer go
		if err := errors.Join(err, <-opened, r.Close()); err != nil {
			t.Error(err)
		}
	}
}

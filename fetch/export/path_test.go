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

// TestFileChangedThroughMappingIsRefused checks that a write through a mapping is detected if the
// page was already dirty. Such a write alone does not change the modification time.
func TestFileChangedThroughMappingIsRefused(t *testing.T) {
	f, memory := fetchtest.Mapped(t, make([]byte, 8<<20))
	write := func(b byte) { memory[0], memory[len(memory)-1] = b, b }
	d := openDisk(t, t.TempDir())
	s := find(t, d, Request{Path: f, Format: disk.Raw})
	doHalfway(s, func() { write('b') })
	if c, err := export(t.Context(), d, disk.ID{Name: "parrot", UUID: "00000001"}, s); !errors.Is(err, disk.ErrModified) {
		t.Errorf("the copy is %s (%v), want disk.ErrModified", c.State, err)
	} else if strings.Count(err.Error(), f) != 1 {
		t.Errorf("the error does not contain the path once: %v", err)
	}
}

// TestFindDoesNotOpenPipes checks that Find does not open a pipe, for which a writer waits. Opening
// some devices has side effects, for example it starts a watchdog.
func TestFindDoesNotOpenPipes(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	opened := make(chan error, 1)
	go func() {
		f, err := os.OpenFile(pipe, os.O_WRONLY, 0)
		opened <- errors.Join(err, f.Close())
	}()
	for range 3000 { // long enough for the writer to block
		if _, err := Find(&fetch.Client{AllowAnyFile: true}, nil, Request{Path: pipe, Format: disk.Raw}); err == nil {
			t.Fatal("Find accepts a pipe as a volume")
		}
	}
	select {
	case err := <-opened:
		t.Errorf("the pipe was opened (%v)", err)
	default:
		r, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0) // unblocks the writer
		if err := errors.Join(err, <-opened, r.Close()); err != nil {
			t.Error(err)
		}
	}
}

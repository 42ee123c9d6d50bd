package export

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// TestFileChangedThroughMappingIsRefused checks that a write through a mapping is detected if the
// page was already dirty. Such a write alone does not change the modification time.
func TestFileChangedThroughMappingIsRefused(t *testing.T) {
	f, memory := fetchtest.Mapped(t, make([]byte, 8<<20))
	write := func(b byte) { memory[0], memory[len(memory)-1] = b, b }
	d := openDisk(t, t.TempDir())
	s := find(t, d, Request{Path: f, Format: model.Raw})
	doHalfway(s, func() { write('b') })
	if c, err := export(t.Context(), d, ident.ID{Name: "parrot", UUID: "00000001"}, s); !errors.Is(err, disk.ErrModified) {
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
		if _, err := Find(&fetch.Client{AllowAnyFile: true}, nil, Request{Path: pipe, Format: model.Raw}); err == nil {
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

// TestDeviceWithAWriteCache exports an idle block device: a flush of its write cache, which is how the export finds out
// whether it was written to, is no write. A write, also one through the page cache, is detected.
func TestDeviceWithAWriteCache(t *testing.T) {
	need.Root(t, "use a loop device")
	image := fetchtest.Random(1, 6<<20)
	for _, cache := range []string{"write back", "write through"} {
		for _, format := range []model.Format{model.Raw, model.QCOW2} {
			t.Run(cache+" "+string(format), func(t *testing.T) {
				content := bytes.Clone(image)
				if format == model.QCOW2 { // a guest may have written it: the bytes of a device are its disk
					copy(content, "QFI\xfb\x00\x00\x00\x03")
				}
				device := loopDevice(t, content)
				if err := os.WriteFile(filepath.Join("/sys/block", filepath.Base(device), "queue/write_cache"), []byte(cache), 0); err != nil {
					t.Fatal(err)
				}
				d := openDisk(t, t.TempDir())
				s := find(t, d, Request{Path: device, Format: format})
				if c, err := export(t.Context(), d, ident.ID{Name: "parrot", UUID: "00000001"}, s); err != nil || c.VirtualSize != int64(len(image)) {
					t.Errorf("got %s, %v", c, err)
				}
				doHalfway(s, func() {
					f, err := os.OpenFile(device, os.O_WRONLY, 0)
					if err == nil {
						_, err = f.WriteAt([]byte("parrot"), 1<<20)
					}
					if err := errors.Join(err, f.Close()); err != nil {
						t.Error(err)
					}
				})
				if c, err := export(t.Context(), d, ident.ID{Name: "parrot", UUID: "00000002"}, s); !errors.Is(err, disk.ErrModified) {
					t.Errorf("the copy is %s (%v), want disk.ErrModified", c.State, err)
				}
			})
		}
	}
}

// loopDevice returns a block device with the bytes, which exists until the end of the test.
func loopDevice(t *testing.T, content []byte) string {
	file := filepath.Join(t.TempDir(), "device")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	backing, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer backing.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skip("needs loop devices: ", err)
	}
	defer control.Close()
	for range 100 { // another process may take the free device
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			t.Skip("needs a free loop device: ", err)
		}
		device := fmt.Sprintf("/dev/loop%d", n)
		loop, err := os.OpenFile(device, os.O_RDWR, 0)
		if err != nil {
			t.Skip("needs a loop device: ", err)
		}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{Fd: uint32(backing.Fd())})
		if err == nil {
			t.Cleanup(func() {
				if _, err := unix.IoctlRetInt(int(loop.Fd()), unix.LOOP_CLR_FD); err != nil {
					t.Error(err)
				}
				loop.Close()
			})
			return device
		}
		loop.Close()
		if !errors.Is(err, unix.EBUSY) {
			t.Skip("needs a loop device: ", err)
		}
	}
	t.Fatal("no loop device is free")
	return ""
}

package disk

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// stopAtOpen stops the process that opens a folder when stop becomes zero by that, calls meanwhile, and lets it go on.
func stopAtOpen(t *testing.T, folder string, stop *atomic.Int64, meanwhile func()) {
	t.Helper()
	events, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY)
	must(t, err)
	must(t, unix.FanotifyMark(events, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM|unix.FAN_ONDIR, unix.AT_FDCWD, folder))
	ended := make(chan struct{})
	f := os.NewFile(uintptr(events), "events")
	t.Cleanup(func() { f.Close(); <-ended })
	allow := func(fd int32) {
		_ = binary.Write(f, binary.NativeEndian, unix.FanotifyResponse{Fd: fd, Response: unix.FAN_ALLOW})
		_ = unix.Close(int(fd))
	}
	go func() {
		defer close(ended)
		for {
			var e unix.FanotifyEventMetadata
			if binary.Read(f, binary.NativeEndian, &e) != nil {
				return
			}
			if stop.Add(-1) == 0 {
				go func() { meanwhile(); allow(e.Fd) }()
			} else {
				allow(e.Fd)
			}
		}
	}()
}

// stoppedRemoval is a removal whose process is stopped when it opens the folder for the time n, counted from the last check.
type stoppedRemoval struct {
	*folderRemoval
	stop *atomic.Int64
	n    int64
}

func (r stoppedRemoval) Delete() error {
	r.stop.Store(r.n)
	return r.folderRemoval.Delete()
}

// Two nodes have one folder backing-images. One is stopped in the middle of a removal, and the other starts: it restores the
// folder, removes the mark, and may count on the copy from then on. The stopped node must not delete it. The node is stopped
// at each place where it opens the folder.
func TestStartDuringRemoval(t *testing.T) {
	need.Root(t, "mount a folder at another path")
	counts := 0
	for n := int64(1); ; n++ {
		a, b := newDisk(t), newDisk(t)
		readyImage(t, a, make([]byte, 4096))
		must(t, a.SetMark(testID, testMark))
		target := filepath.Join(b.Path(), imagesFolder)
		must(t, os.Mkdir(target, 0o755))
		must(t, unix.Mount(filepath.Join(a.Path(), imagesFolder), target, "", unix.MS_BIND, ""))
		t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
		var stop atomic.Int64
		started, counted := false, false
		stopAtOpen(t, filepath.Join(a.Path(), folderPath(testID)), &stop, func() {
			started, counted = true, startAndCount(t, b)
		})
		err := RemoveUnused(stoppedRemoval{&folderRemoval{folder: a.image(testID), mark: testMark, now: folderPath(testID)}, &stop, n})
		if !started {
			must(t, err)
			break
		}
		if counted {
			counts++
			if _, missing := os.Stat(filepath.Join(target, testID.String(), imageFile)); missing != nil {
				t.Errorf("stop %d: a copy that counts was deleted (%v)", n, err)
			}
		}
	}
	if counts == 0 {
		t.Error("the other node never counted on the copy")
	}
}

// startAndCount starts a node with the disk, and reports whether it counts on the image then.
func startAndCount(t *testing.T, d *Disk) bool {
	unlock, err := d.Lock()
	if err != nil {
		t.Error(err)
		return false
	}
	defer unlock()
	_, err = d.List()
	if c := d.Stat(testID); c.State == model.Unknown {
		_, errVerify := d.Verify(t.Context(), testID, Expected{}, func(int64) {})
		err = errors.Join(err, errVerify)
	}
	marked, errMarked := d.Marked(testID)
	if err := errors.Join(err, errMarked); err != nil {
		t.Error(err)
	}
	return d.Stat(testID).State == model.Ready && !marked
}

// A process is killed after it has hidden the image. The next start restores it, and it is verified like each file whose inode changed.
func TestHiddenImageIsRestored(t *testing.T) {
	d := newDisk(t)
	readyImage(t, d, make([]byte, 4096))
	aside := filepath.Join(d.Path(), imagesFolder, removingPrefix+testID.String())
	must(t, os.Rename(filepath.Join(d.Path(), folderPath(testID)), aside))
	must(t, os.Rename(filepath.Join(aside, imageFile), filepath.Join(aside, hiddenFile)))
	unlock, err := d.Lock()
	must(t, err)
	defer unlock()
	if c, err := d.Verify(t.Context(), testID, Expected{}, func(int64) {}); err != nil || c.State != model.Ready {
		t.Errorf("%+v, %v", c, err)
	}
	must(t, d.Remove(testID, Mark{}))
}

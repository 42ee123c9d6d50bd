package disk

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// fullForRenames lets the rename of the image's folder fail as on a full btrfs, and calls before for
// every operation.
func fullForRenames(before func(faultfs.Op) error) func(faultfs.Op) error {
	return func(op faultfs.Op) error {
		if before != nil {
			if err := before(op); err != nil {
				return err
			}
		}
		if op.Kind == "rename" && op.Path == folderPath(testID) {
			return syscall.ENOSPC
		}
		return nil
	}
}

func TestRemoveWithoutSpaceForARename(t *testing.T) {
	d, v := faultyDisk(t)
	readyImage(t, d, sparseImage(2*ChunkSize))
	v.Plan(fullForRenames(nil))
	if err := d.Remove(testID, Mark{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(d.Path(), folderPath(testID))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder exists, error %v", err)
	}
	if reason, open := d.Users().FileOpen(testID); open {
		t.Errorf("after the removal another probe says %q", reason)
	}
}

// The image gets a user after the first check: before the rename, which fails, or after it.
func TestRemoveWithoutSpaceKeepsImageInUse(t *testing.T) {
	for name, isUsed := range map[string]func(faultfs.Op) bool{
		"before": func(op faultfs.Op) bool { return op.Kind == "rename" },
		"after": func(op faultfs.Op) bool {
			return op.Kind == "open" && op.Path == filePath(testID, imageFile) && op.Count > 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, v := faultyDisk(t)
			v.Put(replicaFolder+"/other-00000001/volume.meta", []byte(`{"Size":1048576}`))
			readyImage(t, d, sparseImage(2*ChunkSize))
			v.Restart()
			v.Plan(fullForRenames(func(op faultfs.Op) error {
				if isUsed(op) {
					v.Put(replicaFolder+"/user-00000002/volume.meta", metaOfUser)
				}
				return nil
			}))
			if err := d.Remove(testID, Mark{}); !isA[*InUseError](err) {
				t.Errorf("error is %v, want an InUseError", err)
			}
			if c := d.Stat(testID); c.State != model.Ready {
				t.Errorf("the copy is %+v", c)
			}
		})
	}
}

// A process that opens the image during the removal breaks the lease.
func TestLeaseDetectsOpen(t *testing.T) {
	d := newDisk(t)
	readyImage(t, d, sparseImage(ChunkSize))
	l, err := d.leases.lease(d.root, filePath(testID, imageFile))
	if err != nil || l == nil || !l.held() {
		t.Fatalf("lease is %v, error %v", l, err)
	}
	f, err := os.OpenFile(imagePath(d, imageFile), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err == nil {
		f.Close()
		t.Error("the image was opened while the lease was held")
	}
	if l.held() {
		t.Error("the lease is still held")
	}
	l.release()
	used, err := os.Open(imagePath(d, imageFile))
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	if l, err := d.leases.lease(d.root, filePath(testID, imageFile)); err == nil {
		t.Errorf("a lease on an open file: %v", l)
	}
}

// The process is killed, or power fails, at every operation of a removal in place. No folder may look
// like a ready copy afterwards unless it is one, and the next removal completes.
func TestCrashDuringRemovalWithoutSpace(t *testing.T) {
	race.Skip(t)
	f := faultfs.Mount(t)
	image := sparseImage(2 * ChunkSize)
	setUp := func(t *testing.T) (*Disk, *faultfs.Volume) {
		v := newVolumeDisk(t, f)
		t.Cleanup(v.Close)
		d, err := Open(v.Path())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		readyImage(t, d, image)
		v.SyncAll()
		v.Restart()
		return d, v
	}
	d, v := setUp(t)
	v.Plan(fullForRenames(nil))
	if err := d.Remove(testID, Mark{}); err != nil {
		t.Fatal(err)
	}
	for _, op := range v.Trace() {
		if op.ChangeNumber == 0 {
			continue
		}
		t.Run(op.String(), func(t *testing.T) {
			d, v := setUp(t)
			v.Plan(fullForRenames(func(now faultfs.Op) error {
				if now == op {
					return faultfs.ErrStop
				}
				return nil
			}))
			if err := d.Remove(testID, Mark{}); err == nil {
				t.Error("the removal succeeded")
			}
			v.Restart()
			survivors := []*faultfs.Volume{v, v.SurviveSynced()}
			for seed := range uint64(8) {
				survivors = append(survivors, v.Survive(seed))
			}
			for i, v := range survivors {
				d, err := Open(v.Path())
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				unlock, err := d.Lock()
				if err != nil {
					t.Fatal(err)
				}
				c := d.Stat(testID)
				data, err := os.ReadFile(imagePath(d, imageFile))
				if c.State == model.Ready && (err != nil || !bytes.Equal(data, image)) {
					t.Errorf("survivor %d: a damaged copy is %+v, error %v", i, c, err)
				}
				if c.State == model.Unknown {
					t.Errorf("survivor %d: the copy is %+v", i, c)
				}
				v.Plan(fullForRenames(nil))
				_, missing := os.Lstat(filepath.Join(d.Path(), folderPath(testID)))
				if err := d.Remove(testID, Mark{}); err != nil && missing == nil && c.Owned {
					t.Errorf("survivor %d: the next removal: %v", i, err)
				}
				if err := unlock(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A btrfs with mixed block groups has no space for a rename when it is full of data.
func TestRemoveOnFullBtrfs(t *testing.T) {
	at := mountNew(t, 128<<20, "btrfs", "mkfs.btrfs", "-q", "--mixed")
	d := diskAt(t, at)
	readyImage(t, d, noiseOf(8*ChunkSize))
	fillDisk(t, at)
	if err := d.Remove(testID, Mark{}); err != nil {
		t.Fatal(err)
	}
	p, err := d.OpenPart(context.Background(), testID, PartOptions{})
	if err != nil {
		t.Fatalf("after the removal there is no space: %v", err)
	}
	p.Close()
}

// noiseOf returns bytes that a file system cannot compress.
func noiseOf(size int) []byte {
	b := make([]byte, size)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(b)
	return b
}

// fillDisk writes files until there is no space, not even for an empty one.
func fillDisk(t *testing.T, dir string) {
	t.Helper()
	block := noiseOf(ChunkSize)
	for size := len(block); size > 0; size /= 2 {
		for i := 0; ; i++ {
			name := filepath.Join(dir, strings.Repeat("f", 1+i%200)+string(rune('a'+size%26)))
			f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
			if err != nil {
				break
			}
			_, err = f.Write(block[:size])
			if err == nil {
				err = f.Sync()
			}
			f.Close()
			if err != nil {
				break
			}
		}
	}
}

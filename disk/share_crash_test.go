package disk

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// TestSharingFiller is not a test: it is the process that TestKillWhileBlocksAreShared starts and kills. It
// appends a chunk of the image testID to a partial file for each byte of its input, and prints the offset. At
// the end it commits the file.
func TestSharingFiller(t *testing.T) {
	path := os.Getenv("DISK_TEST_PART")
	if path == "" {
		t.Skip("another test runs it")
	}
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.Open(testID)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	m, err := d.Manifest(testID)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	p, err := d.OpenPart(t.Context(), cloneID, PartOptions{})
	if err == nil && p.Source() == (PartSource{}) {
		err = p.BeginManifest(PartSource{ID: "peer", Size: m.Size()}, m)
	}
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("at", p.Offset())
	for {
		if n, _ := os.Stdin.Read(make([]byte, 1)); n == 0 {
			break
		}
		n := p.Offset() / ChunkSize
		hash, err := m.Hash(n)
		zero, zeroErr := m.IsZero(n)
		if err = errors.Join(err, zeroErr); err == nil && zero {
			err = p.AppendZeros(m.ChunkLength(n))
		} else if err == nil {
			err = p.AppendFrom(r, n*ChunkSize, m.ChunkLength(n), hash)
		}
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("at", p.Offset())
	}
	commitFilled(t, p)
}

// TestKillWhileBlocksAreShared kills the process that shares the blocks of an image many times, at random
// moments. Each kill must lose at most 8 MiB.
func TestKillWhileBlocksAreShared(t *testing.T) {
	for name, mount := range shareMounts {
		t.Run(name, func(t *testing.T) {
			d := diskAt(t, mount(t))
			image := append(sparseImage(40*ChunkSize), noiseOf(512)...)
			readyImage(t, d, image)
			random := rand.New(rand.NewPCG(3, 4))
			for taken, kills := int64(0), 0; ; kills++ {
				f := startFillerTest(t, d, "TestSharingFiller")
				if f.offset < taken-8<<20 || f.offset > taken+ChunkSize {
					t.Fatalf("kill %d: resumed at %d after %d", kills, f.offset, taken)
				}
				taken = f.offset
				for range 3 + random.IntN(10) {
					if _, err := f.stdin.Write([]byte{0}); err != nil {
						t.Fatal(err)
					}
					if f.expect("at", &taken); taken == int64(len(image)) {
						break
					}
				}
				if taken < int64(len(image)) {
					_, _ = f.stdin.Write([]byte{0}) // the kill may interrupt this chunk
					f.kill()
					continue
				}
				if digest, _ := f.finish(); digest != digest512(image).String() {
					t.Errorf("the filler made the digest %s, want %s", digest, digest512(image))
				}
				if kills < 3 {
					t.Errorf("killed only %d times", kills)
				}
				break
			}
			checkDevice(t, d, cloneID, image)
			if shared := sharedBytes(t, filepath.Join(d.path, filePath(cloneID, imageFile))); shared/ChunkSize != 20 {
				t.Errorf("%d bytes are shared, want 20 chunks", shared)
			}
		})
	}
}

// cutPower makes a mounted XFS lose what is not on the disk yet, and mounts it again. Before it unmounts it,
// it calls stop, which closes all files.
func cutPower(t *testing.T, at string, stop func()) {
	t.Helper()
	dir, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	withoutLog := uint32(2) // XFS_FSOP_GOING_FLAGS_NOLOGFLUSH
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), 0x8004587d /* XFS_IOC_GOINGDOWN */, uintptr(unsafe.Pointer(&withoutLog)))
	dir.Close()
	stop()
	if errno != 0 {
		t.Fatal("shut the file system down: ", errno)
	}
	if err := unix.Unmount(at, 0); err != nil {
		t.Fatal(err)
	}
	// A mount namespace that another process made meanwhile keeps the file system alive. Its device would then be mounted as the file system
	// that was shut down, so a copy of it is mounted.
	image := filepath.Join(filepath.Dir(at), "image")
	for _, command := range [][]string{
		{"cp", "--sparse=always", image, image + ".copy"},
		{"mv", image + ".copy", image},
		{"mount", "-o", "loop,nouuid", image, at},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// TestSharedBlocksSurvivePowerCut cuts the power while blocks are shared, and after the image became ready.
func TestSharedBlocksSurvivePowerCut(t *testing.T) {
	at := shareMounts["xfs"](t)
	want := append(sparseImage(40*ChunkSize), noiseOf(512)...)
	if _, err := Init(at); err != nil {
		t.Fatal(err)
	}
	var d *Disk
	var r *Reader
	open := func() {
		opened, err := Open(at)
		if err != nil {
			t.Fatal(err)
		}
		d = opened
	}
	open()
	t.Cleanup(func() { d.Close() })
	readyImage(t, d, want)
	for _, synced := range []int64{0, 12} {
		p := openPartOf(t, d, PartOptions{})
		if p.Source() == (PartSource{}) {
			if err := p.Begin(PartSource{ID: "peer", Size: int64(len(want))}); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		if r, err = d.Open(testID); err != nil {
			t.Fatal(err)
		}
		appendShared(t, p, r, want[:synced*ChunkSize], 0)
		if err := errors.Join(p.drain(), p.sync(), p.journal.f.Sync()); err != nil {
			t.Fatal(err)
		}
		appendShared(t, p, r, want[:30*ChunkSize], 0)
		cutPower(t, at, func() { _ = errors.Join(p.Close(), r.Close(), d.Close()) }) // they cannot succeed
		open()
		p = openPartOf(t, d, PartOptions{})
		if got := p.Offset(); got < synced*ChunkSize || got > 30*ChunkSize {
			t.Errorf("resumed at %d, want at least %d", got, synced*ChunkSize)
		}
		if err := p.Discard(); err != nil {
			t.Fatal(err)
		}
	}
	p := partOf(t, d, int64(len(want)), PartOptions{})
	var err error
	if r, err = d.Open(testID); err != nil {
		t.Fatal(err)
	}
	appendShared(t, p, r, want, 0)
	commitShared(t, p, want)
	cutPower(t, at, func() { _ = errors.Join(r.Close(), d.Close()) })
	open()
	if c := d.Stat(cloneID); c.State != model.Ready {
		t.Errorf("the committed image is %s: %s", c.State, c.Message)
	}
	checkDevice(t, d, cloneID, want)
}

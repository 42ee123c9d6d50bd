package disk

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// shareMounts are file systems that share blocks between files.
var shareMounts = map[string]func(testing.TB) string{
	"xfs": func(t testing.TB) string {
		return mountNew(t, 320<<20, "xfs", "mkfs.xfs", "-q", "-m", "reflink=1")
	},
	"btrfs": func(t testing.TB) string { return mountNew(t, 320<<20, "btrfs", "mkfs.btrfs", "-q") },
}

// otherMounts are file systems that do not.
var otherMounts = map[string]func(testing.TB) string{
	"ext4": func(t testing.TB) string { return mountNew(t, 128<<20, "ext4", "mkfs.ext4", "-q") },
	"xfs without reflinks": func(t testing.TB) string {
		return mountNew(t, 320<<20, "xfs", "mkfs.xfs", "-q", "-m", "reflink=0")
	},
	"tmpfs": func(t testing.TB) string {
		dir, err := os.MkdirTemp("/dev/shm", "share")
		if err != nil {
			t.Skip("no tmpfs:", err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		return dir
	},
}

// sharedBytes returns the bytes of a file in blocks that it shares with other files.
func sharedBytes(t testing.TB, name string) (shared int64) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var m struct { // linux/fiemap.h
		start, length                 uint64
		flags, mapped, count, padding uint32
		extents                       [1024]struct {
			logical, physical, length uint64
			_                         [2]uint64
			flags                     uint32
			_                         [3]uint32
		}
	}
	m.length, m.flags, m.count = 1<<40, 1 /* FIEMAP_FLAG_SYNC */, uint32(len(m.extents))
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), 0xc020660b /* FS_IOC_FIEMAP */, uintptr(unsafe.Pointer(&m))); errno != 0 {
		t.Fatal("FIEMAP: ", errno)
	}
	if m.mapped == m.count {
		t.Fatalf("%s has more than %d extents", name, m.count)
	}
	for _, e := range m.extents[:m.mapped] {
		if e.flags&0x2000 /* FIEMAP_EXTENT_SHARED */ != 0 {
			shared += int64(e.length)
		}
	}
	return shared
}

// openPartOf opens the partial file of cloneID.
func openPartOf(t testing.TB, d *Disk, o PartOptions) *Part {
	t.Helper()
	p, err := d.OpenPart(t.Context(), cloneID, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// partOf begins a partial file of cloneID for an image of size bytes.
func partOf(t testing.TB, d *Disk, size int64, o PartOptions) *Part {
	t.Helper()
	p := openPartOf(t, d, o)
	t.Cleanup(func() { p.Close() })
	if err := p.Begin(PartSource{ID: "peer", Size: size}); err != nil {
		t.Fatal(err)
	}
	return p
}

// appendShared appends the chunks of want up to its end. It takes each from r, which has the same bytes later by
// shift, and from memory where r does not have it. It returns the indexes of those.
func appendShared(t testing.TB, p *Part, r *Reader, want []byte, shift int64) (missing []int64) {
	t.Helper()
	for p.Offset() < int64(len(want)) {
		at := p.Offset()
		piece := want[at:min(at+ChunkSize, int64(len(want)))]
		var err error
		if allZero(piece) {
			err = p.AppendZeros(int64(len(piece)))
		} else {
			hash := NewChunks.Hash(piece)
			if err = p.AppendFrom(r, at+shift, int64(len(piece)), hash); errors.Is(err, ErrDamaged) {
				missing = append(missing, at/ChunkSize)
				buf := NewChunkBuffer()
				copy(buf, piece)
				_, err = p.AppendChunk(buf, int64(len(piece)), hash)
			}
		}
		if err != nil {
			t.Fatalf("chunk %d: %v", at/ChunkSize, err)
		}
	}
	return missing
}

// commitShared commits p, and compares the bytes that the disk has with want.
func commitShared(t testing.TB, p *Part, want []byte) {
	t.Helper()
	if _, err := p.Commit(digest512(want)); err != nil {
		t.Fatal(err)
	}
	checkDevice(t, p.folder.disk, cloneID, want)
}

// checkDevice compares the bytes of an image on the disk, not those in the page cache, with want.
func checkDevice(t testing.TB, d *Disk, id ident.ID, want []byte) {
	t.Helper()
	r, err := openChunkReader(d.root, filePath(id, imageFile))
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	c := &chunk{buf: NewChunkBuffer()}
	for at := int64(0); at < r.size; at += ChunkSize {
		if err := r.read(c, at); err != nil || !bytes.Equal(c.data, want[at:at+int64(len(c.data))]) {
			t.Fatalf("chunk %d differs on the disk, error %v", at/ChunkSize, err)
		}
	}
	if r.size != int64(len(want)) {
		t.Errorf("the image has %d bytes, want %d", r.size, len(want))
	}
}

// newSeed makes a ready image with a reader.
func newSeed(t testing.TB, d *Disk, image []byte) *Reader {
	t.Helper()
	readyImage(t, d, image)
	r, err := d.Open(testID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// TestAppendFromSharesBlocks appends an image from one with other bytes in one chunk, at the same place, or
// later by a number of bytes.
func TestAppendFromSharesBlocks(t *testing.T) {
	const chunks = 20
	for name, mount := range shareMounts {
		t.Run(name, func(t *testing.T) {
			at := mount(t)
			for shift, whole := range map[string]bool{"": true, strings.Repeat("a", 3*4096): true, "b": false} {
				dir, err := os.MkdirTemp(at, "")
				if err != nil {
					t.Fatal(err)
				}
				want := append(sparseImage(chunks*ChunkSize), noiseOf(512)...)
				seed := append([]byte(shift), want...)
				seed = append(seed, make([]byte, (512-len(seed)%512)%512)...)
				seed[len(shift)+6*ChunkSize] ^= 1
				d := diskAt(t, dir)
				r := newSeed(t, d, seed)
				before := free(t, d)
				p := partOf(t, d, int64(len(want)), PartOptions{})
				if missing := appendShared(t, p, r, want, int64(len(shift))); len(missing) != 1 || missing[0] != 6 {
					t.Errorf("shift of %d: chunks %d are missing, want 6", len(shift), missing)
				}
				commitShared(t, p, want)
				shared, used := sharedBytes(t, filepath.Join(dir, filePath(cloneID, imageFile))), before-free(t, d)
				// XFS copies the last block when the file gets its size, because it is not full.
				if most := int64(4 * ChunkSize); whole && (shared/ChunkSize != chunks/2-1 || used > most) || !whole && shared != 0 {
					t.Errorf("shift of %d: %d bytes are shared, %d used", len(shift), shared, used)
				}
				checkDevice(t, d, testID, seed)
			}
		})
	}
}

// TestAppendFromWritesOnOtherFileSystems appends from an image on a file system that cannot share blocks, and
// from one on another file system.
func TestAppendFromWritesOnOtherFileSystems(t *testing.T) {
	want := sparseImage(9*ChunkSize + 512)
	for name, mount := range otherMounts {
		t.Run(name, func(t *testing.T) {
			d := diskAt(t, mount(t))
			r := newSeed(t, d, want)
			p := partOf(t, d, int64(len(want)), PartOptions{})
			if missing := appendShared(t, p, r, want, 0); len(missing) > 0 {
				t.Errorf("chunks %d are missing", missing)
			}
			commitShared(t, p, want)
		})
	}
	t.Run("two", func(t *testing.T) {
		d := diskAt(t, shareMounts["xfs"](t))
		other := newSeed(t, newDisk(t), want)
		r := newSeed(t, d, want)
		p := partOf(t, d, int64(len(want)), PartOptions{})
		appendShared(t, p, other, want[:2*ChunkSize], 0)
		appendShared(t, p, r, want, 0)
		commitShared(t, p, want)
		if shared := sharedBytes(t, filepath.Join(d.path, filePath(cloneID, imageFile))); shared != 4*ChunkSize {
			t.Errorf("%d bytes are shared, want the four chunks with data of the image on the same file system", shared)
		}
	})
}

// TestWrongSharedBlocksAreRemoved appends zeros, for which nothing is written, where a chunk with another
// hash was shared.
func TestWrongSharedBlocksAreRemoved(t *testing.T) {
	for name, mount := range shareMounts {
		t.Run(name, func(t *testing.T) {
			d := diskAt(t, mount(t))
			r := newSeed(t, d, noiseOf(3*ChunkSize))
			want := noiseOf(3 * ChunkSize)
			clear(want[ChunkSize:][:ChunkSize])
			p := partOf(t, d, int64(len(want)), PartOptions{})
			appendShared(t, p, r, want[:ChunkSize], 0)
			if err := p.AppendFrom(r, ChunkSize, ChunkSize, NewChunks.Hash([]byte("other bytes"))); !errors.Is(err, ErrDamaged) {
				t.Fatalf("error is %v, want ErrDamaged", err)
			}
			appendShared(t, p, r, want, 0)
			commitShared(t, p, want)
			if c := d.Stat(cloneID); c.RealSize > 2*ChunkSize {
				t.Errorf("%d bytes are allocated: the hole was filled", c.RealSize)
			}
		})
	}
}

// damageDevice changes the block on the device that has these bytes of an image, below the file system.
func damageDevice(t *testing.T, at string, block []byte) {
	t.Helper()
	dir, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	err = unix.Syncfs(int(dir.Fd()))
	dir.Close()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(filepath.Dir(at), "image"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	found := 0
	buf := make([]byte, len(block))
	for offset := int64(0); ; offset += int64(len(block)) {
		if _, err := f.ReadAt(buf, offset); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(buf, block) {
			found++
			buf[77] ^= 1
			if _, err := f.WriteAt(buf, offset); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := f.Sync(); err != nil || found != 1 {
		t.Fatalf("the block is %d times on the device, error %v", found, err)
	}
}

// TestAppendFromVerifiesTheDevice damages a block on the device. The page cache still has the good bytes of the
// image, so that every reader of it, and of its chunks, gets these.
func TestAppendFromVerifiesTheDevice(t *testing.T) {
	mounts := map[string][]string{"xfs": nil, "btrfs": nil, "btrfs without checksums": {"-o", "remount,nodatasum"}}
	for name, options := range mounts {
		t.Run(name, func(t *testing.T) {
			at := shareMounts[strings.Fields(name)[0]](t)
			if options != nil {
				if out, err := exec.Command("mount", append(options, at)...).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			d := diskAt(t, at)
			want := noiseOf(6 * ChunkSize)
			r := newSeed(t, d, want)
			read := func() {
				if got, err := os.ReadFile(imagePath(d, imageFile)); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("the page cache does not have the good bytes, error %v", err)
				}
			}
			read()
			damageDevice(t, at, want[3*ChunkSize+8192:][:4096])
			read()
			p := partOf(t, d, int64(len(want)), PartOptions{})
			if missing := appendShared(t, p, r, want, 0); len(missing) != 1 || missing[0] != 3 {
				t.Errorf("chunks %d are damaged, want 3", missing)
			}
			read()
			commitShared(t, p, want)
			if shared := sharedBytes(t, filepath.Join(at, filePath(cloneID, imageFile))); shared != 5*ChunkSize {
				t.Errorf("%d bytes are shared, want 5 chunks", shared)
			}
		})
	}
}

// TestAppendFromKeepsReserve shares more bytes than are free above the reserve, until another program uses
// the reserve.
func TestAppendFromKeepsReserve(t *testing.T) {
	for name, mount := range shareMounts {
		t.Run(name, func(t *testing.T) {
			at := mount(t)
			d := diskAt(t, at)
			image := noiseOf(32 * ChunkSize)
			r := newSeed(t, d, image)
			p := partOf(t, d, -1, PartOptions{Reserve: free(t, d) - 12*ChunkSize})
			appendShared(t, p, r, image[:24*ChunkSize], 0)
			if err := p.drain(); err != nil {
				t.Fatalf("shared blocks used space: %v", err)
			}
			if err := os.WriteFile(filepath.Join(at, "other"), noiseOf(16*ChunkSize), 0o600); err != nil {
				t.Fatal(err)
			}
			free(t, d) // write it to the disk
			err := p.AppendFrom(r, 24*ChunkSize, ChunkSize, NewChunks.Hash(image[24*ChunkSize:][:ChunkSize]))
			if err = errors.Join(err, p.Close()); !errors.Is(err, ErrNoSpace) {
				t.Errorf("error is %v, want ErrNoSpace", err)
			}
		})
	}
}

// TestRepairOfSharedBlock damages a block that two images share. The repair of one writes to another block, and
// does not change the other one.
func TestRepairOfSharedBlock(t *testing.T) {
	at := shareMounts["xfs"](t)
	d := diskAt(t, at)
	image := noiseOf(4 * ChunkSize)
	r := newSeed(t, d, image)
	p := partOf(t, d, int64(len(image)), PartOptions{})
	appendShared(t, p, r, image, 0)
	commitShared(t, p, image)
	damageDevice(t, at, image[2*ChunkSize:][:4096])
	for i, id := range []ident.ID{cloneID, testID} {
		if c, err := d.Verify(t.Context(), id, Expected{}, func(int64) {}); err != nil || c.State != model.Failed {
			t.Fatalf("%s is %s after the damage, error %v", id, c.State, err)
		}
		var fetched []int64
		c, err := d.Repair(t.Context(), id, ident.Digest{}, fetchFrom(image, &fetched), func(int64) {})
		if err != nil || c.State != model.Ready || len(fetched) != 1 {
			t.Fatalf("%s is %s after the repair of chunks %d, error %v", id, c.State, fetched, err)
		}
		checkDevice(t, d, id, image)
		if shared := sharedBytes(t, filepath.Join(at, filePath(id, imageFile))); i == 0 && shared != 3*ChunkSize {
			t.Errorf("%d bytes are shared, want 3 chunks", shared)
		}
	}
	checkDevice(t, d, cloneID, image)
}

package disk

import (
	"context"
	"io"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// cachedPagesOf reports for each page of a file whether it is in the page cache.
func cachedPagesOf(t *testing.T, name string) []bool {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	mapped, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapped)
	pages := make([]byte, (len(mapped)+os.Getpagesize()-1)/os.Getpagesize())
	_, _, errno := syscall.Syscall(syscall.SYS_MINCORE, uintptr(unsafe.Pointer(&mapped[0])), uintptr(len(mapped)), uintptr(unsafe.Pointer(&pages[0])))
	if errno != 0 {
		t.Fatal(errno)
	}
	cached := make([]bool, len(pages))
	for i, page := range pages {
		cached[i] = page&1 == 1
	}
	return cached
}

// resident returns the bytes of a file that are in the page cache.
func resident(t *testing.T, name string) int64 {
	t.Helper()
	var n int64
	for _, cached := range cachedPagesOf(t, name) {
		if cached {
			n += int64(os.Getpagesize())
		}
	}
	return n
}

// TestCommitAndVerifyBypassPageCache checks that Commit and Verify do not displace the pages of other
// programs.
func TestCommitAndVerifyBypassPageCache(t *testing.T) {
	const size, most = 64 << 20, 4 << 20
	d := newDisk(t)
	p := openPart(t, d, PartOptions{})
	if !p.direct {
		t.Skip("the file system of the temporary folder does not support direct I/O")
	}
	if err := p.Begin(PartSource{ID: "x", Size: size}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReadFrom(repeat(randomBlock(), size)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Commit(ident.Digest{}); err != nil {
		t.Fatal(err)
	}
	if n := resident(t, imagePath(d, imageFile)); n > most {
		t.Errorf("after commit %d bytes are in the page cache", n)
	}
	if _, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); err != nil {
		t.Fatal(err)
	}
	if n := resident(t, imagePath(d, imageFile)); n > most {
		t.Errorf("after verify %d bytes are in the page cache", n)
	}
}

// TestReaderOfNewImageDropsItsPages reads an image that was just committed: Commit has read its head.
func TestReaderOfNewImageDropsItsPages(t *testing.T) {
	d := newDisk(t)
	readyImage(t, d, noiseOf(48*ChunkSize))
	cached := func(p *cachedPages) (n int64) {
		all := Span{0, 48 * ChunkSize}
		for _, s := range p.residency(all).spans(all, true) {
			n += s.To - s.From
		}
		return n
	}
	r, err := d.Open(testID)
	if err != nil {
		t.Fatal(err)
	}
	before := cached(r.pages)
	if _, err := io.Copy(io.Discard, struct{ io.Reader }{r}); err != nil {
		t.Fatal(err)
	}
	r.Close()
	if r, err = d.Open(testID); err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if after := cached(r.pages); after > before {
		t.Errorf("%d bytes are cached after the image was read, %d before", after, before)
	}
}

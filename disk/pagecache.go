package disk

import (
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// Span is a piece of a file: [From, To).
type Span struct{ From, To int64 }

const (
	// lent is the number of bytes that stay in the page cache after they were read: sendfile uses the
	// pages until the receiver has acknowledged them, and until then the kernel does not drop them.
	lent = 8 << 20
	// maxRetained limits how many bytes are noted for a later drop from the cache: a slow receiver still
	// uses their pages.
	maxRetained = 64 << 20
)

// cachedPages reads a file through the page cache and restores its state: it drops the pages that it
// added, and keeps the pages that were cached before, for example those of virtual machines. The
// kernel's read-ahead would add pages that cachedPages does not know. It is therefore off, and
// cachedPages itself reads ahead by one chunk. It is safe for concurrent use.
type cachedPages struct {
	f    *os.File
	size int64

	mu       sync.Mutex
	from, to int64  // limits of the read-ahead
	next     int64  // the next chunk to prefetch
	added    []Span // pages that were not cached before, in the order of reads
	bytes    int64  // total size of added
	recent   int64  // bytes added since the last drop
}

// newCachedPages returns a cachedPages that also drops the retained pages of an earlier reader.
func newCachedPages(f *os.File, size int64, retained []Span) *cachedPages {
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM) // if this fails, only more pages are dropped
	p := &cachedPages{f: f, size: size, to: size}
	for _, s := range retained {
		p.add(s)
	}
	return p
}

// limit restricts the read-ahead to [from, to).
func (p *cachedPages) limit(from, to int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.from, p.to, p.next = from, to, from/ChunkSize
}

// visit prefetches chunk n and the following chunk.
func (p *cachedPages) visit(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > p.next || n < p.next-2 {
		p.next = n // the access is not sequential
	}
	for ; p.next <= n+1; p.next++ {
		p.prefetch(Span{max(p.from, p.next*ChunkSize), min(p.to, (p.next+1)*ChunkSize)})
	}
}

// prefetch starts to read the pages of the sorted pieces that are not cached, records them as added, and drops older pages.
func (p *cachedPages) prefetch(pieces ...Span) {
	if len(pieces) == 0 {
		return
	}
	all := Span{pieces[0].From, min(pieces[len(pieces)-1].To, p.size)}
	vector := p.residency(all)
	for _, piece := range pieces {
		for _, s := range vector.spans(piece, false) {
			p.add(s)
			_ = unix.Fadvise(int(p.f.Fd()), s.From, s.To-s.From, unix.FADV_WILLNEED) // on failure they are read later
		}
	}
	if p.recent >= lent/2 {
		p.drop(lent)
	}
}

// residency has a byte for each page of a file. The first byte is for the page at offset residency.from. Bit 0 of a byte is 1
// if its page is in the page cache.
type residency struct {
	from  int64
	pages []byte
}

var pageSize = int64(os.Getpagesize())

// spans returns the pages of a piece that are in the page cache. If inCache is false, it returns the
// pages that are not.
func (r residency) spans(piece Span, inCache bool) (found []Span) {
	last := min((piece.To-r.from+pageSize-1)/pageSize, int64(len(r.pages)))
	for i := (piece.From - r.from) / pageSize; i < last; i++ {
		first := i
		for i < last && (r.pages[i]&1 == 1) == inCache {
			i++
		}
		if i > first {
			found = append(found, Span{r.from + first*pageSize, r.from + i*pageSize})
		}
	}
	return found
}

// residency returns the residency of a piece. If the kernel does not report it, no page counts as cached.
func (p *cachedPages) residency(piece Span) residency {
	from := piece.From / pageSize * pageSize
	if from >= piece.To {
		return residency{}
	}
	length := piece.To - from
	r := residency{from, make([]byte, (length+pageSize-1)/pageSize)}
	mapped, err := unix.Mmap(int(p.f.Fd()), from, int(length), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return r
	}
	defer func() { _ = unix.Munmap(mapped) }() // cannot fail for a valid mapping
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mapped[0])), uintptr(length), uintptr(unsafe.Pointer(&r.pages[0])))
	if errno != 0 {
		clear(r.pages)
	}
	return r
}

func (p *cachedPages) add(s Span) {
	p.bytes += s.To - s.From
	p.recent += s.To - s.From
	if last := len(p.added) - 1; last >= 0 && p.added[last].To == s.From {
		p.added[last].To = s.To
		return
	}
	p.added = append(p.added, s)
}

// drop drops the added pages. It leaves the last ones: the argument keep is their size in bytes. Pages that the kernel does
// not drop stay in p.added for the next attempt.
func (p *cachedPages) drop(keep int64) {
	spans, old := p.added, p.bytes-keep
	p.added, p.bytes = nil, 0
	for _, s := range spans {
		n := max(0, min(s.To-s.From, old))
		old -= n
		if n > 0 {
			_ = unix.Fadvise(int(p.f.Fd()), s.From, n, unix.FADV_DONTNEED) // if this fails, they stay cached
			dropped := Span{s.From, s.From + n}
			for _, kept := range p.residency(dropped).spans(dropped, true) {
				p.add(kept)
			}
		}
		if s.From += n; s.From < s.To {
			p.add(s)
		}
	}
	for p.bytes > maxRetained {
		p.bytes -= p.added[0].To - p.added[0].From
		p.added = p.added[1:]
	}
	p.recent = 0
}

// release drops all added pages, and returns those that the kernel did not drop.
func (p *cachedPages) release() []Span {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(0)
	return p.added
}

// pagedFile is an io.ReaderAt that reads through cachedPages.
type pagedFile struct{ *cachedPages }

// ReadAt implements io.ReaderAt.
func (p pagedFile) ReadAt(b []byte, offset int64) (read int, err error) {
	for read < len(b) && err == nil {
		at := offset + int64(read)
		p.visit(at / ChunkSize)
		piece := b[read:]
		n, readErr := p.f.ReadAt(piece[:min(int64(len(piece)), ChunkSize-at%ChunkSize)], at)
		read, err = read+n, readErr
	}
	return read, err
}

// retainedPages are pages of an image that readers added to the page cache and could not drop. The next
// reader of the image tries to drop them.
type retainedPages struct {
	inode uint64
	spans []Span
}

// takePages forgets the retained pages of an image, and returns them if the image still has this inode.
func (m *metaCache) takePages(id ident.ID, inode uint64) (spans []Span) {
	m.change(id, func(c *cachedFolder) {
		if c.retained != nil && c.retained.inode == inode {
			spans = c.retained.spans
		}
		c.retained = nil
	})
	return spans
}

// retainPages adds pages of an image, and removes the pages of another inode.
func (m *metaCache) retainPages(id ident.ID, inode uint64, spans []Span) {
	m.change(id, func(c *cachedFolder) {
		if c.retained != nil && c.retained.inode == inode {
			spans = append(c.retained.spans, spans...)
		}
		c.retained = &retainedPages{inode, spans}
	})
}

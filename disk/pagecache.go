package disk

import (
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pages leaves the page cache of a file as it is found, while the file is read through
// it: what virtual machines have there stays, and what this reading brings in goes
// again. The kernel's own reading ahead would blur which is which, so it is turned off
// and done here, a chunk ahead.
type pages struct {
	f *os.File

	mu       sync.Mutex
	from, to int64  // what may be read ahead
	next     int64  // the chunk that is to be brought next
	brought  []span // that was not cached, in the order of reading
	bytes    int64  // of brought
	fresh    int64  // of them since something was let go of
}

type span struct{ from, to int64 }

const (
	// What was read last cannot be let go of yet: sendfile lends it to the network
	// until the receiver has it.
	lent = 8 << 20
	// mostKept bounds what is tried again, of what a slow receiver has not taken.
	mostKept = 64 << 20
)

// newPages begins with what an earlier reading could not let go of.
func newPages(f *os.File, size int64, left []span) *pages {
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM) // otherwise more is let go of
	p := &pages{f: f, to: size}
	for _, s := range left {
		p.add(s)
	}
	return p
}

// only allows to read ahead in [from, to).
func (p *pages) only(from, to int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.from, p.to, p.next = from, to, from/ChunkSize
}

// visit has chunk n come into the page cache, and the one behind it begin to.
func (p *pages) visit(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > p.next || n < p.next-2 {
		p.next = n // a leap
	}
	for ; p.next <= n+1; p.next++ {
		p.bring(max(p.from, p.next*ChunkSize), min(p.to, (p.next+1)*ChunkSize))
	}
	if p.fresh >= lent/2 {
		p.letGo(lent)
	}
}

// bring begins to read what of [from, to) is not cached, and remembers it.
func (p *pages) bring(from, to int64) {
	if from >= to {
		return
	}
	for _, s := range p.spans(from, to, false) {
		p.add(s)
	}
	_ = unix.Fadvise(int(p.f.Fd()), from, to-from, unix.FADV_WILLNEED) // otherwise it is read later
}

// spans returns what of [from, to) is in the page cache, or is not, in whole pages.
func (p *pages) spans(from, to int64, cached bool) []span {
	size := int64(os.Getpagesize())
	from = from / size * size
	vector := p.cached(from, to)
	var found []span
	for i := 0; i < len(vector); i++ {
		first := i
		for i < len(vector) && (vector[i]&1 == 1) == cached {
			i++
		}
		if i > first {
			found = append(found, span{from + int64(first)*size, from + int64(i)*size})
		}
	}
	return found
}

// cached has the lowest bit of a byte set for each page of [from, to) that is cached.
// Where that cannot be told, none is.
func (p *pages) cached(from, to int64) []byte {
	size := int64(os.Getpagesize())
	vector := make([]byte, (to-from+size-1)/size)
	mapped, err := unix.Mmap(int(p.f.Fd()), from, int(to-from), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return vector
	}
	defer func() { _ = unix.Munmap(mapped) }() // it is a mapping
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mapped[0])), uintptr(to-from), uintptr(unsafe.Pointer(&vector[0])))
	if errno != 0 {
		clear(vector)
	}
	return vector
}

func (p *pages) add(s span) {
	p.bytes += s.to - s.from
	p.fresh += s.to - s.from
	if last := len(p.brought) - 1; last >= 0 && p.brought[last].to == s.from {
		p.brought[last].to = s.to
		return
	}
	p.brought = append(p.brought, s)
}

// letGo drops what was brought but for the last so many bytes, and tries it another
// time with what stays all the same.
func (p *pages) letGo(keep int64) {
	spans, old := p.brought, p.bytes-keep
	p.brought, p.bytes = nil, 0
	for _, s := range spans {
		n := max(0, min(s.to-s.from, old))
		old -= n
		if n > 0 {
			_ = unix.Fadvise(int(p.f.Fd()), s.from, n, unix.FADV_DONTNEED) // then it stays
			for _, kept := range p.spans(s.from, s.from+n, true) {
				p.add(kept)
			}
		}
		if s.from += n; s.from < s.to {
			p.add(s)
		}
	}
	for p.bytes > mostKept {
		p.bytes -= p.brought[0].to - p.brought[0].from
		p.brought = p.brought[1:]
	}
	p.fresh = 0
}

// release lets go of all that was brought, and returns what stayed all the same.
func (p *pages) release() []span {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.letGo(0)
	return p.brought
}

// pagedFile is a file that is read with its pages left as they were.
type pagedFile struct{ *pages }

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

// leftPages is what of a file could not be let go of yet.
type leftPages struct {
	inode uint64
	spans []span
}

// pagesLeft gives out what is left of an image, and leaves more for the next time.
func (d *Disk) pagesLeft(id ID, inode uint64, more []span) []span {
	d.mu.Lock()
	defer d.mu.Unlock()
	had := d.left[id]
	delete(d.left, id)
	if had.inode != inode {
		had.spans = nil
	}
	if more != nil {
		d.left[id] = leftPages{inode: inode, spans: append(had.spans, more...)}
	}
	return had.spans
}

package disk

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// File is a file or block device of another program, open for reading. After Close, the page cache
// contains the same pages of the file as before. A File is not safe for concurrent use.
type File struct {
	f          *os.File
	before     Evidence // when it was opened
	pages      *cachedPages
	prefetched []Span // in the order of reading
}

// NewFile returns a File that owns f. It closes f if it returns an error. f must not have been read
// before.
func NewFile(f *os.File) (*File, error) {
	info, err := f.Stat()
	var size int64
	if err == nil {
		size, err = f.Seek(0, io.SeekEnd) // stat does not return the size of a device
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	before := evidenceOf(info)
	before.Size = size
	return &File{f: f, before: before, pages: newCachedPages(f, size, nil)}, nil
}

// Size returns the bytes of the file when it was opened.
func (f *File) Size() int64 { return f.before.Size }

// Evidence returns the evidence of the file when it was opened.
func (f *File) Evidence() Evidence { return f.before }

// Fd returns the file descriptor, for ioctl. It is valid until Close.
func (f *File) Fd() int { return int(f.f.Fd()) }

// ReadAt implements io.ReaderAt. It adds pages to the page cache that Release does not drop;
// call Prefetch first for more than a few bytes.
func (f *File) ReadAt(b []byte, offset int64) (int, error) { return f.f.ReadAt(b, offset) }

// ReadAhead returns a reader that calls Prefetch and Release itself. It is for reading most of the
// file sequentially.
func (f *File) ReadAhead() io.ReaderAt { return pagedFile{f.pages} }

// Prefetch starts to read the pages of the spans that are not in the page cache, so that later reads
// do not wait for the disk one by one. The spans must be sorted.
func (f *File) Prefetch(spans []Span) {
	if len(spans) == 0 {
		return
	}
	page := int64(os.Getpagesize())
	from := spans[0].From / page * page
	to := min(spans[len(spans)-1].To, f.before.Size)
	if from >= to {
		return
	}
	vector := f.pages.residency(from, to)
	for _, s := range spans {
		first := (s.From - from) / page
		last := min((s.To-from+page-1)/page, int64(len(vector)))
		for i := first; i < last; i++ {
			start := i
			for i < last && vector[i]&1 == 0 {
				i++
			}
			if i > start {
				f.prefetch(Span{from + start*page, from + i*page})
			}
		}
	}
}

func (f *File) prefetch(s Span) {
	_ = unix.Fadvise(f.Fd(), s.From, s.To-s.From, unix.FADV_WILLNEED) // on failure they are read later
	if last := len(f.prefetched) - 1; last >= 0 && f.prefetched[last].To == s.From {
		f.prefetched[last].To = s.To
		return
	}
	f.prefetched = append(f.prefetched, s)
}

// Release drops the pages before offset that Prefetch added to the page cache.
func (f *File) Release(offset int64) {
	for len(f.prefetched) > 0 && f.prefetched[0].From < offset {
		s := &f.prefetched[0]
		end := min(s.To, offset)
		_ = unix.Fadvise(f.Fd(), s.From, end-s.From, unix.FADV_DONTNEED) // if this fails, they stay cached
		if s.From = end; s.From < s.To {
			return
		}
		f.prefetched = f.prefetched[1:]
	}
}

// Unchanged returns ErrModified if the file was modified since it was opened: the bytes may be a mix
// of the old and the new content. For a device it always returns nil.
func (f *File) Unchanged() error {
	info, err := f.f.Stat()
	if err != nil {
		return err
	}
	if now := evidenceOf(info); info.Mode().IsRegular() && now != f.before {
		return fmt.Errorf("%s: %w: %s", f.f.Name(), ErrModified, f.before.difference(now))
	}
	return nil
}

// Close closes the file and drops all pages that it added to the page cache.
func (f *File) Close() error {
	f.Release(f.before.Size)
	f.pages.release()
	return f.f.Close()
}

package disk

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// File is a file or block device that somebody else writes, open for reading. Its
// pages in the cache are left as they are found. It is for one goroutine.
type File struct {
	f       *os.File
	before  Evidence
	pages   *pages
	brought []Span // by Bring, in the order of reading
}

// Span is a piece of a file: [From, To).
type Span struct{ From, To int64 }

// NewFile takes over f, and closes it after an error. It must not be read before.
func NewFile(f *os.File) (*File, error) {
	info, err := f.Stat()
	var size int64
	if err == nil {
		size, err = f.Seek(0, io.SeekEnd) // a device tells its size in no other way
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	before := evidenceOf(info)
	before.Size = size
	return &File{f: f, before: before, pages: newPages(f, size, nil)}, nil
}

// Size returns the bytes that the file had when it was opened.
func (f *File) Size() int64 { return f.before.Size }

// Evidence returns what the file was when it was opened.
func (f *File) Evidence() Evidence { return f.before }

// Fd returns the descriptor, for what cannot be asked otherwise.
func (f *File) Fd() int { return int(f.f.Fd()) }

// ReadAt reads what Bring was called for, or a little.
func (f *File) ReadAt(b []byte, offset int64) (int, error) { return f.f.ReadAt(b, offset) }

// ReadAhead returns a reader of the file that itself brings what is about to be read, for
// who goes through most of it from front to back.
func (f *File) ReadAhead() io.ReaderAt { return pagedFile{f.pages} }

// Prefetch begins to read the spans, which are sorted, as far as they are not in the
// page cache, so that the reads that follow need not wait for each other.
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
	vector := f.pages.cached(from, to)
	for _, s := range spans {
		first := (s.From - from) / page
		last := min((s.To-from+page-1)/page, int64(len(vector)))
		for i := first; i < last; i++ {
			start := i
			for i < last && vector[i]&1 == 0 {
				i++
			}
			if i > start {
				f.bring(Span{from + start*page, from + i*page})
			}
		}
	}
}

func (f *File) bring(s Span) {
	_ = unix.Fadvise(f.Fd(), s.From, s.To-s.From, unix.FADV_WILLNEED) // otherwise it is read later
	if last := len(f.brought) - 1; last >= 0 && f.brought[last].To == s.From {
		f.brought[last].To = s.To
		return
	}
	f.brought = append(f.brought, s)
}

// Release drops from the page cache what Bring has brought and lies before to.
func (f *File) Release(to int64) {
	for len(f.brought) > 0 && f.brought[0].From < to {
		s := &f.brought[0]
		end := min(s.To, to)
		_ = unix.Fadvise(f.Fd(), s.From, end-s.From, unix.FADV_DONTNEED) // then it stays
		if s.From = end; s.From < s.To {
			return
		}
		f.brought = f.brought[1:]
	}
}

// Unchanged reports ErrChanging if the file was written to since it was opened: what
// was read may then be a mix of two contents. Of a device nothing can be said.
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

// Close ends the reading and lets go of all that it has brought.
func (f *File) Close() error {
	f.Release(f.before.Size)
	f.pages.release()
	return f.f.Close()
}

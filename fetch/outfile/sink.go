package outfile

import (
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// streamSink writes chunks to a stream, which cannot be resumed.
type streamSink struct{ io.WriteCloser }

var zeroChunk [disk.ChunkSize]byte

func (s streamSink) Put(chunk []byte) error {
	_, err := s.Write(chunk)
	return err
}

func (s streamSink) PutZeros(length int64) error { return s.Put(zeroChunk[:length]) }

// newStream returns a writer that compresses into w. Close does not close w.
func newStream(w io.Writer, compression Compression) io.WriteCloser {
	if compression == None {
		return nopCloser{w}
	}
	z := compression.newCompressor()
	z.Reset(w)
	return z
}

// nopCloser ignores Close.
type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// sparseFile writes chunks to a file, and creates holes for zeros. The file size shows how many bytes
// were written.
type sparseFile struct {
	f  *os.File
	at int64
}

func (s *sparseFile) Put(chunk []byte) error {
	n, err := s.f.WriteAt(chunk, s.at)
	s.at += int64(n)
	return err
}

func (s *sparseFile) PutZeros(length int64) error {
	s.at += length
	return s.f.Truncate(s.at)
}

// flushingSink syncs a file regularly and drops its pages from the page cache.
type flushingSink struct {
	sink
	f          *os.File
	untilFlush int64 // bytes until the next sync
}

// flushEvery is the maximum number of dirty bytes in the page cache.
const flushEvery = 32 << 20

func (s *flushingSink) Put(chunk []byte) error {
	if err := s.sink.Put(chunk); err != nil {
		return err
	}
	if s.untilFlush -= int64(len(chunk)); s.untilFlush > 0 {
		return nil
	}
	s.untilFlush = flushEvery
	if err := unix.Fdatasync(int(s.f.Fd())); err != nil {
		return &os.PathError{Op: "sync", Path: s.f.Name(), Err: err}
	}
	_ = unix.Fadvise(int(s.f.Fd()), 0, 0, unix.FADV_DONTNEED) // if this fails, the pages stay cached
	return nil
}

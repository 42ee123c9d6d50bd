package outfile

import (
	"io"
	"os"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
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
	switch compression {
	case Gzip:
		return gzip.NewWriter(w)
	case Zstd:
		return newZstdEncoder(w)
	}
	return nopCloser{w}
}

// nopCloser ignores Close.
type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// newZstdEncoder returns an encoder with bounded memory: its concurrency does not depend on the
// number of CPUs, and its window has the size of a chunk.
func newZstdEncoder(w io.Writer) *zstd.Encoder {
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(disk.ChunkSize))
	if err != nil {
		panic("outfile: " + err.Error()) // the options are valid
	}
	return z
}

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

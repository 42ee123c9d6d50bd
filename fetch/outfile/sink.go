package outfile

import (
	"bytes"
	"io"
	"os"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// stream writes chunks to what has no part that could be taken up again.
type stream struct{ io.WriteCloser }

var zeroChunk [disk.ChunkSize]byte

func (s stream) Put(chunk []byte) error {
	_, err := s.Write(chunk)
	return err
}

func (s stream) PutZeros(length int64) error { return s.Put(zeroChunk[:length]) }

// streamTo packs what is written into w. Only Close ends it.
func streamTo(w io.Writer, packing Packing) io.WriteCloser {
	switch packing {
	case Gzip:
		return gzip.NewWriter(w)
	case Zstd:
		return zstdTo(w)
	}
	return open{w}
}

// open is not closed.
type open struct{ io.Writer }

func (open) Close() error { return nil }

// zstdTo bounds the memory: it does not grow with the processors, and the window is a
// chunk.
func zstdTo(w io.Writer) *zstd.Encoder {
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(disk.ChunkSize))
	if err != nil {
		panic("outfile: " + err.Error()) // the options are right
	}
	return z
}

// sparse writes chunks to a file as they are, and leaves holes for zeros. The end of the
// file tells how far it is.
type sparse struct {
	f  *os.File
	at int64
}

func (s *sparse) Put(chunk []byte) error {
	n, err := s.f.WriteAt(chunk, s.at)
	s.at += int64(n)
	return err
}

func (s *sparse) PutZeros(length int64) error {
	s.at += length
	return s.f.Truncate(s.at)
}

func isZero(b []byte) bool { return bytes.Equal(b, zeroChunk[:len(b)]) }

// flushed writes to a file whose pages do not stay in the page cache: others have
// better use for it.
type flushed struct {
	sink
	f   *os.File
	due int64 // bytes until the next time
}

// flushEvery is how many bytes may be on their way to the disk.
const flushEvery = 32 << 20

func (s *flushed) Put(chunk []byte) error {
	if err := s.sink.Put(chunk); err != nil {
		return err
	}
	if s.due -= int64(len(chunk)); s.due > 0 {
		return nil
	}
	s.due = flushEvery
	if err := unix.Fdatasync(int(s.f.Fd())); err != nil {
		return &os.PathError{Op: "sync", Path: s.f.Name(), Err: err}
	}
	_ = unix.Fadvise(int(s.f.Fd()), 0, 0, unix.FADV_DONTNEED) // only a favour to others
	return nil
}

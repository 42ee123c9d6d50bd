package outfile

import (
	"bytes"
	"os"

	"golang.org/x/sys/unix"
)

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

package outfile

import (
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

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

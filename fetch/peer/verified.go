package peer

import (
	"errors"
	"fmt"
	"io"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// errDamaged says that a copy is not what its manifest says.
var errDamaged = errors.New("the copy is damaged")

// verified reads an image for those who cannot check it themselves: it gives out no
// byte of a chunk that is not as the manifest says. It is an io.ReadSeeker.
type verified struct {
	*disk.Reader
	m      *disk.Manifest
	at     int64
	buf    []byte
	n      int64 // the chunk that is in chunk; -1: none
	chunk  []byte
	failed error // of a read, which net/http keeps to itself
}

func openVerified(d *disk.Disk, id disk.ID) (*verified, error) {
	m, err := d.Manifest(id)
	if err != nil {
		return nil, err
	}
	r, err := d.Open(id)
	if err == nil && r.Size() != m.Size() {
		err = errors.Join(fmt.Errorf("open %s: it has %d bytes, and its manifest is of %d", id, r.Size(), m.Size()), r.Close())
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return &verified{Reader: r, m: m, buf: make([]byte, disk.ChunkSize), n: -1}, nil
}

func (v *verified) Close() error { return errors.Join(v.Reader.Close(), v.m.Close()) }

// load reads chunk n, of which nil is returned if it is zeros.
func (v *verified) load(n int64) ([]byte, error) {
	if zero, err := v.m.Zero(n); zero || err != nil {
		return nil, err
	}
	if v.n == n {
		return v.chunk, nil
	}
	v.n = -1
	want, err := v.m.At(n)
	if err != nil {
		return nil, err
	}
	chunk := v.buf[:v.m.Length(n)]
	if _, err := v.ReadAt(chunk, n*disk.ChunkSize); err != nil {
		return nil, err
	}
	if disk.SumChunk(chunk) != want {
		return nil, fmt.Errorf("%w: chunk %d", errDamaged, n)
	}
	v.n, v.chunk = n, chunk
	return chunk, nil
}

// Read reads no further than to the end of a chunk.
func (v *verified) Read(p []byte) (int, error) {
	if v.at >= v.Size() {
		return 0, io.EOF
	}
	n, from := v.at/disk.ChunkSize, v.at%disk.ChunkSize
	chunk, err := v.load(n)
	if err != nil {
		v.failed = err
		return 0, err
	}
	length := int(min(int64(len(p)), v.m.Length(n)-from))
	if chunk == nil {
		clear(p[:length])
	} else {
		copy(p[:length], chunk[from:])
	}
	v.at += int64(length)
	return length, nil
}

// Seek is for what net/http needs.
func (v *verified) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += v.at
	case io.SeekEnd:
		offset += v.Size()
	}
	if offset < 0 {
		return 0, errors.New("seek before the start")
	}
	v.at = offset
	return offset, nil
}

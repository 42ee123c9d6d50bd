package qcow2

import (
	"bytes"
	"fmt"
	"io"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"
)

// maxWindow bounds what a zstd frame may ask of memory: as much as the specification
// wants of every decoder, and four times of what QEMU writes.
const maxWindow = 8 << 20

// unpacker unpacks compressed clusters, and keeps the last one for who reads it in
// pieces.
type unpacker struct {
	zstd    bool
	in      bytes.Reader
	buf     []byte
	inflate io.ReadCloser
	decoder *zstd.Decoder

	entry   uint64 // the cluster kept; 0: none
	cluster []byte
}

// packedRange returns where the compressed cluster of an L2 entry lies. The number of
// sectors that it touches is all that is said of its size, and the last one may be cut
// off by the end of the file.
func (m *Image) packedRange(entry uint64) (offset, length int64, err error) {
	bits := 62 - (m.header.ClusterBits - 8)
	offset = int64(entry & (1<<bits - 1))
	sectors := int64(entry & (1<<62 - 1) >> bits)
	length = (sectors+1)*sector - offset%sector
	if offset == 0 || offset >= m.file.size {
		return 0, 0, refuse(hintDamaged, "a compressed cluster of the qcow2 image lies outside the file")
	}
	return offset, min(length, m.file.size-offset), nil
}

// readPacked fills p from the compressed cluster of e.
func (m *Image) readPacked(p []byte, e extent) error {
	u := &m.unpack
	size := int(m.header.clusterSize())
	if u.entry != e.entry && len(p) == size {
		return m.unpackCluster(p, e.entry)
	}
	if u.entry != e.entry {
		if u.cluster == nil {
			u.cluster = make([]byte, size)
		}
		u.entry = 0
		if err := m.unpackCluster(u.cluster, e.entry); err != nil {
			return err
		}
		u.entry = e.entry
	}
	copy(p, u.cluster[e.skip:])
	return nil
}

func (m *Image) unpackCluster(p []byte, entry uint64) error {
	offset, length, err := m.packedRange(entry)
	if err != nil {
		return err
	}
	u := &m.unpack
	if int64(cap(u.buf)) < length {
		// A cluster may take up to twice its size.
		u.buf = make([]byte, 2*m.header.clusterSize())
	}
	b := u.buf[:length]
	if err := m.file.read(b, offset); err != nil {
		return err
	}
	if err := u.fill(p, b); err != nil {
		return refuse(hintDamaged, "a compressed cluster of the qcow2 image is damaged")
	}
	return nil
}

// fill unpacks b until p is full. What follows in b belongs to another cluster.
func (u *unpacker) fill(p, b []byte) error {
	r, err := u.reader(b)
	if err != nil {
		return err
	}
	_, err = io.ReadFull(r, p)
	return err
}

func (u *unpacker) reader(b []byte) (io.Reader, error) {
	u.in.Reset(b)
	var err error
	switch {
	case u.zstd && u.decoder == nil:
		u.decoder, err = zstd.NewReader(&u.in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(maxWindow))
	case u.zstd:
		err = u.decoder.Reset(&u.in)
	case u.inflate == nil:
		u.inflate = flate.NewReader(&u.in)
	default:
		err = u.inflate.(flate.Resetter).Reset(&u.in, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("unpack cluster: %w", err)
	}
	if u.zstd {
		return u.decoder, nil
	}
	return u.inflate, nil
}

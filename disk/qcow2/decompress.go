package qcow2

import (
	"bytes"
	"io"
	"runtime"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
)

const (
	// maxWindow limits the memory of a zstd frame: twice the largest cluster.
	maxWindow = 4 << 20

	decompressWorkers = 4
	maxBatchBytes     = 1 << 20 // decompressed in parallel
	maxBatchClusters  = 64      // decompressed in parallel
)

// compressedRange returns the range of a compressed cluster in a file of size bytes. The entry
// contains the number of sectors that the cluster touches, not its size in bytes. The file may end
// within the last sector.
func (h *header) compressedRange(entry uint64, size int64) (offset, length int64, err error) {
	bits := 62 - (h.ClusterBits - 8)
	offset = int64(entry & (1<<bits - 1))
	sectors := int64(entry & (1<<62 - 1) >> bits)
	length = (sectors+1)*sector - offset%sector
	if offset == 0 || offset >= size {
		return 0, 0, refuse(hintDamaged, "a compressed cluster of the qcow2 image lies outside the file")
	}
	return offset, min(length, size-offset), nil
}

// decompression is the state for the decompression of the clusters of an image.
type decompression struct {
	idle chan *decompressor
	jobs []decompressJob

	kept    uint64 // the L2 entry of the cached cluster; 0: none
	cluster []byte // cached: the last cluster that was only partly read
}

type decompressJob struct {
	in  []byte
	out []byte // one cluster
}

func newDecompression(h *header) decompression {
	u := decompression{idle: make(chan *decompressor, min(runtime.GOMAXPROCS(0), decompressWorkers))}
	for range cap(u.idle) {
		u.idle <- &decompressor{zstd: h.Compression != 0}
	}
	n := min(maxBatchClusters, maxBatchBytes>>h.ClusterBits)
	u.jobs = make([]decompressJob, 0, max(n, cap(u.idle)))
	return u
}

// readCompressed reads the extent e at off, and all compressed clusters after it that fit completely
// into p.
func (m *Image) readCompressed(p []byte, off int64, e extent) (n int, err error) {
	u := &m.decompression
	size := int(m.header.clusterSize())
	if e.length < int64(size) {
		return int(e.length), m.readPartOfCompressed(p[:e.length], e)
	}
	u.jobs = u.jobs[:0]
	for e.kind == compressed && e.length == int64(size) && len(p)-n >= size && len(u.jobs) < cap(u.jobs) {
		if err := m.addJob(p[n:n+size], e.entry); err != nil {
			return 0, err
		}
		if n += size; len(p)-n >= size {
			if e, err = m.lookup(off + int64(n)); err != nil {
				return 0, err
			}
		}
	}
	return n, u.run()
}

// readPartOfCompressed reads a part of a compressed cluster, and caches the decompressed cluster.
func (m *Image) readPartOfCompressed(p []byte, e extent) error {
	u := &m.decompression
	if u.kept != e.entry {
		if u.cluster == nil {
			u.cluster = make([]byte, m.header.clusterSize())
		}
		u.kept, u.jobs = 0, u.jobs[:0]
		if err := m.addJob(u.cluster, e.entry); err != nil {
			return err
		}
		if err := u.run(); err != nil {
			return err
		}
		u.kept = e.entry
	}
	copy(p, u.cluster[e.skip:])
	return nil
}

// addJob reads the compressed cluster of an entry, and adds a job to decompress it to out.
func (m *Image) addJob(out []byte, entry uint64) error {
	offset, length, err := m.header.compressedRange(entry, m.file.size)
	if err != nil {
		return err
	}
	u := &m.decompression
	u.jobs = u.jobs[:len(u.jobs)+1]
	j := &u.jobs[len(u.jobs)-1]
	j.out = out
	if int64(cap(j.in)) < length {
		j.in = make([]byte, length)
	}
	j.in = j.in[:length]
	return m.file.read(j.in, offset)
}

// run runs the jobs in parallel.
func (u *decompression) run() error {
	var group errgroup.Group
	for _, j := range u.jobs {
		group.Go(func() error {
			w := <-u.idle
			defer func() { u.idle <- w }()
			return w.fill(j.out, j.in)
		})
	}
	if group.Wait() != nil {
		return refuse(hintDamaged, "a compressed cluster of the qcow2 image is damaged")
	}
	return nil
}

// decompressor decompresses clusters one after the other.
type decompressor struct {
	zstd    bool
	in      bytes.Reader
	inflate io.Reader
	decoder *zstd.Decoder
}

// fill decompresses b until p is full. The remaining bytes of b belong to other clusters.
func (u *decompressor) fill(p, b []byte) error {
	u.in.Reset(b)
	r, err := u.reader()
	if err != nil {
		return err
	}
	_, err = io.ReadFull(r, p)
	return err
}

func (u *decompressor) reader() (r io.Reader, err error) {
	switch {
	case u.zstd && u.decoder == nil:
		u.decoder, err = zstd.NewReader(&u.in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow))
		return u.decoder, err
	case u.zstd:
		return u.decoder, u.decoder.Reset(&u.in)
	case u.inflate == nil:
		u.inflate = flate.NewReader(&u.in)
		return u.inflate, nil
	}
	return u.inflate, u.inflate.(flate.Resetter).Reset(&u.in, nil) // as documented
}

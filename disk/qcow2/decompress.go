package qcow2

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"sync"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"
)

const (
	// maxWindow bounds what a zstd frame may ask of memory, to twice of what a cluster
	// can need.
	maxWindow = 4 << 20

	unpackWorkers = 4
	unpackBytes   = 1 << 20 // of the disk, unpacked side by side
	unpackMost    = 64      // clusters, likewise
)

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

// unpacking is what the compressed clusters of an image are unpacked with.
type unpacking struct {
	workers []*unpacker
	jobs    []unpackJob

	kept    uint64 // the entry of the cluster that was last read in part; 0: none
	cluster []byte
}

type unpackJob struct {
	in  []byte
	out []byte // one cluster
	err error
}

func newUnpacking(h *header) unpacking {
	var u unpacking
	for range min(runtime.GOMAXPROCS(0), unpackWorkers) {
		u.workers = append(u.workers, &unpacker{zstd: h.Compression != 0})
	}
	n := min(unpackMost, unpackBytes>>h.ClusterBits)
	u.jobs = make([]unpackJob, 0, max(n, len(u.workers)))
	return u
}

// readPacked reads at off, where e is, and from the compressed clusters that follow as
// long as p has room for whole ones.
func (m *Image) readPacked(p []byte, off int64, e extent) (n int, err error) {
	u := &m.unpacking
	size := int(m.header.clusterSize())
	if e.length < int64(size) {
		return int(e.length), m.readPart(p[:e.length], e)
	}
	u.jobs = u.jobs[:0]
	for e.kind == packed && e.length == int64(size) && len(p)-n >= size && len(u.jobs) < cap(u.jobs) {
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

// readPart reads a part of a compressed cluster, and keeps the cluster.
func (m *Image) readPart(p []byte, e extent) error {
	u := &m.unpacking
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

// addJob reads the compressed cluster of an entry, which out is for.
func (m *Image) addJob(out []byte, entry uint64) error {
	offset, length, err := m.packedRange(entry)
	if err != nil {
		return err
	}
	u := &m.unpacking
	u.jobs = u.jobs[:len(u.jobs)+1]
	j := &u.jobs[len(u.jobs)-1]
	j.out, j.err = out, nil
	if int64(cap(j.in)) < length {
		j.in = make([]byte, length)
	}
	j.in = j.in[:length]
	return m.file.read(j.in, offset)
}

// run does the jobs, several at a time.
func (u *unpacking) run() error {
	queue := make(chan *unpackJob, len(u.jobs))
	for i := range u.jobs {
		queue <- &u.jobs[i]
	}
	close(queue)
	work := func(w *unpacker) {
		for j := range queue {
			j.err = w.fill(j.out, j.in)
		}
	}
	var group sync.WaitGroup
	for _, w := range u.workers[1:min(len(u.workers), len(u.jobs))] {
		group.Go(func() { work(w) })
	}
	work(u.workers[0])
	group.Wait()
	for _, j := range u.jobs {
		if j.err != nil {
			return refuse(hintDamaged, "a compressed cluster of the qcow2 image is damaged")
		}
	}
	return nil
}

// unpacker unpacks one cluster after the other.
type unpacker struct {
	zstd    bool
	in      bytes.Reader
	inflate io.Reader
	decoder *zstd.Decoder
}

// fill unpacks b until p is full. What follows in b belongs to another cluster.
func (u *unpacker) fill(p, b []byte) error {
	u.in.Reset(b)
	r, err := u.reader()
	if err != nil {
		return err
	}
	_, err = io.ReadFull(r, p)
	return err
}

func (u *unpacker) reader() (r io.Reader, err error) {
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
	resetter, ok := u.inflate.(flate.Resetter)
	if !ok {
		return nil, errors.New("flate reader cannot be used again")
	}
	return u.inflate, resetter.Reset(&u.in, nil)
}

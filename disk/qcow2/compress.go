package qcow2

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"github.com/klauspost/compress/flate"
)

const (
	// QEMU packs with a window of 4 KiB, so that a reader need not have more.
	packWindow = 4 << 10

	// Unpacking costs whoever reads a cluster, so a sixteenth has to be gained.
	packLimit = encodeCluster / 16 * 15

	packBatch   = 64 // clusters that are read, then packed side by side
	packWorkers = 16 // a MiB of memory each
)

// packer packs clusters of a source with as many processors as there are.
type packer struct {
	src     Source
	in      []byte
	batch   []job
	workers []*flate.Writer
}

// job is one cluster on its way.
type job struct {
	cursor cursor
	data   []byte // of in
	out    output
	zero   bool
	err    error
}

// output takes as many bytes as are worth it.
type output []byte

var errLarge = errors.New("cluster does not become smaller")

func (o *output) Write(p []byte) (int, error) {
	if len(*o)+len(p) > packLimit {
		return 0, errLarge
	}
	*o = append(*o, p...)
	return len(p), nil
}

func newPacker(src Source) *packer {
	k := &packer{src: src, in: make([]byte, packBatch*encodeCluster), batch: make([]job, 0, packBatch)}
	for range min(runtime.GOMAXPROCS(0), packWorkers) {
		w, err := flate.NewWriterWindow(io.Discard, packWindow)
		if err != nil {
			panic("qcow2: " + err.Error())
		}
		k.workers = append(k.workers, w)
	}
	return k
}

// add adds a cluster to the batch, and reports whether the batch is full.
func (k *packer) add(c cursor) bool {
	n := len(k.batch)
	k.batch = k.batch[:n+1]
	b := &k.batch[n]
	b.cursor, b.data = c, k.in[n*encodeCluster:(n+1)*encodeCluster]
	return n+1 == cap(k.batch)
}

// run reads and packs the batch.
func (k *packer) run() error {
	if err := k.read(); err != nil {
		return err
	}
	queue := make(chan *job, packBatch)
	for i := range k.batch {
		queue <- &k.batch[i]
	}
	close(queue)
	var group sync.WaitGroup
	for _, w := range k.workers {
		group.Go(func() {
			for b := range queue {
				b.pack(w)
			}
		})
	}
	group.Wait()
	for i := range k.batch {
		if err := k.batch[i].err; err != nil {
			return err
		}
	}
	return nil
}

// read reads clusters that lie side by side in one go.
func (k *packer) read() error {
	for i := 0; i < len(k.batch); {
		first, n := k.batch[i].cursor.offset(), 1
		for i+n < len(k.batch) && k.batch[i+n].cursor.offset() == first+int64(n)<<encodeBits {
			n++
		}
		if err := readDisk(k.src, k.in[i*encodeCluster:(i+n)*encodeCluster], first); err != nil {
			return err
		}
		i += n
	}
	return nil
}

var zeros [encodeCluster]byte

func (b *job) pack(w *flate.Writer) {
	b.out, b.err = b.out[:0], nil
	if b.zero = bytes.Equal(b.data, zeros[:]); b.zero {
		return
	}
	w.Reset(&b.out)
	_, err := w.Write(b.data)
	if err == nil {
		err = w.Close()
	}
	switch {
	case errors.Is(err, errLarge):
		b.out = b.out[:0]
	case err != nil:
		b.err = fmt.Errorf("pack cluster: %w", err)
	}
}

// measure packs all clusters for their sizes alone, and drops those that are zeros.
func (k *packer) measure(tables []*table) error {
	for n, t := range tables {
		t.sizes = make([]uint16, tableEntries)
		for i := t.next(0); i < tableEntries; i = t.next(i + 1) {
			if full := k.add(cursor{t: t, table: n, i: i}); full {
				if err := k.note(); err != nil {
					return err
				}
			}
		}
	}
	return k.note()
}

func (k *packer) note() error {
	if err := k.run(); err != nil {
		return err
	}
	for _, b := range k.batch {
		if b.zero {
			b.cursor.t.drop(b.cursor.i)
		}
		b.cursor.t.sizes[b.cursor.i] = uint16(len(b.out))
	}
	k.batch = k.batch[:0]
	return nil
}

// errChanged says that the second pass over the data gave something else than the first.
var errChanged = errors.New("the disk changed while it was read")

// pack packs clusters from c on, as many as a batch holds, and appends them to b.
func (k *packer) pack(b []byte, l *layout, c cursor) ([]byte, error) {
	defer func() { k.batch = k.batch[:0] }()
	for ok := true; ok && !k.add(c); {
		c, ok = l.nextPacked(c)
	}
	if err := k.run(); err != nil {
		return nil, err
	}
	for _, j := range k.batch {
		if len(j.out) != j.cursor.t.size(j.cursor.i) {
			return nil, errChanged
		}
		b = append(b, j.out...)
	}
	return b, nil
}

// nextPacked makes the block of packed clusters that pos is in, or the rest of the last
// cluster of the file.
func (e *Encoder) nextPacked() (err error) {
	l := &e.layout
	c, ok := l.firstPacked(e.pos - l.packed)
	if !ok {
		e.block, e.blockOffset = append(e.block[:0], zeros[:l.size-e.pos]...), e.pos
		return nil
	}
	e.block, err = e.packer.pack(e.block[:0], l, c)
	e.blockOffset = l.packed + c.packed
	return err
}

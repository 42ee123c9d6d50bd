package qcow2

import (
	"bytes"
	"errors"
	"io"
	"runtime"

	"github.com/klauspost/compress/flate"
	"golang.org/x/sync/errgroup"
)

const (
	// QEMU compresses with a window of 4 KiB, and another reader may not support a larger window.
	compressWindow = 4 << 10

	// Decompression costs time at every read, so compression must save at least a sixteenth.
	maxCompressed = encodeCluster / 16 * 15

	batchClusters      = 64 // clusters that are read and then compressed in parallel
	maxCompressWorkers = 16 // each uses 1 MiB of memory
)

// compressor compresses clusters of a source on all CPUs.
type compressor struct {
	src   Source
	in    []byte
	batch []compressJob
	idle  chan *flate.Writer
}

// compressJob compresses one cluster.
type compressJob struct {
	cursor cursor
	data   []byte // in compressor.in
	out    limitedBuffer
	zero   bool
}

// limitedBuffer accepts at most maxCompressed bytes.
type limitedBuffer []byte

var errNotSmaller = errors.New("cluster does not become smaller")

func (o *limitedBuffer) Write(p []byte) (int, error) {
	if len(*o)+len(p) > maxCompressed {
		return 0, errNotSmaller
	}
	*o = append(*o, p...)
	return len(p), nil
}

func newCompressor(src Source) *compressor {
	k := &compressor{
		src: src, in: make([]byte, batchClusters*encodeCluster), batch: make([]compressJob, 0, batchClusters),
		idle: make(chan *flate.Writer, min(runtime.GOMAXPROCS(0), maxCompressWorkers)),
	}
	for range cap(k.idle) {
		w, err := flate.NewWriterWindow(io.Discard, compressWindow)
		if err != nil {
			panic("qcow2: " + err.Error())
		}
		k.idle <- w
	}
	return k
}

// add adds a cluster to the batch, and reports whether the batch is full.
func (k *compressor) add(c cursor) bool {
	n := len(k.batch)
	k.batch = k.batch[:n+1]
	b := &k.batch[n]
	b.cursor, b.data = c, k.in[n*encodeCluster:(n+1)*encodeCluster]
	return n+1 == cap(k.batch)
}

// run reads and compresses the batch.
func (k *compressor) run() error {
	if err := k.read(); err != nil {
		return err
	}
	var group errgroup.Group
	for i := range k.batch {
		group.Go(func() error {
			w := <-k.idle
			defer func() { k.idle <- w }()
			return k.batch[i].compress(w)
		})
	}
	return group.Wait()
}

// read reads the clusters of the batch. It reads adjacent clusters in one call.
func (k *compressor) read() error {
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

func (b *compressJob) compress(w *flate.Writer) error {
	b.out = b.out[:0]
	if b.zero = bytes.Equal(b.data, zeros[:]); b.zero {
		return nil
	}
	w.Reset(&b.out)
	_, err := w.Write(b.data)
	if err == nil {
		err = w.Close()
	}
	if errors.Is(err, errNotSmaller) {
		b.out = b.out[:0]
		return nil
	}
	return err
}

// measure compresses all clusters to compute their sizes, and removes clusters of zeros.
func (k *compressor) measure(tables []*l2Plan) error {
	for n, t := range tables {
		t.sizes = make([]uint16, tableEntries)
		for i := t.next(0); i < tableEntries; i = t.next(i + 1) {
			if full := k.add(cursor{t: t, table: n, i: i}); full {
				if err := k.recordSizes(); err != nil {
					return err
				}
			}
		}
	}
	return k.recordSizes()
}

// recordSizes runs the batch and records the sizes of its clusters.
func (k *compressor) recordSizes() error {
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

// errChanged: the second pass over the data had a different result from the first one.
var errChanged = errors.New("the image changed while it was read")

// appendCompressed compresses a batch of clusters, beginning with c, and appends them to b.
func (k *compressor) appendCompressed(b []byte, l *layout, c cursor) ([]byte, error) {
	defer func() { k.batch = k.batch[:0] }()
	for ok := true; ok && !k.add(c); {
		c, ok = l.nextCompressed(c)
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

// nextCompressed produces the block of compressed clusters that contains pos, or the zeros at the end
// of the file.
func (e *Encoder) nextCompressed() (err error) {
	l := &e.layout
	c, ok := l.firstCompressed(e.pos - l.compressed)
	if !ok {
		e.block, e.blockOffset = append(e.block[:0], zeros[:l.size-e.pos]...), e.pos
		return nil
	}
	e.block, err = e.compressor.appendCompressed(e.block[:0], l, c)
	e.blockOffset = l.compressed + c.compressed
	return err
}

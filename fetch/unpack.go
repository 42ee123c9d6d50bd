package fetch

import (
	"context"
	"errors"
	"hash"
	"io"
	"sync/atomic"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// unpack downloads the packed file through a decompressor into part. After a broken connection, the
// decompressor continues with the next response. Its state is only in memory, so a partial file of an
// earlier process is discarded.
func (t *transfer) unpack(ctx context.Context, part *disk.Part) error {
	u := &unpacker{part: part, packing: t.packing, request: t.request}
	defer u.stop()
	return t.fetchAny(ctx, u)
}

// errStopped is the error that stops a decompressor if its result is not needed.
var errStopped = errors.New("unpacking was stopped")

// unpacker is the sink of the packed bytes. It passes them to a decompressor, which runs in its own
// goroutine and fills the part.
type unpacker struct {
	part    *disk.Part
	packing packing
	request Request

	received // packed bytes
	hashes   []packedHash
	in       *io.PipeWriter // input of the decompressor; nil: none is running
	to       io.Writer      // in, the hashes, and the verification of the packed file
	result   chan error     // result of the decompressor
}

// packedHash computes a digest that the packed file must have.
type packedHash struct {
	hash.Hash
	want ident.Digest
}

// Begin discards the unpacked bytes and starts a new decompressor. The size of the unpacked image is
// not known.
func (u *unpacker) Begin(o disk.PartSource) error {
	u.stop()
	if err := u.part.Begin(disk.PartSource{ID: o.ID, Size: -1}); err != nil {
		return err
	}
	out, in := io.Pipe()
	u.received, u.hashes, u.in, u.result = received{source: o}, nil, in, make(chan error, 1)
	to := []io.Writer{in}
	for _, d := range []ident.Digest{u.request.PackedDigest, u.request.alsoPacked} {
		if !d.IsZero() {
			h := packedHash{d.Algorithm().New(), d}
			u.hashes, to = append(u.hashes, h), append(to, h)
		}
	}
	if v := u.request.signed; v != nil && v.newVerifier != nil {
		to = append(to, v.begin())
	}
	u.to = io.MultiWriter(to...)
	trailer := !u.request.Digest.IsZero() || len(to) > 1
	go func() {
		err := u.run(out, trailer)
		out.CloseWithError(err) // unblocks writers
		u.result <- err
	}()
	return nil
}

// run unpacks the bytes of the pipe into the part until the pipe ends. trailer: other bytes may follow the packed bytes.
func (u *unpacker) run(out io.Reader, trailer bool) error {
	var packed atomic.Int64 // number of packed bytes; atomic, because decompressors read ahead in other goroutines
	// The pipe is closed when the download ends, so no context is needed here.
	r := u.packing.reader(CountReader(context.Background(), out, &packed), trailer)
	defer r.Close()
	_, err := u.part.ReadFrom(&boundedReader{unpacker: u, from: r, packed: &packed})
	return err
}

// ReadFrom writes the packed bytes of r to the decompressor.
func (u *unpacker) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.CopyBuffer(u.to, r, make([]byte, 256<<10))
	u.offset += n
	return n, err
}

// stop stops the decompressor, if one is running, and waits until it has ended.
func (u *unpacker) stop() {
	if u.in != nil {
		u.in.CloseWithError(errStopped)
		<-u.result
		u.in = nil
	}
}

// finish waits until all bytes are unpacked, and compares the digests of the packed file. Part.Commit judges the signature.
func (u *unpacker) finish() error {
	u.in.Close()
	err := <-u.result
	u.in = nil
	if err != nil {
		return err
	}
	for _, h := range u.hashes {
		if got := h.want.Algorithm().Digest(h); got != h.want {
			return Errorf(BadSource, "packed file: %w", &disk.ChecksumError{Want: h.want, Got: got})
		}
	}
	return nil
}

const (
	// maxRatio is the maximum number of bytes on disk for each packed byte, after the first freeRatio
	// bytes. Zeros do not count, because they become holes.
	maxRatio  = 1000
	freeRatio = 64 << 20
)

// boundedReader reads from a decompressor and limits the size of its output.
type boundedReader struct {
	*unpacker
	from   io.Reader
	packed *atomic.Int64
	read   int64
}

func (r *boundedReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.read += int64(n)
	if limit := r.request.MaxSize; limit > 0 && r.read > limit {
		return n, Errorf(BadSource, "unpack %s: %w: at most %d bytes are allowed", r.packing, disk.ErrTooLarge, limit)
	}
	if w, in := r.part.Written(), r.packed.Load(); w > freeRatio && w/maxRatio > in {
		return n, Errorf(BadSource, "unpack %s: the first %d packed bytes unpack to more than %d times their size, like a decompression bomb", r.packing, in, maxRatio)
	}
	if errors.Is(err, errStopped) {
		return n, errStopped
	}
	if err != nil && err != io.EOF {
		return n, &Error{Class: BadSource, Err: err}
	}
	return n, err
}

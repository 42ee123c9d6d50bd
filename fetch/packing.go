package fetch

import (
	"bufio"
	"cmp"
	"compress/bzip2"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/mikelolasagasti/xz"
)

// packing is the format of a packed file.
type packing string

const (
	notPacked packing = "none"
	packedGz  packing = "gz"
	packedXz  packing = "xz"
	packedZst packing = "zst"
	packedBz2 packing = "bz2"
)

// endings maps file name extensions to packings, for "auto".
var endings = map[string]packing{
	".gz": packedGz, ".gzip": packedGz, ".xz": packedXz, ".zst": packedZst, ".zstd": packedZst, ".bz2": packedBz2,
}

// packingOf returns the packing of the file. "auto" determines it from the extension of the first
// address. Mirrors have the same file, so a mirror with the extension of another packing is an error.
func packingOf(unpack string, addresses []address) (packing, error) {
	switch p := packing(unpack); p {
	case "", "auto":
		p = ending(addresses[0])
		for _, mirror := range addresses[1:] {
			if q := ending(mirror); q != notPacked && q != p {
				return "", Errorf(BadConfig, "mirror %s is packed as %s, but the first address as %s: declare unpack, or remove the mirror", mirror, q, p)
			}
		}
		return p, nil
	case notPacked, packedGz, packedXz, packedZst, packedBz2:
		return p, nil
	}
	return "", Errorf(BadConfig, "unpack %q is not known: use auto, none, gz, xz, zst or bz2", unpack)
}

func ending(a address) packing {
	return cmp.Or(endings[strings.ToLower(path.Ext(a.base()))], notPacked)
}

// UnpackByName returns the unpacked bytes of r if name has the extension of a packed file. Otherwise it returns r,
// and packed is false. Bytes that follow the packed bytes are ignored.
func UnpackByName(name string, r io.ReadCloser) (unpacked io.ReadCloser, packed bool) {
	p := endings[strings.ToLower(path.Ext(name))]
	if p == "" {
		return r, false
	}
	return p.reader(r, true), true
}

// maxWindow limits the memory for unpacking. The programs zstd and xz do not use a larger window
// unless an option allows it.
const maxWindow = 128 << 20

// reader returns the unpacked bytes of r. r may be several packed files, one after the other. Truncated data is an
// error. Zeros at the end are ignored, because files are padded with them. Other foreign bytes at the end are ignored
// only if trailer is true: then a checksum decides about the file. All bytes of r are always read.
func (p packing) reader(r io.Reader, trailer bool) io.ReadCloser {
	u := &unpackReader{packing: p, in: &packedInput{Reader: bufio.NewReaderSize(r, 64<<10)}, trailer: trailer}
	if u.from, u.err = p.open(u.in); u.err != nil {
		u.from = io.NopCloser(nil)
	}
	if u.err == io.EOF {
		u.err = io.ErrUnexpectedEOF
	}
	return u
}

func (p packing) open(in *packedInput) (io.ReadCloser, error) {
	switch p {
	case packedGz:
		z, err := gzip.NewReader(in.Reader)
		if err != nil {
			return nil, err
		}
		z.Multistream(false)
		return &gzipMembers{z, in.Reader}, nil
	case packedZst:
		// With several goroutines, the decoder needs 50 % more processor time. disk.Part hashes and writes
		// at the same time anyway.
		d, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	case packedXz:
		z, err := xz.NewReader(in, maxWindow)
		return io.NopCloser(z), err
	case packedBz2:
		return io.NopCloser(bzip2.NewReader(in)), nil
	}
	panic("fetch: nothing to unpack: " + string(p))
}

// unpackReader reads the unpacked bytes of a file.
type unpackReader struct {
	packing packing
	in      *packedInput
	from    io.ReadCloser
	trailer bool // other bytes than zeros may follow the packed bytes
	size    int64
	err     error // for all further reads
}

// Close releases the decompressor.
func (u *unpackReader) Close() error { return u.from.Close() }

func (u *unpackReader) Read(p []byte) (n int, err error) {
	if u.err == nil {
		n, u.err = u.from.Read(p)
		u.size += int64(n)
	}
	if u.err != nil && u.err != io.EOF {
		u.err = u.explain(u.err)
	}
	return n, u.err
}

// explain returns the error of the file for an error of its decompressor, or io.EOF if the file is accepted.
func (u *unpackReader) explain(err error) error {
	var known *unpackError
	switch read, foreign := u.packing.foreign(err); {
	case errors.As(err, &known), errors.Is(err, errStopped):
		return err
	case foreign && u.size > 0:
		zeros, err := u.in.skip(read)
		if err == nil && !zeros && !u.trailer {
			err = errors.New("other bytes follow the packed ones, such as a signature: remove these bytes from the file, or declare checksum or packedChecksum to accept the file as it is")
		}
		if err == nil {
			return io.EOF
		}
		return &unpackError{u.packing, err}
	case foreign:
		err = fmt.Errorf("the file is not packed with %s: if it is the image itself, declare unpack: none, or rename the file to upload", u.packing)
	case errors.Is(err, xz.ErrMemlimit), errors.Is(err, zstd.ErrWindowSizeExceeded):
		err = fmt.Errorf("unpacking needs a dictionary of more than %d MiB, which is not supported: pack the file without options for a larger one", maxWindow>>20)
	case errors.Is(err, xz.ErrOptions):
		err = errors.New("the file uses filters that are not supported: pack it again, with xz -6")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("the file is truncated")
	default:
		err = fmt.Errorf("the file is damaged: %w", err)
	}
	return &unpackError{u.packing, err}
}

// unpackError means that a packed file cannot be unpacked.
type unpackError struct {
	packing packing
	err     error
}

func (e *unpackError) Error() string { return fmt.Sprintf("unpack %s: %v", e.packing, e.err) }

func (e *unpackError) Unwrap() error { return e.err }

// foreign reports whether err means that bytes in another format begin: the file itself, or what follows its packed
// bytes. read is how many of these bytes the decompressor has read. xz reports no number: then read is -1, and the
// bytes are not all zeros.
func (p packing) foreign(err error) (read int, foreign bool) {
	switch {
	case errors.Is(err, errForeign), errors.Is(err, gzip.ErrHeader):
		return 0, true
	case errors.Is(err, xz.ErrFormat):
		return -1, true
	case errors.Is(err, zstd.ErrMagicMismatch):
		return 4, true
	case err == bzip2.StructuralError("bad magic value"), err == bzip2.StructuralError("bad magic value in continuation file"):
		return 2, true
	}
	return 0, false
}

// errForeign means that bytes without a gzip header follow a gzip file.
var errForeign = errors.New("no gzip header")

// gzipMembers reads gzip files that follow each other.
type gzipMembers struct {
	*gzip.Reader
	in *bufio.Reader
}

func (g *gzipMembers) Read(p []byte) (int, error) {
	n, err := g.Reader.Read(p)
	if err != io.EOF {
		return n, err
	}
	switch head, err := g.in.Peek(2); {
	case string(head) == "\x1f\x8b":
		if err := g.Reset(g.in); err != nil {
			return n, fmt.Errorf("a later header: %v", err) // unlike an error of the first header, no sign of another format
		}
		g.Multistream(false)
		return n, nil
	case len(head) == 0:
		return n, err
	}
	return n, errForeign
}

// packedInput reads the packed bytes.
type packedInput struct {
	*bufio.Reader
	last uint64 // the last eight bytes that were read
}

func (i *packedInput) Read(p []byte) (int, error) {
	n, err := i.Reader.Read(p)
	for _, b := range p[max(0, n-8):n] {
		i.last = i.last<<8 | uint64(b)
	}
	return n, err
}

// ReadByte is used by the decoder of bzip2.
func (i *packedInput) ReadByte() (byte, error) {
	b, err := i.Reader.ReadByte()
	if err == nil {
		i.last = i.last<<8 | uint64(b)
	}
	return b, err
}

// skip reads the rest. It reports whether the rest and some bytes before it are zeros. last is the number of
// these bytes; a negative last means that they are not zeros.
func (i *packedInput) skip(last int) (zeros bool, err error) {
	zeros = last >= 0 && i.last&(1<<(8*last)-1) == 0
	for buf := make([]byte, 32<<10); ; {
		n, err := i.Reader.Read(buf)
		for _, b := range buf[:n] {
			zeros = zeros && b == 0
		}
		if err == io.EOF {
			return zeros, nil
		}
		if err != nil {
			return zeros, err
		}
	}
}

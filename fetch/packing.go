package fetch

import (
	"cmp"
	"compress/bzip2"
	"io"
	"path"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// packing is how a file is packed at its source.
type packing string

const (
	notPacked packing = "none"
	packedGz  packing = "gz"
	packedXz  packing = "xz"
	packedZst packing = "zst"
	packedBz2 packing = "bz2"
)

// endings are the names that tell a packing to "auto".
var endings = map[string]packing{
	".gz": packedGz, ".gzip": packedGz, ".xz": packedXz, ".zst": packedZst, ".zstd": packedZst, ".bz2": packedBz2,
}

// packingOf decides what to unpack; "auto" goes by the name at the first address.
// Mirrors have the same file, so that one that tells another packing is a mistake.
func packingOf(unpack string, addresses []address) (packing, error) {
	switch p := packing(unpack); p {
	case "", "auto":
		p = ending(addresses[0])
		for _, mirror := range addresses[1:] {
			if q := ending(mirror); q != notPacked && q != p {
				return "", failf(Config, "mirror %s is packed as %s, and the first address as %s", mirror, q, p)
			}
		}
		return p, nil
	case notPacked, packedGz, packedXz, packedZst, packedBz2:
		return p, nil
	}
	return "", failf(Config, "unpack %q is not known: use auto, none, gz, xz, zst or bz2", unpack)
}

func ending(a address) packing {
	return cmp.Or(endings[strings.ToLower(path.Ext(a.base()))], notPacked)
}

// Unpacked unpacks r if name ends as that of a packed file does: as a download of one
// would. Otherwise it is r, and packed is false.
func Unpacked(name string, r io.ReadCloser) (unpacked io.ReadCloser, packed bool, err error) {
	p := endings[strings.ToLower(path.Ext(name))]
	if p == "" {
		return r, false, nil
	}
	unpacked, err = p.reader(r)
	return unpacked, true, err
}

// maxWindow bounds the memory of unpacking. It is what zstd and xz themselves
// accept and make at most unless they are told otherwise.
const maxWindow = 128 << 20

// reader unpacks r. The end of r in the middle of the packed data is an error, as
// is anything behind it that is not packed data again.
func (p packing) reader(r io.Reader) (io.ReadCloser, error) {
	switch p {
	case packedGz:
		return gzip.NewReader(r)
	case packedZst:
		d, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true), zstd.WithDecoderConcurrency(2))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	case packedXz:
		x, err := newXzReader(r)
		return io.NopCloser(x), err
	case packedBz2:
		return io.NopCloser(bzip2.NewReader(r)), nil
	}
	panic("fetch: nothing to unpack: " + string(p))
}

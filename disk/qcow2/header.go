package qcow2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The bounds that QEMU keeps as well, where no other reason is given. What is
// refused beyond QEMU's rules is what makes an image depend on anything but
// its own bytes.
const (
	sector            = 512
	minClusterBits    = 9
	maxClusterBits    = 21
	minExtendedBits   = 14
	maxL1Bytes        = 32 << 20
	maxRefcountBytes  = 8 << 20
	maxSnapshots      = 65536
	minSnapshotBytes  = 40
	maxRefcountOrder  = 6
	v2HeaderLength    = 72
	v3HeaderLength    = 104
	compressionOffset = 104

	// Five kinds of extensions are defined, each at most once. The bound
	// keeps a cluster full of empty ones from being read piece by piece.
	maxExtensions = 64

	// The L1 bound alone would let a few kilobytes declare 2 EiB. 64 TiB is
	// four times the largest file of ext4, which a volume on such an image has
	// to fit in, and small enough that sums of sizes never overflow.
	maxVirtualSize = 64 << 40
)

// Incompatible features, by their bits.
const (
	featureDirty = 1 << iota
	featureCorrupt
	featureDataFile
	featureCompression
	featureExtendedL2

	knownFeatures = 1<<iota - 1
)

// autoclearRawData says that an external data file is a raw disk.
const autoclearRawData = 1 << 1

// Header extensions that make an image more than its own plain bytes.
const (
	extensionEnd           = 0
	extensionBackingFormat = 0xe2792aca
	extensionDataFile      = 0x44415441
	extensionEncryption    = 0x0537be77
)

const (
	hintFlatten = "make a self-contained copy where you trust it: qemu-img convert -O qcow2"
	hintRepair  = "shut down what writes to it, and repair it: qemu-img check -r all"
	hintDamaged = "get an intact copy: qemu-img check says more"
)

// Magic begins every qcow2 file, and the older qcow files too.
const Magic = "QFI\xfb"

// header is a header of version 3 byte for byte, up to the compression type, the
// last field that there is. All numbers are big endian.
type header struct {
	Magic            [4]byte
	Version          uint32
	BackingOffset    uint64
	BackingLength    uint32
	ClusterBits      uint32
	Size             uint64
	Encryption       uint32
	L1Entries        uint32
	L1Offset         uint64
	RefcountOffset   uint64
	RefcountClusters uint32
	Snapshots        uint32
	SnapshotsOffset  uint64
	Incompatible     uint64
	Compatible       uint64
	Autoclear        uint64
	RefcountOrder    uint32
	Length           uint32
	Compression      uint8
}

// file is a qcow2 file, or what there is of it yet.
type file struct {
	r    io.ReaderAt
	size int64
}

// read fills b from offset. Where the file ends before, the error is
// io.ErrUnexpectedEOF.
func (f file) read(b []byte, offset int64) error {
	n, err := f.r.ReadAt(b, offset)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read image at %d: %w", offset, err)
}

// Inspect says how large a disk the qcow2 file of size bytes holds, or refuses the
// file with a *FormatError; any other error is one of reading r.
//
// The header, its extensions and the whole L1 table are checked, and no more than 33
// MiB are read. The L2 tables are not: there are as many as there is data, and a
// wrong entry in one costs its reader wrong sectors of this image, nothing of another
// file. Open reads them too.
func Inspect(r io.ReaderAt, size int64) (virtualSize int64, err error) {
	h, err := file{r, size}.inspect()
	if err != nil {
		return 0, err
	}
	return int64(h.Size), nil
}

func (f file) inspect() (*header, error) {
	h, err := f.readHeader()
	if err != nil {
		return nil, err
	}
	for _, check := range []func() error{
		h.checkReferences, h.checkFeatures, h.checkGeometry,
		func() error { return h.checkTables(f.size) },
		func() error { return f.checkExtensions(h) },
		func() error { return f.checkL1(h) },
	} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return h, nil
}

func (f file) readHeader() (*header, error) {
	var h header
	b := make([]byte, binary.Size(h))
	if f.size < int64(len(b)) {
		return nil, refuse(hintDamaged, "%d bytes are too few for a qcow2 image", f.size)
	}
	if err := f.read(b, 0); err != nil {
		return nil, err
	}
	if _, err := binary.Decode(b, binary.BigEndian, &h); err != nil {
		return nil, fmt.Errorf("decode qcow2 header: %w", err)
	}
	if string(h.Magic[:]) != Magic {
		return nil, refuse("get an intact copy, or declare what it is", "the file does not begin with a qcow2 header")
	}
	switch h.Version {
	case 2:
		// Bytes 72 and on are extensions already.
		h.Incompatible, h.Compatible, h.Autoclear = 0, 0, 0
		h.RefcountOrder, h.Length, h.Compression = 4, v2HeaderLength, 0
	case 3:
		if h.Length <= compressionOffset {
			h.Compression = 0
		}
	default:
		return nil, refuse("convert it with qemu-img convert -O qcow2", "qcow version %d is neither 2 nor 3", h.Version)
	}
	return &h, nil
}

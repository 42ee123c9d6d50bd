package disk

import (
	"encoding/binary"
	"fmt"
)

// The bounds that QEMU keeps as well, where no other reason is given. What is
// refused beyond QEMU's rules is what makes an image depend on anything but
// its own bytes.
const (
	minClusterBits      = 9
	maxClusterBits      = 21
	minExtendedBits     = 14
	maxL1Bytes          = 32 << 20
	maxRefcountBytes    = 8 << 20
	maxSnapshots        = 65536
	minSnapshotBytes    = 40
	maxRefcountOrder    = 6
	qcow2V2HeaderLength = 72
	qcow2V3HeaderLength = 104
	compressionOffset   = 104

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

// qcow2Header is a header of version 3 byte for byte, up to the compression
// type, the last field that there is. All numbers are big endian.
type qcow2Header struct {
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

// inspectQCOW2 says how large a disk a qcow2 image holds, or refuses it.
//
// The header, its extensions and the whole L1 table are checked. The L2 tables
// are not: there are as many as there is data, and a wrong entry in one costs
// its reader wrong sectors of this image, nothing of another file.
func (s source) inspectQCOW2() (Info, error) {
	h, err := s.readQCOW2Header()
	if err != nil {
		return Info{}, err
	}
	for _, check := range []func() error{
		h.checkReferences, h.checkFeatures, h.checkGeometry,
		func() error { return h.checkTables(s.size) },
		func() error { return s.checkExtensions(h) },
		func() error { return s.checkL1(h) },
	} {
		if err := check(); err != nil {
			return Info{}, err
		}
	}
	return Info{Format: QCOW2, VirtualSize: int64(h.Size)}, nil
}

func (s source) readQCOW2Header() (*qcow2Header, error) {
	var h qcow2Header
	b := make([]byte, binary.Size(h))
	if err := s.read(b, 0); err != nil {
		return nil, err
	}
	if _, err := binary.Decode(b, binary.BigEndian, &h); err != nil {
		return nil, fmt.Errorf("decode qcow2 header: %w", err)
	}
	switch h.Version {
	case 2:
		// Bytes 72 and on are extensions already.
		h.Incompatible, h.Compatible, h.Autoclear = 0, 0, 0
		h.RefcountOrder, h.Length, h.Compression = 4, qcow2V2HeaderLength, 0
	case 3:
		if h.Length <= compressionOffset {
			h.Compression = 0
		}
	default:
		return nil, refuse("convert it with qemu-img convert -O qcow2", "qcow version %d is neither 2 nor 3", h.Version)
	}
	return &h, nil
}

func (h *qcow2Header) clusterSize() uint64 { return 1 << h.ClusterBits }

// checkReferences refuses images that are not complete in themselves. Names of
// other files are never read, so that none can get into a message either.
func (h *qcow2Header) checkReferences() error {
	switch {
	case h.BackingOffset != 0 || h.BackingLength != 0:
		return refuse(hintFlatten, "the qcow2 image has a backing file")
	case h.Incompatible&featureDataFile != 0 || h.Autoclear&autoclearRawData != 0:
		return refuse(hintFlatten, "the qcow2 image keeps its data in another file")
	case h.Encryption != 0:
		return refuse("decrypt it: qemu-img convert -O qcow2; a raw LUKS disk is accepted", "the qcow2 image is encrypted inside")
	}
	return nil
}

// checkFeatures refuses what the header marks as unfit or as not understood.
func (h *qcow2Header) checkFeatures() error {
	zstd := h.Incompatible&featureCompression != 0
	switch {
	case h.Incompatible&^knownFeatures != 0:
		return refuse("convert it with an older qemu-img: qemu-img convert -O qcow2", "the qcow2 image needs unknown features (bits %#x)", h.Incompatible&^knownFeatures)
	case h.Incompatible&featureCorrupt != 0:
		return refuse(hintRepair, "the qcow2 image is marked as corrupt")
	case h.Incompatible&featureDirty != 0:
		// Stale reference counts alone would not hurt a reader. But the mark
		// means that a copy was taken from under a writer, whose last data may
		// be missing too; and whoever opens the image for writing repairs it
		// first, so that its bytes are no longer those of its checksum.
		return refuse(hintRepair, "the qcow2 image was not closed by its last writer")
	case zstd != (h.Compression != 0) || h.Compression > 1:
		return refuse("convert it with qemu-img convert -O qcow2", "the qcow2 image has an unknown compression type (%d)", h.Compression)
	}
	return nil
}

// checkGeometry checks the numbers that all others are reckoned from.
func (h *qcow2Header) checkGeometry() error {
	minBits := uint32(minClusterBits)
	if h.Incompatible&featureExtendedL2 != 0 {
		minBits = minExtendedBits
	}
	switch {
	case h.ClusterBits < minBits || h.ClusterBits > maxClusterBits:
		return refuse(hintDamaged, "the qcow2 image has clusters of 2^%d bytes: 2^%d to 2^%d are possible", h.ClusterBits, minBits, maxClusterBits)
	case h.Version == 3 && h.Length < qcow2V3HeaderLength, h.Length%8 != 0, uint64(h.Length) > h.clusterSize():
		return refuse(hintDamaged, "the qcow2 header cannot be %d bytes long", h.Length)
	case h.RefcountOrder > maxRefcountOrder:
		return refuse(hintDamaged, "the qcow2 image has reference counts of 2^%d bits", h.RefcountOrder)
	case h.Size == 0 || h.Size%sector != 0:
		return refuse(hintDamaged, "the virtual size %d of the qcow2 image is not a whole number of sectors", h.Size)
	case h.Size > maxVirtualSize:
		return refuse("make a smaller disk", "the virtual size %d of the qcow2 image is larger than %d (64 TiB)", h.Size, int64(maxVirtualSize))
	}
	return nil
}

// checkExtensions walks the header extensions, which end with the first
// cluster at the latest. Unknown ones are harmless by their definition; what
// bitmaps hold is checked by those who use them.
func (s source) checkExtensions(h *qcow2Header) error {
	var b [8]byte
	offset, end := int64(h.Length), min(int64(h.clusterSize()), s.size)
	for range maxExtensions {
		if end-offset < int64(len(b)) {
			return nil
		}
		if err := s.read(b[:], offset); err != nil {
			return err
		}
		length := int64(binary.BigEndian.Uint32(b[4:]))
		offset += int64(len(b)) + (length+7)&^7
		if offset > end {
			return refuse(hintDamaged, "a header extension of the qcow2 image does not fit into its first cluster")
		}
		switch binary.BigEndian.Uint32(b[:]) {
		case extensionEnd:
			return nil
		case extensionBackingFormat:
			return refuse(hintFlatten, "the qcow2 image has a backing file")
		case extensionDataFile:
			return refuse(hintFlatten, "the qcow2 image keeps its data in another file")
		case extensionEncryption:
			return refuse(hintFlatten, "the qcow2 image is encrypted inside")
		}
	}
	return refuse(hintDamaged, "the qcow2 image has more than %d header extensions", maxExtensions)
}

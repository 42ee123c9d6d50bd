package qcow2

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/seed-26586806/backing-image-manager/internal/exactly"
)

// Limits without a comment are those of QEMU. In addition to QEMU's rules, this package rejects
// images that depend on other files.
const (
	sector            = 512
	minClusterBits    = 9
	maxClusterBits    = 21
	minExtendedBits   = 14
	maxL1Bytes        = 32 << 20
	maxRefcountBytes  = 8 << 20
	maxRefcountOrder  = 6
	v2HeaderLength    = 72
	v3HeaderLength    = 104
	compressionOffset = 104

	// The specification has five extensions, each at most once. The limit prevents many small reads of
	// a cluster full of empty extensions.
	maxExtensions = 64

	// The limit of the L1 table alone would allow a file of a few KiB to declare 2 EiB. 64 TiB is four
	// times the largest file of ext4, and a volume with such an image must fit into one file. It is
	// small enough that sums of sizes never overflow.
	maxVirtualSize = 64 << 40
)

// Bits of incompatible features.
const (
	featureDirty = 1 << iota
	featureCorrupt
	featureDataFile
	featureCompression
	featureExtendedL2

	knownFeatures = 1<<iota - 1
)

const (
	// autoclearBitmaps: the bitmaps are consistent with the disk. QEMU ignores them otherwise.
	autoclearBitmaps = 1 << 0
	// autoclearRawData: the external data file is a raw disk.
	autoclearRawData = 1 << 1
)

// Types of header extensions. Images with one of the last three depend on other files or on a key.
const (
	extensionEnd           = 0
	extensionBitmaps       = 0x23852875
	extensionBackingFormat = 0xe2792aca
	extensionDataFile      = 0x44415441
	extensionEncryption    = 0x0537be77
)

const (
	hintFlatten = "convert it to a self-contained image on a trusted machine: qemu-img convert -O qcow2"
	hintRepair  = "stop the program that writes to it, and repair it: qemu-img check -r all"
	hintDamaged = "replace it with an intact copy; qemu-img check prints details"
	hintConvert = "convert it on a trusted machine: qemu-img convert -O qcow2"
)

// Magic is the start of every qcow2 file, and of the older qcow files.
const Magic = "QFI\xfb"

// header is a header of version 3, byte for byte, up to its last field, the compression type. All
// numbers are big endian.
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

// file is a qcow2 file, or its first bytes.
type file struct {
	r    io.ReaderAt
	size int64
}

// read fills b from offset. If the file ends before b is full, the error wraps io.ErrUnexpectedEOF.
func (f file) read(b []byte, offset int64) error { return exactly.ReadAt(f.r, b, offset) }

// Inspect checks the qcow2 file of size bytes and returns its virtual size. A *FormatError means that
// the file is not accepted; any other error is a read error of r.
//
// Inspect reads the header, its extensions and all tables: of the disk, of the reference counts and of
// snapshots. Every entry must refer to a place in the file that no other entry uses for another purpose.
// Inspect reads no data. It uses at most 9 MiB of memory, and reads at most 130 MiB plus
// twice the size of the file. Of a valid image it reads about 8 bytes for each cluster, once.
func Inspect(r io.ReaderAt, size int64) (virtualSize int64, err error) {
	h, err := file{r, size}.check()
	if err != nil {
		return 0, err
	}
	return int64(h.Size), nil
}

// InspectHead checks what the beginning of a file shows: the header, its extensions and the L1 table,
// which are usually in the first few clusters. size is the size of the whole file. InspectHead reads at
// most 33 MiB.
func InspectHead(r io.ReaderAt, size int64) error {
	c, err := newChecker(file{r, size})
	if err != nil {
		return err
	}
	return c.entries(table{int64(c.h.L1Offset), int64(c.h.L1Entries), 8}, c.outer, func(_ int64, entry, _ uint64) error {
		return c.h.checkL1Entry(entry, size)
	})
}

// checkHead checks the header and its extensions.
func (f file) checkHead() (*header, error) {
	h, err := f.readHeader()
	if err != nil {
		return nil, err
	}
	for _, check := range []func() error{
		h.checkReferences, h.checkFeatures, h.checkGeometry,
		func() error { return h.checkTables(f.size) },
		func() error { return f.checkExtensions(h) },
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
		return nil, refuse("replace the file with an intact copy, or declare the actual format", "the file does not begin with a qcow2 header")
	}
	switch h.Version {
	case 2:
		// In version 2, extensions begin at byte 72.
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

func (h *header) clusterSize() uint64 { return 1 << h.ClusterBits }

// checkReferences rejects images that are not complete without other files. It never reads the names
// of other files, so no message contains one.
func (h *header) checkReferences() error {
	switch {
	case h.BackingOffset != 0 || h.BackingLength != 0:
		return refuse(hintFlatten, "the qcow2 image has a backing file")
	case h.Incompatible&featureDataFile != 0 || h.Autoclear&autoclearRawData != 0:
		return refuse(hintFlatten, "the qcow2 image has its data in another file")
	case h.Encryption != 0:
		return refuse("decrypt it: qemu-img convert -O qcow2; a raw LUKS disk is accepted", "the qcow2 image uses qcow2 encryption")
	}
	return nil
}

// checkFeatures rejects images with unknown features, and images that need a repair.
func (h *header) checkFeatures() error {
	zstd := h.Incompatible&featureCompression != 0
	switch {
	case h.Incompatible&^knownFeatures != 0:
		return refuse("convert it with an older qemu-img: qemu-img convert -O qcow2", "the qcow2 image needs unknown features (bits %#x)", h.Incompatible&^knownFeatures)
	case h.Incompatible&featureCorrupt != 0:
		return refuse(hintRepair, "the qcow2 image is marked as corrupt")
	case h.Incompatible&featureDirty != 0:
		// Wrong reference counts would not harm a reader. But the flag means that the file was copied
		// while a program wrote to it, so its last data may be missing. In addition, QEMU repairs such
		// an image when it opens it for writing, which changes its checksum.
		return refuse(hintRepair, "the qcow2 image was not closed by its last writer")
	case zstd != (h.Compression != 0) || h.Compression > 1:
		return refuse("convert it with qemu-img convert -O qcow2", "the qcow2 image has an unknown compression type (%d)", h.Compression)
	}
	return nil
}

// checkGeometry checks the numbers on which all other checks depend.
func (h *header) checkGeometry() error {
	minBits := uint32(minClusterBits)
	if h.Incompatible&featureExtendedL2 != 0 {
		minBits = minExtendedBits
	}
	switch {
	case h.ClusterBits < minBits || h.ClusterBits > maxClusterBits:
		return refuse(hintDamaged, "the qcow2 image has clusters of 2^%d bytes: 2^%d to 2^%d are allowed", h.ClusterBits, minBits, maxClusterBits)
	case h.Version == 3 && h.Length < v3HeaderLength, h.Length%8 != 0, uint64(h.Length) > h.clusterSize():
		return refuse(hintDamaged, "the qcow2 header has an invalid length of %d bytes", h.Length)
	case h.RefcountOrder > maxRefcountOrder:
		return refuse(hintDamaged, "the qcow2 image has reference counts of 2^%d bits", h.RefcountOrder)
	case h.Size == 0 || h.Size%sector != 0:
		return refuse(hintDamaged, "the virtual size %d of the qcow2 image is not a whole number of sectors", h.Size)
	case h.Size > maxVirtualSize:
		return refuse("create a smaller disk", "the virtual size %d of the qcow2 image is larger than %d (64 TiB)", h.Size, int64(maxVirtualSize))
	}
	return nil
}

// checkExtensions reads the header extensions, which must end within the first cluster. The specification allows a
// reader to ignore unknown extensions. Bitmaps record which clusters changed since a backup: no image for others needs
// them, and QEMU reads all of them into memory when it opens the image.
func (f file) checkExtensions(h *header) error {
	var b [8]byte
	offset, end := int64(h.Length), min(int64(h.clusterSize()), f.size)
	for seen := 0; end-offset >= int64(len(b)); seen++ {
		if seen == maxExtensions {
			return refuse(hintDamaged, "the qcow2 image has more than %d header extensions", maxExtensions)
		}
		if err := f.read(b[:], offset); err != nil {
			return err
		}
		length := int64(binary.BigEndian.Uint32(b[4:]))
		if offset += int64(len(b)) + (length+7)&^7; offset > end {
			return refuse(hintDamaged, "a header extension of the qcow2 image does not fit into its first cluster")
		}
		switch kind := binary.BigEndian.Uint32(b[:]); {
		case kind == extensionEnd:
			return nil
		case kind == extensionBackingFormat:
			return refuse(hintFlatten, "the qcow2 image has a backing file")
		case kind == extensionDataFile:
			return refuse(hintFlatten, "the qcow2 image has its data in another file")
		case kind == extensionEncryption:
			return refuse(hintFlatten, "the qcow2 image uses qcow2 encryption")
		case kind == extensionBitmaps && h.Autoclear&autoclearBitmaps != 0:
			return refuse("remove its bitmaps (qemu-img bitmap --remove), or convert it: qemu-img convert -O qcow2", "the qcow2 image has bitmaps for backups")
		}
	}
	return nil
}

// checkTables checks the offsets and sizes of the tables in a file of size bytes.
func (h *header) checkTables(size int64) error {
	if h.Snapshots > maxSnapshots {
		return refuse(hintDamaged, "the qcow2 image has %d snapshots; at most %d are allowed", h.Snapshots, maxSnapshots)
	}
	if h.RefcountClusters == 0 {
		return refuse(hintDamaged, "the qcow2 image has no refcount table")
	}
	if need := h.needL1(); uint64(h.L1Entries) < need {
		return refuse(hintDamaged, "the L1 table of the qcow2 image has %d entries: its virtual size needs %d", h.L1Entries, need)
	}
	err := h.checkTable("L1 table", h.L1Offset, uint64(h.L1Entries)*8, maxL1Bytes, size)
	if err == nil {
		err = h.checkTable("refcount table", h.RefcountOffset, uint64(h.RefcountClusters)<<h.ClusterBits, maxRefcountBytes, size)
	}
	if err == nil && h.Snapshots > 0 {
		err = h.checkTable("snapshot table", h.SnapshotsOffset, uint64(h.Snapshots)*minSnapshotBytes, maxSnapshots*minSnapshotBytes, size)
	}
	if err == nil && (h.SnapshotsOffset%h.clusterSize() != 0 || h.SnapshotsOffset > math.MaxInt64) {
		// Without snapshots the offset may have any value, even one after the end of the file.
		err = refuse(hintDamaged, "the snapshot table of the qcow2 image does not begin at a cluster border")
	}
	return err
}

// needL1 returns the number of L1 entries for the virtual size. Each entry refers to one L2 table,
// which is one cluster of entries.
func (h *header) needL1() uint64 {
	covered := uint64(1) << (h.ClusterBits + h.ClusterBits - h.entryBits())
	return (h.Size + covered - 1) / covered
}

// entryBits returns the binary logarithm of the size of an L2 entry. Extended L2 entries also have a
// bitmap of subclusters.
func (h *header) entryBits() uint32 {
	if h.Incompatible&featureExtendedL2 != 0 {
		return 4
	}
	return 3
}

func (h *header) checkTable(name string, offset, length, limit uint64, size int64) error {
	switch {
	case length > limit:
		return refuse(hintDamaged, "the %s of the qcow2 image has %d bytes; at most %d are allowed", name, length, limit)
	case offset == 0 || offset%h.clusterSize() != 0:
		return refuse(hintDamaged, "the %s of the qcow2 image does not begin at a cluster border", name)
	case offset > uint64(size) || length > uint64(size)-offset:
		return refuse(hintDamaged, "the %s of the qcow2 image lies outside the file", name)
	}
	return nil
}

// Fields of an L1 entry: the offset of an L2 table, one flag and reserved bits.
const (
	l1OffsetMask   = 1<<56 - 1<<9
	l1ReservedMask = 1<<63 - 1 - l1OffsetMask
)

func (h *header) checkL1Entry(entry uint64, size int64) error {
	if entry&l1ReservedMask != 0 {
		return refuse(hintDamaged, "an L1 entry of the qcow2 image has reserved bits set")
	}
	l2 := entry & l1OffsetMask
	switch {
	case entry == 0:
		return nil
	case l2 == 0:
		// For a read, QEMU finds no L2 table. But for qemu-img check and snapshots, the header is the table.
		return refuse(hintDamaged, "an L1 entry of the qcow2 image has a flag without an offset")
	}
	return h.checkTable("L2 table", l2, h.clusterSize(), h.clusterSize(), size)
}

// FormatError is the reason why a file is not accepted as an image. It is final until the declaration
// or the file changes. Reason and Hint are one sentence each. They contain no bytes of the file, so
// both are safe to print.
type FormatError struct {
	Reason string
	Hint   string // how the user can fix it
}

// Error returns the reason without the hint.
func (e *FormatError) Error() string { return e.Reason }

func refuse(hint, reason string, args ...any) error {
	return &FormatError{Reason: fmt.Sprintf(reason, args...), Hint: hint}
}

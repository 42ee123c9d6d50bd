package qcow2

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
)

// Limits of QEMU for persistent bitmaps, which record the clusters that changed since a backup.
const (
	maxBitmaps         = 65535
	maxBitmapDirectory = 1024 * maxBitmaps
	maxBitmapName      = 1023
	bitmapEntryBytes   = 24 // without the name
	minGranularityBits = 9
	maxGranularityBits = 31
	bitmapTypeDirty    = 1
	bitmapInUse        = 1 << 0
	bitmapKnownFlags   = 1<<2 - 1

	// QEMU reads all bitmaps into memory when it opens an image, and allows this much for each bitmap.
	// Here it is the limit for all bitmaps, because a hostile file could have many.
	maxBitmapBytes = 512 << 20
)

// autoclearBitmaps: the bitmaps are consistent with the disk. Without this flag QEMU ignores them.
const autoclearBitmaps = 1 << 0

const extensionBitmaps = 0x23852875

// bitmapDirectory is the content of the header extension for bitmaps, byte for byte. It is zero if the
// image has no bitmaps.
type bitmapDirectory struct {
	Bitmaps  uint32
	Reserved uint32
	Bytes    uint64
	Offset   uint64
}

// bitmapEntry is the beginning of an entry of the bitmap directory, byte for byte. Extra data and the
// name follow. Each entry begins at a multiple of 8 bytes.
type bitmapEntry struct {
	TableOffset     uint64
	TableEntries    uint32
	Flags           uint32
	Type            uint8
	GranularityBits uint8
	NameBytes       uint16
	ExtraBytes      uint32
}

// readBitmapDirectory reads the header extension of length bytes at offset.
func (f file) readBitmapDirectory(h *header, offset, length int64) (bitmapDirectory, error) {
	var d bitmapDirectory
	b := make([]byte, binary.Size(d))
	if length != int64(len(b)) {
		return d, refuse(hintDamaged, "the header extension of the qcow2 image for bitmaps has %d bytes; it needs %d", length, len(b))
	}
	if h.Autoclear&autoclearBitmaps == 0 {
		return d, nil
	}
	if err := f.read(b, offset); err != nil {
		return d, err
	}
	if _, err := binary.Decode(b, binary.BigEndian, &d); err != nil {
		return d, err
	}
	if d.Reserved != 0 || d.Bitmaps == 0 || d.Bitmaps > maxBitmaps || d.Bytes == 0 {
		return d, refuse(hintDamaged, "the header extension of the qcow2 image for bitmaps has an impossible value")
	}
	return d, h.checkTable("bitmap directory", d.Offset, d.Bytes, maxBitmapDirectory, f.size)
}

// markBitmaps checks the bitmaps, and marks their directory, tables and data.
func (c *checker) markBitmaps() error {
	d := c.bitmaps
	if d.Bitmaps == 0 {
		return nil
	}
	offset, end := int64(d.Offset), int64(d.Offset+d.Bytes)
	if err := c.clusters.mark(offset, int64(d.Bytes), usedAsMetadata, false); err != nil {
		return err
	}
	names, memory := map[[16]byte]bool{}, uint64(0)
	tooSmall := refuse(hintDamaged, "the bitmap directory of the qcow2 image is too small for %d bitmaps", d.Bitmaps)
	buffer := make([]byte, bitmapEntryBytes+maxBitmapName)
	for range d.Bitmaps {
		var e bitmapEntry
		b := buffer[:bitmapEntryBytes]
		if offset+bitmapEntryBytes > end {
			return tooSmall
		}
		if err := c.read(b, offset); err != nil {
			return err
		}
		if _, err := binary.Decode(b, binary.BigEndian, &e); err != nil {
			return err
		}
		memory += e.bytes(c.h)
		if err := c.checkBitmapEntry(e, memory); err != nil {
			return err
		}
		name := buffer[:e.NameBytes]
		next := offset + (bitmapEntryBytes+int64(len(name))+7)&^7
		if next > end {
			return tooSmall
		}
		if err := c.read(name, offset+bitmapEntryBytes); err != nil {
			return err
		}
		offset = next
		name, _, _ = bytes.Cut(name, []byte{0}) // QEMU reads the name as a C string
		digest := sha256.Sum256(name)
		key := [16]byte(digest[:])
		if names[key] {
			return refuse(hintBitmaps, "two bitmaps of the qcow2 image have the same name")
		}
		names[key] = true
		if err := c.markBitmap(e); err != nil {
			return err
		}
	}
	if offset != end {
		return refuse(hintDamaged, "the bitmap directory of the qcow2 image has more than %d bitmaps", d.Bitmaps)
	}
	return nil
}

// bytes returns the memory that QEMU needs for the bitmap. It is 0 if the granularity is invalid.
func (e *bitmapEntry) bytes(h *header) uint64 {
	if e.GranularityBits < minGranularityBits || e.GranularityBits > maxGranularityBits {
		return 0
	}
	bits := (h.Size-1)>>e.GranularityBits + 1
	return (bits + 63) / 64 * 8
}

// checkBitmapEntry checks an entry by the rules of QEMU. memory is the sum of bytes up to this bitmap.
func (c *checker) checkBitmapEntry(e bitmapEntry, memory uint64) error {
	h := c.h
	clusters := (e.bytes(h)-1)>>h.ClusterBits + 1
	switch {
	case e.Type != bitmapTypeDirty, e.Flags&^bitmapKnownFlags != 0, e.ExtraBytes != 0, e.NameBytes > maxBitmapName,
		e.GranularityBits < minGranularityBits, e.GranularityBits > maxGranularityBits:
		return refuse(hintBitmaps, "a bitmap of the qcow2 image has an impossible or unknown value")
	case memory > maxBitmapBytes:
		return refuse(hintBitmaps, "the bitmaps of the qcow2 image need more than %d bytes of memory", maxBitmapBytes)
	case e.TableEntries == 0, e.Flags&bitmapInUse == 0 && uint64(e.TableEntries) != clusters,
		uint64(e.TableEntries)<<h.ClusterBits > maxBitmapBytes:
		return refuse(hintBitmaps, "the table of a bitmap of the qcow2 image has %d entries: the bitmap needs %d", e.TableEntries, clusters)
	}
	return h.checkTable("table of a bitmap", e.TableOffset, uint64(e.TableEntries)*8, maxBitmapBytes, c.size)
}

// Fields of an entry in the table of a bitmap: the offset of a cluster of bits, or the flag that all
// these bits are 1.
const (
	bitmapOffsetMask = l1OffsetMask
	bitmapAllOnes    = 1
)

// markBitmap marks the table and the clusters of a bitmap.
func (c *checker) markBitmap(e bitmapEntry) error {
	h := c.h
	if err := c.clusters.mark(int64(e.TableOffset), int64(e.TableEntries)*8, usedAsMetadata, false); err != nil {
		return err
	}
	return c.entries(table{int64(e.TableOffset), int64(e.TableEntries), 8}, c.outer, func(_ int64, entry, _ uint64) error {
		if entry == bitmapAllOnes {
			return nil
		}
		if entry&^bitmapOffsetMask != 0 {
			return refuse(hintBitmaps, "the table of a bitmap of the qcow2 image has reserved bits set")
		}
		if err := h.checkTable("data of a bitmap", entry, h.clusterSize(), h.clusterSize(), c.size); err != nil {
			return err
		}
		return c.clusters.mark(int64(entry), 1, usedAsMetadata, false)
	})
}

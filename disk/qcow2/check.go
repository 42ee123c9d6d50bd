package qcow2

import "encoding/binary"

func (h *header) clusterSize() uint64 { return 1 << h.ClusterBits }

// checkReferences refuses images that are not complete in themselves. Names of
// other files are never read, so that none can get into a message either.
func (h *header) checkReferences() error {
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
func (h *header) checkFeatures() error {
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
func (h *header) checkGeometry() error {
	minBits := uint32(minClusterBits)
	if h.Incompatible&featureExtendedL2 != 0 {
		minBits = minExtendedBits
	}
	switch {
	case h.ClusterBits < minBits || h.ClusterBits > maxClusterBits:
		return refuse(hintDamaged, "the qcow2 image has clusters of 2^%d bytes: 2^%d to 2^%d are possible", h.ClusterBits, minBits, maxClusterBits)
	case h.Version == 3 && h.Length < v3HeaderLength, h.Length%8 != 0, uint64(h.Length) > h.clusterSize():
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
func (f file) checkExtensions(h *header) error {
	var b [8]byte
	offset, end := int64(h.Length), min(int64(h.clusterSize()), f.size)
	for range maxExtensions {
		if end-offset < int64(len(b)) {
			return nil
		}
		if err := f.read(b[:], offset); err != nil {
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

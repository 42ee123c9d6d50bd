// Package filetype recognises files that are no raw disk and no qcow2 image, by their first and last
// bytes.
//
// A program that is not told the format of an image detects it. For example, qemu-img and libvirt open a
// raw disk as VMDK if it begins like VMDK, and a VMDK descriptor can name any file of the host. Container
// therefore recognises every file that QEMU detects as a format other than raw and qcow2. Its rules
// are those of QEMU 7.2 (the functions *_probe in its folder block). Where QEMU also looks at a version,
// they are wider, because programs differ there. QEMU reads the first 512 bytes, old versions read 2048.
package filetype

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strconv"
)

// HeadSize is the number of bytes at the beginning of a file that this package looks at. A file may be
// shorter.
const HeadSize = 2048

// TailSize is the number of bytes at the end of a file that this package looks at. QEMU searches for
// the trailer of a DMG image in them, because the size of such an image need not be a multiple of 512.
const TailSize = 1023

// Type is a type of file.
type Type struct {
	Name string // completes "the file is …"
	Hint string // what the user can do to get an image
}

const (
	hintRaw     = "declare format: raw if these bytes are the disk itself"
	hintConvert = "convert it: qemu-img convert -O qcow2 (with -f raw if these bytes are the disk itself)"
	hintUnpack  = "unpack it first (for a download, set unpack, which removes one layer of packing), or " + hintRaw
	hintProgram = "unpack it with the program that packed it, or " + hintRaw
	hintExtract = "extract the disk from it, or " + hintRaw
)

var (
	vmdk       = Type{"a VMDK image", hintConvert}
	descriptor = Type{"a VMDK descriptor", "convert it together with the files that it names, on a trusted machine: qemu-img convert -f vmdk -O qcow2"}
	parallels  = Type{"a Parallels image", hintConvert}
	tar        = Type{"a tar archive (an OVA is one)", hintExtract}
	cpio       = Type{"a cpio archive", hintExtract}
	lz4        = Type{"packed with lz4", hintProgram}
	lzma       = Type{"packed with lzma", hintProgram}
	webPage    = Type{"a web page that the server sent instead of an image", "check what the address serves: it may need credentials, or the image may have moved"}
)

// signature is a sequence of bytes that all files of a type have at the same offset.
type signature struct {
	bytes  string
	offset int
	typ    Type
}

func (s signature) matches(head []byte) bool {
	return s.offset <= len(head) && bytes.HasPrefix(head[s.offset:], []byte(s.bytes))
}

// containers are the types that programs detect. QEMU does not detect a descriptor by its first line,
// but other programs do; libvirt still detects COW. LUKS2 is not in the list: QEMU detects only LUKS1.
var containers = []signature{
	{"KDMV", 0, vmdk},
	{"COWD", 0, vmdk},
	{"# Disk DescriptorFile", 0, descriptor},
	{"\x7f\x10\xda\xbe", 64, Type{"a VDI image", hintConvert}},
	{vhdMagic, 0, Type{"a VHD image", hintConvert}},
	{"vhdxfile", 0, Type{"a VHDX image", hintConvert}},
	{"QED\x00", 0, Type{"a QED image", hintConvert}},
	{"WithoutFreeSpace", 0, parallels},
	{"WithouFreSpacExt", 0, parallels},
	{"Bochs Virtual HD Image", 0, Type{"a Bochs image", hintConvert}},
	{"#!/bin/sh\n#V2.0 Format", 0, Type{"a cloop image", hintConvert}},
	{"OOOM\x00\x00\x00\x02", 0, Type{"a COW image of User Mode Linux", hintConvert}},
	{"LUKS\xba\xbe\x00\x01", 0, Type{"a LUKS1 disk", "convert it to LUKS2: cryptsetup convert --type luks2"}},
}

// Container returns the type of a file that a program may detect as a disk image of another format
// than raw and qcow2. head is the first HeadSize bytes.
func Container(head []byte) (Type, bool) {
	if t, ok := find(containers, head); ok {
		return t, true
	}
	return descriptor, isDescriptor(head)
}

func find(signatures []signature, head []byte) (Type, bool) {
	i := slices.IndexFunc(signatures, func(s signature) bool { return s.matches(head) })
	if i < 0 {
		return Type{}, false
	}
	return signatures[i].typ, true
}

// isDescriptor reports whether QEMU opens a file as a VMDK descriptor: a text whose first line, apart
// from comments and lines of spaces, is version=1, 2 or 3. QEMU does not skip an empty line.
func isDescriptor(text []byte) bool {
	for {
		line, rest, whole := bytes.Cut(text, []byte("\n"))
		switch blank := bytes.TrimLeft(line, " "); {
		case !whole:
			return false
		case bytes.HasPrefix(line, []byte("#")):
		case len(blank) < len(line) && (len(blank) == 0 || string(blank) == "\r"):
		default:
			version, ok := bytes.CutPrefix(bytes.TrimSuffix(line, []byte("\r")), []byte("version="))
			return ok && len(version) == 1 && version[0] >= '1' && version[0] <= '3'
		}
		text = rest
	}
}

// packed are types of files that users often declare as an image by mistake. No program opens them as
// a disk of another format. The boot code of a raw disk may begin with a short signature by chance. Here
// a short signature also has the bytes that follow it in every real file, such as gzip's method or bzip2's
// first block. Binary cpio, and other levels of the program compress, have only 2 bytes: they are not recognised.
var packed = []signature{
	{"\x1f\x8b\x08", 0, Type{"packed with gzip", hintUnpack}},
	{"\xfd7zXZ\x00", 0, Type{"packed with xz", hintUnpack}},
	{"\x28\xb5\x2f\xfd", 0, Type{"packed with zstd", hintUnpack}},
	{"1AY&SY", 4, Type{"packed with bzip2", hintUnpack}},
	{"PK\x03\x04", 0, Type{"packed with zip", hintUnpack}},
	{"7z\xbc\xaf\x27\x1c", 0, Type{"packed with 7z", hintProgram}},
	{"LZIP\x01", 0, Type{"packed with lzip", hintProgram}},
	{"\x04\x22\x4d\x18", 0, lz4},
	{"\x02\x21\x4c\x18", 0, lz4}, // the legacy format
	{"\x89LZO\x00\r\n\x1a\n", 0, Type{"packed with lzop", hintProgram}},
	{"\x1f\x9d\x90", 0, Type{"packed with compress", hintProgram}},
	{"Rar!\x1a\x07", 0, Type{"a RAR archive", hintExtract}},
	{"MSCF\x00\x00\x00\x00", 0, Type{"a CAB archive", hintExtract}},
	{"!<arch>\n", 0, Type{"an ar archive (a deb package is one)", hintExtract}},
	{"\xed\xab\xee\xdb", 0, Type{"an RPM package", hintExtract}},
	{"070701", 0, cpio},
	{"070702", 0, cpio},
	{"070707", 0, cpio},
	{"ustar", 257, tar},
}

// Mistake returns the type of a file that is probably declared by mistake: a packed file or a web page.
// It may still be a raw disk. head is the first HeadSize bytes.
func Mistake(head []byte) (Type, bool) {
	if t, ok := find(packed, head); ok {
		return t, true
	}
	switch {
	case isOldTar(head):
		return tar, true
	case isLZMA(head):
		return lzma, true
	}
	text := bytes.ToLower(bytes.TrimSpace(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf"))))
	for _, start := range []string{"<!doctype html", "<html", "<?xml"} {
		if bytes.HasPrefix(text, []byte(start)) {
			return webPage, true
		}
	}
	return Type{}, false
}

// isOldTar reports whether the first block is the header of a tar archive without a magic number: it
// has a name, and its checksum, in octal digits, is right.
func isOldTar(head []byte) bool {
	const block, at, size = 512, 148, 8
	if len(head) < block || head[0] == 0 {
		return false
	}
	want, err := strconv.ParseUint(string(bytes.Trim(head[at:at+size], " \x00")), 8, 32)
	sum := uint64(size * ' ') // the header is summed with spaces in place of the checksum
	for i, b := range head[:block] {
		if i < at || i >= at+size {
			sum += uint64(b)
		}
	}
	return err == nil && want == sum
}

// isLZMA reports whether a file begins as the programs lzma and 7z begin a .lzma file, which has no
// magic number: the usual properties, a dictionary of a multiple of 64 KiB up to 4 GiB, a size that is
// unknown or below 256 GiB, and the zero that begins the data. The bytes are no sensible boot code.
func isLZMA(head []byte) bool {
	if len(head) < 14 || !bytes.HasPrefix(head, []byte("\x5d\x00\x00")) || head[13] != 0 {
		return false
	}
	size := binary.LittleEndian.Uint64(head[5:])
	return binary.LittleEndian.Uint16(head[3:]) != 0 && size != 0 && (size == math.MaxUint64 || size < 1<<38)
}

const (
	vhdMagic = "conectix"
	dmgMagic = "koly"
)

// ContainerByTrailer returns the type of a file that a program may detect by its trailer. QEMU does so
// if the name of the file ends in .dmg. tail is the last TailSize bytes.
func ContainerByTrailer(tail []byte) (Type, bool) {
	const searched = 515 // by QEMU, from the beginning of the tail
	return Type{"a DMG image", hintConvert}, bytes.Contains(tail[:min(searched, len(tail))], []byte(dmgMagic))
}

// MistakeByTrailer recognises a fixed VHD image, which is a raw disk with a trailer of one sector.
// Programs detect it only if they are told that the file is a VHD image.
func MistakeByTrailer(tail []byte) (Type, bool) {
	const sector = 512
	return Type{"a VHD image", hintConvert + ", or " + hintRaw}, bytes.HasPrefix(tail[max(0, len(tail)-sector):], []byte(vhdMagic))
}

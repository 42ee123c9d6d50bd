package xz

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"slices"
)

// ErrDictionary is the error of a block whose dictionary is larger than the caller allows.
var ErrDictionary = errors.New("xz: the dictionary is too large")

func corrupt(reason string) error { return errors.New("xz: " + reason) }

var (
	errBlockSize = corrupt("a block does not have the size in its header")
	errFilter    = corrupt("the filters are not supported: unpack the file with the program xz")
	errMagic     = corrupt("the bytes are not a stream of xz")
	errIndex     = corrupt("the index does not match the blocks")
)

// input reads packed bytes and counts them.
type input struct {
	r interface {
		io.Reader
		io.ByteReader
	}
	n int64
}

// read fills p. The end of the file is an error.
func (in *input) read(p []byte) error {
	n, err := io.ReadFull(in.r, p)
	in.n += int64(n)
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// ReadByte is for the parsers of small parts.
func (in *input) ReadByte() (byte, error) {
	b, err := in.r.ReadByte()
	if err == io.EOF {
		return 0, io.ErrUnexpectedEOF
	}
	if err == nil {
		in.n++
	}
	return b, err
}

// number reads a number of at most 63 bits, with 7 bits in each byte.
func number(r io.ByteReader) (int64, error) {
	v := int64(0)
	for shift := 0; shift < 63; shift += 7 {
		b, err := r.ReadByte()
		if err != nil {
			return 0, err
		}
		v |= int64(b&0x7f) << shift
		if b < 0x80 {
			if b == 0 && shift > 0 {
				break
			}
			return v, nil
		}
	}
	return 0, corrupt("a number is invalid")
}

// padding reads zeros until size is a multiple of 4.
func padding(r io.ByteReader, size int64) error {
	for ; size%4 != 0; size++ {
		b, err := r.ReadByte()
		if err != nil {
			return err
		}
		if b != 0 {
			return corrupt("the padding is not zero")
		}
	}
	return nil
}

// check is the kind of the checksum of each block in a stream.
type check byte

const (
	noCheck     check = 0
	checkCRC32  check = 1
	checkCRC64  check = 4
	checkSHA256 check = 10
)

var crc64Table = crc64.MakeTable(crc64.ECMA)

// new returns a hash, or nil if there is no checksum.
func (c check) new() hash.Hash {
	switch c {
	case checkCRC32:
		return crc32.NewIEEE()
	case checkCRC64:
		return crc64.New(crc64Table)
	case checkSHA256:
		return sha256.New()
	}
	return nil
}

// size returns the length of a checksum in bytes.
func (c check) size() int64 {
	if h := c.new(); h != nil {
		return int64(h.Size())
	}
	return 0
}

// sum returns the checksum as it is in a file.
func (c check) sum(h hash.Hash) []byte {
	sum := h.Sum(nil)
	if c != checkSHA256 {
		slices.Reverse(sum) // hash/crc32 and hash/crc64 have the opposite order
	}
	return sum
}

const (
	headerMagic = "\xfd7zXZ\x00"
	footerMagic = "YZ"
)

// readCheck parses the flags of a stream.
func readCheck(flags []byte) (check, error) {
	c := check(flags[1])
	if flags[0] != 0 || c > 15 {
		return 0, corrupt("the flags of a stream are not known")
	}
	if c != noCheck && c.new() == nil {
		return 0, corrupt("the kind of checksum is not supported")
	}
	return c, nil
}

// readHeader reads the header of a stream behind its magic number.
func readHeader(in *input) (check, error) {
	var h [6]byte
	if err := in.read(h[:]); err != nil {
		return 0, err
	}
	if crc32.ChecksumIEEE(h[:2]) != binary.LittleEndian.Uint32(h[2:]) {
		return 0, corrupt("the checksum of the header is wrong")
	}
	return readCheck(h[:2])
}

// readFooter reads the footer of a stream whose index has a size.
func readFooter(in *input, c check, index int64) error {
	var f [12]byte
	if err := in.read(f[:]); err != nil {
		return err
	}
	if crc32.ChecksumIEEE(f[4:10]) != binary.LittleEndian.Uint32(f[:]) || string(f[10:]) != footerMagic {
		return corrupt("the footer is invalid")
	}
	if f[8] != 0 || check(f[9]) != c || (int64(binary.LittleEndian.Uint32(f[4:]))+1)*4 != index {
		return corrupt("the footer does not match the header and the index")
	}
	return nil
}

// records is a digest of the sizes of the blocks of a stream, in their order. It needs the same memory for
// any number of blocks.
type records struct {
	count int64
	hash  hash.Hash
}

func newRecords() *records { return &records{hash: sha256.New()} }

// add adds a block that was read.
func (r *records) add(h *blockHeader) { r.addSizes(h.size+h.packed+h.check.size(), h.unpacked) }

func (r *records) addSizes(packed, unpacked int64) {
	var sizes [16]byte
	binary.LittleEndian.PutUint64(sizes[:], uint64(packed))
	binary.LittleEndian.PutUint64(sizes[8:], uint64(unpacked))
	r.hash.Write(sizes[:])
	r.count++
}

// checksummed adds each byte to a CRC32.
type checksummed struct {
	*input
	crc uint32
}

func (c *checksummed) ReadByte() (byte, error) {
	b, err := c.input.ReadByte()
	if err == nil {
		c.crc = crc32.Update(c.crc, crc32.IEEETable, []byte{b})
	}
	return b, err
}

// readIndex reads the index behind its first byte, which is 0, and compares it with the blocks. It
// returns the size of the index.
func readIndex(in *input, blocks *records) (int64, error) {
	begin := in.n - 1
	r := &checksummed{input: in, crc: crc32.ChecksumIEEE([]byte{0})}
	count, err := number(r)
	if err != nil {
		return 0, err
	}
	if count != blocks.count {
		return 0, errIndex
	}
	listed := newRecords()
	for range count {
		packed, err := number(r)
		if err != nil {
			return 0, err
		}
		unpacked, err := number(r)
		if err != nil {
			return 0, err
		}
		listed.addSizes(packed, unpacked)
	}
	if !bytes.Equal(listed.hash.Sum(nil), blocks.hash.Sum(nil)) {
		return 0, errIndex
	}
	if err := padding(r, in.n-begin); err != nil {
		return 0, err
	}
	var sum [4]byte
	if err := in.read(sum[:]); err != nil {
		return 0, err
	}
	if binary.LittleEndian.Uint32(sum[:]) != r.crc {
		return 0, corrupt("the checksum of the index is wrong")
	}
	return in.n - begin, nil
}

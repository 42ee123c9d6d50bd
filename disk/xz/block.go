package xz

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash"
	"hash/crc32"
	"io"
	"math"
)

// Identifiers of filters. The other filters are for other machines' code and for samples of sound, and
// images do not use them.
const (
	filterX86   = 0x04
	filterLZMA2 = 0x21
)

// blockHeader describes a block.
type blockHeader struct {
	check            check
	size             int64 // of the header
	packed, unpacked int64 // sizes of the data; -1: not in the header
	dictionary       int
	code             *x86 // filter behind LZMA2, or nil
}

// readBlockHeader reads the header of a block behind its first byte.
func readBlockHeader(in *input, first byte, c check, maxDictionary int) (*blockHeader, error) {
	h := make([]byte, (int(first)+1)*4)
	h[0] = first
	if err := in.read(h[1:]); err != nil {
		return nil, err
	}
	content, sum := h[:len(h)-4], h[len(h)-4:]
	if crc32.ChecksumIEEE(content) != binary.LittleEndian.Uint32(sum) {
		return nil, corrupt("the checksum of the header of a block is wrong")
	}
	b, err := parseBlockHeader(content[1:], maxDictionary)
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil, corrupt("the header of a block is too short")
		}
		return nil, err
	}
	b.check, b.size = c, int64(len(h))
	return b, nil
}

func parseBlockHeader(content []byte, maxDictionary int) (*blockHeader, error) {
	b, r := &blockHeader{packed: -1, unpacked: -1}, bytes.NewReader(content)
	flags, err := r.ReadByte()
	if err != nil {
		return nil, err
	}
	if flags&0x3c != 0 {
		return nil, corrupt("the flags of a block are not known")
	}
	if flags&0x40 != 0 {
		if b.packed, err = number(r); err != nil {
			return nil, err
		}
	}
	if flags&0x80 != 0 {
		if b.unpacked, err = number(r); err != nil {
			return nil, err
		}
	}
	filters := int(flags&3) + 1
	for i := range filters {
		id, err := number(r)
		if err != nil {
			return nil, err
		}
		length, err := number(r)
		if err != nil {
			return nil, err
		}
		switch last := i == filters-1; {
		case id == filterX86 && length == 0 && !last && b.code == nil:
			b.code = new(x86)
		case id == filterLZMA2 && length == 1 && last:
			bits, err := r.ReadByte()
			if err != nil {
				return nil, err
			}
			if b.dictionary, err = dictionarySize(bits, maxDictionary); err != nil {
				return nil, err
			}
		default:
			return nil, errFilter
		}
	}
	for r.Len() > 0 {
		if zero, _ := r.ReadByte(); zero != 0 {
			return nil, corrupt("the padding of the header of a block is not zero")
		}
	}
	return b, nil
}

func dictionarySize(bits byte, limit int) (int, error) {
	if bits > 40 {
		return 0, corrupt("the size of the dictionary is invalid")
	}
	size := int64(2|bits&1) << (bits/2 + 11)
	if size > int64(limit) {
		return 0, ErrDictionary
	}
	return int(size), nil
}

// block decodes the data of a block.
type block struct {
	header *blockHeader
	data   *lzma2
	in     *input

	begin, count int64 // input where the data begins; number of unpacked bytes
	sum          hash.Hash
}

// open starts to decode a block. data keeps its buffer.
func (h *blockHeader) open(in *input, data *lzma2) *block {
	data.init(in, h.dictionary)
	return &block{header: h, data: data, in: in, begin: in.n, sum: h.check.new()}
}

// next returns the next unpacked bytes. They are valid until the next call. With the last ones it returns
// io.EOF, after it has checked the sizes and the checksum.
func (b *block) next() ([]byte, error) {
	left := int64(math.MaxInt64)
	if b.header.unpacked >= 0 {
		left = b.header.unpacked - b.count
	}
	p, err := b.data.next(left)
	b.count += int64(len(p))
	if b.header.code != nil {
		p = b.header.code.next(p, err == io.EOF)
	}
	if b.sum != nil {
		b.sum.Write(p)
	}
	if err == io.EOF {
		err = b.finish()
	}
	return p, err
}

// finish checks the end of the block. It returns io.EOF if it is correct.
func (b *block) finish() error {
	packed := b.in.n - b.begin
	h := b.header
	if h.packed >= 0 && packed != h.packed || h.unpacked >= 0 && b.count != h.unpacked {
		return errBlockSize
	}
	h.packed, h.unpacked = packed, b.count
	if err := padding(b.in, packed); err != nil {
		return err
	}
	if b.sum == nil {
		return io.EOF
	}
	want := h.check.sum(b.sum)
	got := make([]byte, len(want))
	if err := b.in.read(got); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return corrupt("the checksum of a block is wrong")
	}
	return io.EOF
}

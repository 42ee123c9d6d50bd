package caibx

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
)

// Limits are what an index may claim.
type Limits struct {
	Image int64 // the size of the file that the index describes, in bytes
	Chunk int64 // the mean size of its chunks, in bytes: the index has at most Image/Chunk + 1 items
}

// maxItems returns the greatest number of items.
func (l Limits) maxItems() int64 { return l.Image/max(l.Chunk, 1) + 1 }

// MaxSize returns the size of the largest index within the limits, in bytes.
func (l Limits) MaxSize() int64 {
	n := l.maxItems()
	if n > (math.MaxInt64-minSize)/itemSize {
		return math.MaxInt64
	}
	return minSize + n*itemSize
}

// Reader reads an index as a stream. It has read a valid index only when Next has returned io.EOF:
// what follows an item can still show that the file is no index.
type Reader struct {
	r      io.Reader
	header Header
	limits Limits

	next  [itemSize]byte // the item or the tail that follows
	items int64          // number of items that Next has returned
	end   int64          // of the last chunk
	err   error          // the result of every further call of Next
}

// NewReader reads the header of an index. The index has size bytes; -1 means that its size is not
// known. The error is a *FormatError if r is not an index, and otherwise the error of r. NewReader and
// Next read small pieces: r should have a buffer.
func NewReader(r io.Reader, size int64, limits Limits) (*Reader, error) {
	d := &Reader{r: r, limits: limits}
	var head [headerSize]byte
	n, err := io.ReadFull(r, head[:])
	if err != nil && !isShort(err) {
		return nil, err
	}
	if err := foreign(head[:n]); err != nil {
		return nil, err
	}
	switch {
	case n < headerSize, size >= 0 && size < minSize:
		return nil, refuse("it has less than %d bytes", minSize)
	case size > limits.MaxSize():
		return nil, d.tooMany()
	case size >= 0 && (size-minSize)%itemSize != 0:
		return nil, refuse("its size of %d bytes is not %d plus a multiple of %d: it is truncated, or bytes follow it", size, minSize, itemSize)
	}
	if d.header, err = parseHeader(head[:]); err != nil {
		return nil, err
	}
	return d, d.advance()
}

// isShort reports whether an error of io.ReadFull means that r has ended.
func isShort(err error) bool { return err == io.EOF || err == io.ErrUnexpectedEOF }

// foreign returns an error for files that a server sends instead of an index.
func foreign(head []byte) error {
	for _, packing := range []struct{ magic, name string }{{gzipMagic, "gzip"}, {zstdMagic, "zstd"}, {xzMagic, "xz"}} {
		if bytes.HasPrefix(head, []byte(packing.magic)) {
			return refuse("it is packed with %s: unpack it", packing.name)
		}
	}
	if text := bytes.TrimSpace(head); len(text) > 0 && text[0] == '<' {
		return refuse("it is a web page")
	}
	return nil
}

// parseHeader parses the headers of the index and of its table.
func parseHeader(head []byte) (Header, error) {
	number := func(at int) uint64 { return binary.LittleEndian.Uint64(head[at:]) }
	flags := number(16)
	h := Header{Sizes: Sizes{number(24), number(32), number(40)}, Digest: SHA256}
	if flags&flagSHA512 != 0 {
		h.Digest = SHA512_256
	}
	switch {
	case number(0) != indexSize:
		return h, refuse("its header has the size %d instead of %d", number(0), indexSize)
	case number(8) != indexMagic:
		return h, refuse("its header has the type %#x instead of %#x", number(8), uint64(indexMagic))
	case flags&^knownFlags != 0:
		return h, refuse("its feature flags %#x are not known", flags)
	case flags&archiveFlags != 0:
		return h, refuse("it is the index of an archive of files (.caidx), not of one file")
	case number(48) != tableLength:
		return h, refuse("the header of its table has the size %#x instead of %#x", number(48), uint64(tableLength))
	case number(56) != tableMagic:
		return h, refuse("the header of its table has the type %#x instead of %#x", number(56), uint64(tableMagic))
	}
	if err := h.check(); err != nil {
		return h, refuse("%v", err)
	}
	return h, nil
}

// Header returns the header of the index.
func (d *Reader) Header() Header { return d.header }

// Next returns the next item. After the last item it verifies that the index ends as it must, and
// returns io.EOF. The error is a *FormatError or an error of the underlying reader.
func (d *Reader) Next() (Item, error) {
	if d.err != nil {
		return Item{}, d.err
	}
	item, err := d.read()
	if err != nil {
		d.err = err
		return Item{}, err
	}
	d.items, d.end = d.items+1, item.End()
	return item, nil
}

// read parses the item in d.next, and reads what follows it. Only the end of the file shows whether
// d.next is an item or the tail.
func (d *Reader) read() (Item, error) {
	this := d.next
	switch err := d.advance(); {
	case err == io.EOF:
		return Item{}, d.checkTail(this[:])
	case err != nil:
		return Item{}, err
	}
	end := binary.LittleEndian.Uint64(this[:])
	item := Item{Offset: d.end, Length: int64(end) - d.end, ID: ID(this[8:])}
	switch {
	case d.items == d.limits.maxItems():
		return Item{}, d.tooMany()
	case end > math.MaxInt64, int64(end) > d.limits.Image:
		return Item{}, refuse("item %d ends at %d, but the file may have at most %d bytes", d.items, end, d.limits.Image)
	case item.Length <= 0:
		return Item{}, refuse("item %d ends at %d, but the item before it ends at %d", d.items, end, d.end)
	case uint64(item.Length) > d.header.Max:
		return Item{}, refuse("item %d has %d bytes, but a chunk has at most %d", d.items, item.Length, d.header.Max)
	}
	return item, nil
}

// advance reads the next item or the tail. It returns io.EOF if the index has ended.
func (d *Reader) advance() error {
	n, err := io.ReadFull(d.r, d.next[:])
	if n > 0 && isShort(err) {
		return refuse("it is truncated, or bytes follow it: %d bytes are left after item %d", n, d.items)
	}
	return err
}

// checkTail checks the last bytes. It returns io.EOF if they are the tail.
func (d *Reader) checkTail(tail []byte) error {
	for i, want := range []uint64{0, 0, indexSize, tableSize(d.items), tailMagic} {
		if got := binary.LittleEndian.Uint64(tail[8*i:]); got != want {
			return refuse("field %d of its tail is %#x instead of %#x: it is truncated or damaged", i, got, want)
		}
	}
	return io.EOF
}

func (d *Reader) tooMany() error {
	return refuse("it has more than %d items, which a file of at most %d bytes should not have", d.limits.maxItems(), d.limits.Image)
}

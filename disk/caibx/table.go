package caibx

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math"
	"os"
	"runtime/debug"
	"sort"

	"golang.org/x/sys/unix"
)

// Table finds the items of an index by their ids. It is a mapped temporary file, so an index of any
// size takes little memory. It is safe for concurrent use. If the disk may fail, use it within CatchFaults.
type Table struct {
	header Header
	data   []byte // the index, and after it the slots
	items  int64
	seed   maphash.Seed // random, so that nobody can choose ids that share a slot
}

// A slot has the number of an item plus one; 0: the slot is free. The hash of an id gives its first slot.
// If this slot has another id, the search goes on in the next slot.
const (
	slotSize = 4
	maxItems = math.MaxUint32 - 1
)

// TempFile creates an unlinked file in a folder. "" means the folder for temporary files.
func TempFile(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "index-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// NewTable reads the index in f, which is from TempFile, verifies its form, and closes f. If r is not
// nil, NewTable first copies the index from r to f. The error is a *FormatError, or an error of r or
// f. The caller closes the Table.
func NewTable(f *os.File, r io.Reader, limits Limits) (t *Table, err error) {
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil && t != nil {
			_, t = t.Close(), nil // err is the reason; the mapping is gone in any case
		}
	}()
	if r != nil {
		limit := limits.MaxSize()
		if _, err := io.Copy(f, io.LimitReader(r, min(limit, math.MaxInt64-1)+1)); err != nil {
			return nil, err
		}
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	d, err := NewReader(bufio.NewReaderSize(io.LimitReader(f, size), 1<<20), size, limits)
	if err != nil {
		return nil, err
	}
	t = &Table{header: d.Header(), items: (size - minSize) / itemSize, seed: maphash.MakeSeed()}
	if t.items > maxItems {
		return nil, refuse("an index of %d items is not supported", t.items)
	}
	if err := t.mapFile(f, size); err != nil {
		return nil, err
	}
	return t, CatchFaults(func() error { return t.addAll(d) })
}

// addAll adds the items of the index.
func (t *Table) addAll(d *Reader) error {
	for n := int64(0); ; n++ {
		switch i, err := d.Next(); {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		default:
			t.add(n, i.ID)
		}
	}
}

// mapFile adds the slots to the file, and maps it. The disk space is reserved: if the disk were full
// when a mapped page is written, the process would be killed.
func (t *Table) mapFile(f *os.File, size int64) error {
	slots := int64(1)
	for slots < t.items+t.items/2+1 {
		slots *= 2
	}
	err := unix.Fallocate(int(f.Fd()), 0, size, slots*slotSize)
	if errors.Is(err, unix.EOPNOTSUPP) {
		_, err = io.Copy(io.NewOffsetWriter(f, size), io.LimitReader(zeroReader{}, slots*slotSize))
	}
	if err != nil {
		return fmt.Errorf("reserve space in the folder for temporary files: %w", err)
	}
	t.data, err = unix.Mmap(int(f.Fd()), 0, int(size+slots*slotSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return err
}

// CatchFaults calls f and returns its error. If the disk cannot read or write a page of a Table that f uses,
// CatchFaults returns an EIO instead of a crash of the process. It covers only the goroutine that calls f.
func CatchFaults(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch reason := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }: // of a page
			err = fmt.Errorf("use the temporary file of an index: %w", unix.EIO)
		default:
			panic(reason)
		}
	}()
	return f()
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// Close releases the Table. It and its Index must not be used any more.
func (t *Table) Close() error {
	data := t.data
	t.data = nil
	if data == nil {
		return nil
	}
	return unix.Munmap(data)
}

// Header returns the header of the index.
func (t *Table) Header() Header { return t.header }

// Len returns the number of items.
func (t *Table) Len() int64 { return t.items }

// Index returns the bytes of the index, until Close.
func (t *Table) Index() []byte { return t.data[:minSize+t.items*itemSize] }

// ImageSize returns the size of the file that the index describes, in bytes.
func (t *Table) ImageSize() int64 { return t.end(t.items - 1) }

// Item returns item n.
func (t *Table) Item(n int64) Item {
	begin := t.end(n - 1)
	return Item{Offset: begin, Length: t.end(n) - begin, ID: t.id(n)}
}

// At returns the number of the item that contains an offset of the file.
func (t *Table) At(offset int64) int64 {
	return int64(sort.Search(int(t.items), func(n int) bool { return t.end(int64(n)) > offset }))
}

// end returns the end of chunk n; for n = -1 it is 0.
func (t *Table) end(n int64) int64 {
	if n < 0 {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(t.data[headerSize+n*itemSize:]))
}

func (t *Table) id(n int64) ID { return ID(t.data[headerSize+n*itemSize+8:]) }

// Find returns the number of the first item with an id.
func (t *Table) Find(id ID) (n int64, found bool) {
	slot := t.slot(id)
	n = int64(binary.NativeEndian.Uint32(slot)) - 1
	return n, n >= 0
}

// add adds item n, unless the table has an item with this id.
func (t *Table) add(n int64, id ID) {
	if slot := t.slot(id); binary.NativeEndian.Uint32(slot) == 0 {
		binary.NativeEndian.PutUint32(slot, uint32(n+1))
	}
}

// slot returns the slot that has an id, or the free slot where the id belongs.
func (t *Table) slot(id ID) []byte {
	slots := t.data[minSize+t.items*itemSize:]
	mask := uint64(len(slots)/slotSize - 1)
	for at := maphash.Bytes(t.seed, id[:]) & mask; ; at = (at + 1) & mask {
		slot := slots[at*slotSize:][:slotSize]
		if n := binary.NativeEndian.Uint32(slot); n == 0 || t.id(int64(n-1)) == id {
			return slot
		}
	}
}

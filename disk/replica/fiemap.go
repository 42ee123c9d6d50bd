package replica

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// sector is the unit that Longhorn keeps a volume in: a layer has all of one or
// nothing of it.
const sector = 4096

// extent is a piece of a layer, in whole sectors.
type extent struct {
	start, end int64
	zero       bool // preallocated, never written
}

// What linux/fiemap.h says.
const (
	fiemapRequest   = 0xc020660b // FS_IOC_FIEMAP
	fiemapSync      = 1 << 0
	extentLast      = 1 << 0
	extentUnwritten = 1 << 11

	// batch is how many extents are asked for at once.
	batch = 256
)

type fiemapHeader struct {
	start, length uint64
	flags, mapped uint32
	count, _      uint32
}

type fiemapExtent struct {
	logical, physical, length uint64
	_                         [2]uint64
	flags                     uint32
	_                         [3]uint32
}

// mapping is room for one answer of FIEMAP. It is used again and again.
type mapping struct {
	header  fiemapHeader
	extents [batch]fiemapExtent
}

// errNoExtents says that a file system does not tell which parts of a file were
// preallocated: what hides older data cannot be known there.
var errNoExtents = errors.New("the file system does not tell where the data of a file is (FIEMAP)")

// read puts the next extents of f at or behind from into list, and returns up to where
// these are all there are.
func (m *mapping) read(f *disk.File, from int64, list []extent) ([]extent, int64, error) {
	m.header = fiemapHeader{start: uint64(from), length: largest, flags: fiemapSync, count: batch}
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(f.Fd()), fiemapRequest, uintptr(unsafe.Pointer(m)))
		switch errno {
		case 0:
			return m.collect(from, f.Size(), list)
		case unix.EINTR:
		case unix.EOPNOTSUPP, unix.ENOTTY, unix.ENOSYS:
			return nil, 0, errNoExtents
		default:
			return nil, 0, fmt.Errorf("FIEMAP: %w", errno)
		}
	}
}

func (m *mapping) collect(from, size int64, list []extent) ([]extent, int64, error) {
	mapped := min(int(m.header.mapped), batch)
	end, complete := from, mapped < batch
	for i := range mapped {
		e := &m.extents[i]
		if e.logical > largest || e.length > largest || e.length == 0 {
			return nil, 0, fmt.Errorf("FIEMAP: an extent of %d bytes at %d", e.length, e.logical)
		}
		start, stop := int64(e.logical), int64(e.logical+e.length)
		end, complete = max(end, stop), complete || e.flags&extentLast != 0
		if start < size {
			list = add(list, extent{
				start: start / sector * sector,
				end:   (min(stop, size) + sector - 1) / sector * sector,
				zero:  e.flags&extentUnwritten != 0,
			})
		}
	}
	if complete || end >= size {
		return list, largest, nil
	}
	// What is behind may belong to the sector that the last one ends in.
	end = end / sector * sector
	if end <= from {
		return nil, 0, fmt.Errorf("FIEMAP: %d extents at %d, and not one whole sector", mapped, from)
	}
	for i := len(list) - 1; i >= 0 && list[i].end > end; i-- {
		if list[i].end = end; list[i].start >= end {
			list = list[:i]
		}
	}
	return list, end, nil
}

// add appends e. Where the file system has smaller blocks than a sector, a sector may
// be in two extents: data in any of them makes it data.
func add(list []extent, e extent) []extent {
	if len(list) == 0 {
		return append(list, e)
	}
	last := &list[len(list)-1]
	if e.start < last.end && e.zero != last.zero {
		if e.zero {
			e.start = last.end
		} else if last.end = e.start; last.start >= last.end {
			list = list[:len(list)-1]
			return add(list, e)
		}
	}
	switch {
	case e.start >= e.end:
		return list
	case e.start <= last.end && e.zero == last.zero:
		last.end = max(last.end, e.end)
		return list
	}
	return append(list, e)
}

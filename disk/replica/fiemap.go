package replica

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// sector is the unit of Longhorn's layers: a layer contains a sector completely or not at all.
const sector = 4096

// extent is a piece of a layer, in whole sectors.
type extent struct {
	start, end int64
	zero       bool // preallocated, never written
}

// Constants of linux/fiemap.h.
const (
	fiemapRequest   = 0xc020660b // FS_IOC_FIEMAP
	fiemapSync      = 1 << 0
	extentLast      = 1 << 0
	extentUnwritten = 1 << 11

	// batch is the number of extents of one call.
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

// fiemap is the buffer for calls of FIEMAP.
type fiemap struct {
	header  fiemapHeader
	extents [batch]fiemapExtent
}

// errNoExtents: FIEMAP is needed to find the preallocated parts of a file, which hide older data.
var errNoExtents = errors.New("the file system does not support FIEMAP")

// read appends the next extents of f to list, beginning at the offset from. It also returns the
// offset up to which the list is complete.
func (m *fiemap) read(f *disk.File, from int64, list []extent) ([]extent, int64, error) {
	m.header = fiemapHeader{start: uint64(from), length: maxOffset, flags: fiemapSync, count: batch}
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

// collect converts the result of a FIEMAP call to extents of whole sectors within size.
func (m *fiemap) collect(from, size int64, list []extent) ([]extent, int64, error) {
	mapped := min(int(m.header.mapped), batch)
	end, complete := from, mapped < batch
	for i := range mapped {
		e := &m.extents[i]
		if e.logical > maxOffset || e.length > maxOffset || e.length == 0 {
			return nil, 0, fmt.Errorf("FIEMAP: invalid extent of %d bytes at %d", e.length, e.logical)
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
		return list, maxOffset, nil
	}
	// The next extent may begin in the sector in which the last extent ends, so this sector may be
	// incomplete.
	end = end / sector * sector
	if end <= from {
		return nil, 0, fmt.Errorf("FIEMAP: %d extents at %d do not contain a whole sector", mapped, from)
	}
	for i := len(list) - 1; i >= 0 && list[i].end > end; i-- {
		if list[i].end = end; list[i].start >= end {
			list = list[:i]
		}
	}
	return list, end, nil
}

// add appends e. If the blocks of the file system are smaller than a sector, two extents may share a
// sector: it is data if one of the two extents is data.
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

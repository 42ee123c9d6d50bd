package faultfs

import (
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

const pageSize = 4096

// content is the content of a file. A nil page is a hole. Pages are never modified, so several
// contents can share them.
type content struct {
	size  int64
	pages [][]byte
}

func (c content) clone() content { return content{c.size, slices.Clone(c.pages)} }

func (c *content) grow(size int64) {
	if size > c.size {
		c.size = size
	}
	for int64(len(c.pages))*pageSize < c.size {
		c.pages = append(c.pages, nil)
	}
}

// write stores data. The caller must not modify data after the call.
func (c *content) write(offset int64, data []byte) {
	c.grow(offset + int64(len(data)))
	for len(data) > 0 {
		n, skip := offset/pageSize, int(offset%pageSize)
		take := min(pageSize-skip, len(data))
		if take == pageSize {
			c.pages[n] = data[:pageSize:pageSize]
		} else {
			page := make([]byte, pageSize)
			copy(page, c.pages[n])
			copy(page[skip:], data[:take])
			c.pages[n] = page
		}
		offset, data = offset+int64(take), data[take:]
	}
}

func (c *content) truncate(size int64) {
	if size >= c.size {
		c.grow(size)
		return
	}
	c.size = size
	c.pages = c.pages[:(size+pageSize-1)/pageSize]
	if rest := size % pageSize; rest != 0 && c.pages[len(c.pages)-1] != nil {
		page := make([]byte, pageSize)
		copy(page, c.pages[len(c.pages)-1][:rest])
		c.pages[len(c.pages)-1] = page
	}
}

func (c content) read(buf []byte, offset int64) int {
	n := int(min(int64(len(buf)), max(0, c.size-offset)))
	for done := 0; done < n; {
		at := offset + int64(done)
		skip := int(at % pageSize)
		piece := buf[done:min(n, done+pageSize-skip)]
		if page := c.pages[at/pageSize]; page != nil {
			copy(piece, page[skip:])
		} else {
			clear(piece)
		}
		done += len(piece)
	}
	return n
}

// seek implements lseek with SEEK_DATA and SEEK_HOLE.
func (c content) seek(offset int64, whence uint32) (int64, syscall.Errno) {
	if offset >= c.size {
		return 0, syscall.ENXIO
	}
	for n := offset / pageSize; n < int64(len(c.pages)); n++ {
		if (c.pages[n] != nil) == (whence == unix.SEEK_DATA) {
			return max(offset, n*pageSize), 0
		}
	}
	if whence == unix.SEEK_DATA {
		return 0, syscall.ENXIO
	}
	return c.size, 0
}

func (c content) blocks() uint64 {
	var n uint64
	for _, page := range c.pages {
		if page != nil {
			n += pageSize / 512
		}
	}
	return n
}

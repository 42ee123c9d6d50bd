package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// placer writes chunks of an image in place. It opens the file when the first one
// comes: an image in which nothing is wrong is not opened for writing at all.
type placer struct {
	root           *os.Root
	name           string
	whole, partial *os.File // past the page cache where that is possible, and through it
	spare          []byte
}

// put writes c, which never makes the file longer, or makes a hole for zeros.
func (p *placer) put(c *chunk) error {
	f, err := p.open(len(c.data)%directAlign == 0)
	if err != nil {
		return err
	}
	offset := c.n * ChunkSize
	if allZero(c.data) {
		padded := (int64(len(c.data)) + directAlign - 1) &^ (directAlign - 1)
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, padded)
		if err == nil {
			return nil
		}
		clear(c.buf)
	}
	_, err = f.WriteAt(c.buf[:len(c.data)], offset)
	return err
}

// open returns the file to write to. What O_DIRECT cannot write, the odd end of a
// file, goes through the page cache.
func (p *placer) open(aligned bool) (*os.File, error) {
	f, open := &p.partial, openImage
	if aligned {
		f, open = &p.whole, openWhole
	}
	if *f != nil {
		return *f, nil
	}
	var err error
	*f, err = open(p.root, p.name, os.O_RDWR)
	return *f, err
}

func openWhole(root *os.Root, name string, flag int) (*os.File, error) {
	f, _, err := openDirect(root, name, flag)
	return f, err
}

// buffer returns room to read a chunk back.
func (p *placer) buffer() []byte {
	if p.spare == nil {
		p.spare = NewBuffer()
	}
	return p.spare
}

// close is for when nothing more is to be written. It may be called again.
func (p *placer) close() error {
	var err error
	for _, f := range []**os.File{&p.whole, &p.partial} {
		if *f != nil {
			err = errors.Join(err, (*f).Close())
			*f = nil
		}
	}
	return err
}

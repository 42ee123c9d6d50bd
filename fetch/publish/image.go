package publish

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// maxImage is greater than the size of any image.
const maxImage = 1 << 60

// Limits accept the index of every image.
var Limits = caibx.Limits{Image: maxImage, Chunk: 1}

// Image is an open image file.
type Image struct {
	*os.File
	Size int64

	modified time.Time
}

// OpenImage opens a raw or qcow2 image. A *disk.FormatError means that the file is neither, or that it
// is packed. The caller closes the Image.
func OpenImage(path string) (*Image, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // O_NONBLOCK, because the path may name a pipe
	if err != nil {
		return nil, err
	}
	im, err := newImage(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return im, nil
}

func newImage(f *os.File) (*Image, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("it is not a regular file")
	}
	if _, err := disk.Inspect(f, info.Size(), ""); err != nil {
		return nil, err
	}
	return &Image{f, info.Size(), info.ModTime()}, nil
}

// Cut cuts the image into chunks as the header h says, and returns its index. done counts the bytes that
// have been read. The caller closes the Table.
func (im *Image) Cut(ctx context.Context, h caibx.Header, done *atomic.Int64) (*caibx.Table, error) {
	f, err := caibx.TempFile("")
	if err != nil {
		return nil, err
	}
	t, err := caibx.Cut(ctx, im, im.Size, h, f, done)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, im.readError(err)
	}
	return t, err
}

// IsHole implements caibx.File.
func (im *Image) IsHole(from, to int64) bool {
	data, _ := fetch.NextExtent(im.File, from, im.Size)
	return to <= data
}

// readError returns the error for an image that could not be read.
func (im *Image) readError(err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF // the file has become shorter
	}
	return fmt.Errorf("read %s: %w", im.Name(), err)
}

// IndexName returns the name of the index of the image.
func (im *Image) IndexName() string { return filepath.Base(im.Name()) + ".caibx" }

// Is reports whether both images are the same file.
func (im *Image) Is(other *Image) bool {
	a, err := im.Stat()
	b, err2 := other.Stat()
	return err == nil && err2 == nil && os.SameFile(a, b)
}

// Unchanged returns an error if the file has changed since OpenImage.
func (im *Image) Unchanged() error {
	info, err := im.Stat()
	if err != nil {
		return err
	}
	if info.Size() != im.Size || !info.ModTime().Equal(im.modified) {
		return fmt.Errorf("%s: %w", im.Name(), disk.ErrModified)
	}
	return nil
}

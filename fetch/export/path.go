package export

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// findPath returns the source for a file or block device.
func findPath(c *fetch.Client, r Request) (*Source, error) {
	s := &Source{request: r, name: r.Path}
	s.open = func() (flatDisk, error) { return openPath(c, r.Path) }
	if _, err := checkPath(c, r.Path); err != nil {
		return nil, s.classify(err)
	}
	return s, nil
}

func openPath(c *fetch.Client, path string) (flatDisk, error) {
	info, err := checkPath(c, path)
	if err != nil {
		return nil, err
	}
	flags, device := 0, !info.Mode().IsRegular()
	if device {
		flags = unix.O_EXCL // fails if the kernel has mounted or claimed the device
	}
	opened, err := c.OpenFile(path, flags)
	if errors.Is(err, unix.EBUSY) {
		err = &fetch.Error{Class: fetch.Refused, Err: fmt.Errorf("%s is mounted or in use: unmount it, or export a snapshot of it", path)}
	}
	if err != nil {
		return nil, err
	}
	now, err := opened.Stat()
	if err == nil && !os.SameFile(info, now) {
		err = fmt.Errorf("%w: the path now refers to another file", disk.ErrModified)
	}
	if err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	f, err := disk.NewFile(opened)
	if err != nil {
		return nil, err
	}
	p := flatFile{File: f, file: opened, ahead: f.ReadAhead()}
	if !device {
		if err := errors.Join(fetch.PrepareChangeDetection(opened), checkIsDisk(f, path)); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return &p, nil
	}
	d := &blockDevice{flatFile: p}
	if d.writeCount, err = d.readWriteCount(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return d, nil
}

// checkPath checks that the path can be read as a disk. It opens only regular files and block devices,
// because opening other devices may have side effects.
func checkPath(c *fetch.Client, path string) (os.FileInfo, error) {
	info, err := c.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeDevice {
		return nil, &fetch.Error{Class: fetch.BadSource, Err: fmt.Errorf("%s is neither a file nor a block device: declare another path", path)}
	}
	f, err := c.OpenFile(path, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil && (size == 0 || size%512 != 0) {
		err = &fetch.Error{Class: fetch.BadSource, Err: fmt.Errorf("%s has %d bytes: the size of a disk must be a positive multiple of 512", path, size)}
	}
	return info, err
}

// checkIsDisk returns an error for a file that is an image already, packed, or no disk at all: a guest of
// the exported image would see the header of the file. Volumes and block devices need no check: their bytes
// are the disk, whatever a guest has written there.
func checkIsDisk(f *disk.File, path string) error {
	info, err := disk.Inspect(f, f.Size(), "")
	rejected, ok := errors.AsType[*disk.FormatError](err)
	switch {
	case ok:
		err = fmt.Errorf("%s (%s)", rejected.Reason, rejected.Hint)
	case err == nil && info.Format == model.QCOW2:
		err = errors.New("the file is a qcow2 image")
	default:
		return err
	}
	at := url.URL{Scheme: "file", Path: path}
	return &fetch.Error{Class: fetch.BadSource, Err: fmt.Errorf("%s is no raw disk: %w; an image, also a packed one, is downloaded: source: {download: {url: %q}}", path, err, at.String())}
}

// flatFile reads a raw file as a disk.
type flatFile struct {
	*disk.File
	file       *os.File // the file of File
	ahead      io.ReaderAt
	searched   int64 // the offset of the last search for data
	start, end int64 // the data extent that was found
}

// Fingerprint identifies the file by its times and inode.
func (p *flatFile) Fingerprint() string {
	sum := sha256.Sum256(fmt.Append(nil, p.Evidence()))
	return hex.EncodeToString(sum[:])
}

// NextData returns the next range with data.
func (p *flatFile) NextData(offset int64) (start, end int64, err error) {
	if start, end = fetch.NextExtent(p.file, offset, p.Size()); start >= p.Size() {
		return 0, 0, io.EOF
	}
	return start, end, nil
}

// ReadAt reads data, and returns zeros for holes.
func (p *flatFile) ReadAt(b []byte, offset int64) (read int, err error) {
	for read < len(b) {
		at := offset + int64(read)
		if at >= p.Size() {
			return read, io.EOF
		}
		if at >= p.end || at < p.searched {
			p.searched = at
			p.start, p.end = fetch.NextExtent(p.file, at, p.Size())
		}
		piece := b[read:]
		if at < p.start {
			piece = piece[:min(int64(len(piece)), p.start-at)]
			clear(piece)
			read += len(piece)
			continue
		}
		n, err := p.ahead.ReadAt(piece[:min(int64(len(piece)), p.end-at)], at)
		if read += n; err != nil {
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("%w: it was truncated", disk.ErrModified)
			}
			return read, err
		}
	}
	return read, nil
}

// Unchanged returns an error if the file was modified since it was opened. The error already contains
// the path. It is a *fetch.Error, so that Source.classify does not add the path again.
func (p *flatFile) Unchanged() error {
	err := p.File.Unchanged()
	if errors.Is(err, disk.ErrModified) {
		return &fetch.Error{Class: fetch.Network, Err: err} // perhaps the file does not change during a later attempt
	}
	return err
}

// blockDevice is a block device or a logical volume that was opened exclusively.
type blockDevice struct {
	flatFile
	writeCount string // result of readWriteCount when the device was opened
}

// Fingerprint returns "", because writes before the device was opened cannot be detected.
func (d *blockDevice) Fingerprint() string { return "" }

// Unchanged returns an error if the device was written to since it was opened.
func (d *blockDevice) Unchanged() error {
	now, err := d.readWriteCount()
	if err != nil {
		return err
	}
	if now != d.writeCount {
		return fmt.Errorf("%w: the device was written to", disk.ErrModified)
	}
	return nil
}

// readWriteCount returns the kernel's counters of written and of discarded sectors. A counter of requests
// would not do: on a device with a write cache, Sync itself is a write of no sectors.
func (d *blockDevice) readWriteCount() (string, error) {
	// The kernel counts a write through the page cache only when it writes the page to the device.
	if err := d.file.Sync(); err != nil {
		return "", err
	}
	var st unix.Stat_t
	if err := unix.Fstat(d.Fd(), &st); err != nil {
		return "", err
	}
	text, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
	if err != nil {
		return "", err
	}
	fields := strings.Fields(string(text)) // see Documentation/block/stat.rst
	if len(fields) < 11 {
		return "", fmt.Errorf("unknown format of the kernel's device statistics: %q", text)
	}
	counts := fields[6]
	if len(fields) > 13 {
		counts += " " + fields[13]
	}
	return counts, nil
}

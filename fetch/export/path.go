package export

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// findPath looks at a file or block device that is the volume.
func findPath(c *fetch.Client, r Request) (*Source, error) {
	s := &Source{request: r, name: r.Path}
	s.open = func() (flat, error) { return openPath(c, r.Path) }
	if _, err := lookAt(c, r.Path); err != nil {
		return nil, s.failed(err)
	}
	return s, nil
}

func openPath(c *fetch.Client, path string) (flat, error) {
	info, err := lookAt(c, path)
	if err != nil {
		return nil, err
	}
	flags, device := 0, !info.Mode().IsRegular()
	if device {
		flags = unix.O_EXCL // of a device: nobody else may have claimed it
	}
	opened, err := c.OpenFile(path, flags)
	if errors.Is(err, unix.EBUSY) {
		err = &fetch.Error{Class: fetch.Refused, Err: fmt.Errorf("%s is mounted or in use: unmount it, or make a snapshot of it and name that", path)}
	}
	if err != nil {
		return nil, err
	}
	now, err := opened.Stat()
	if err == nil && !os.SameFile(info, now) {
		err = fmt.Errorf("%w: another file is at the path", disk.ErrModified)
	}
	if err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	f, err := disk.NewFile(opened)
	if err != nil {
		return nil, err
	}
	p := plain{File: f, ahead: f.ReadAhead()}
	if !device {
		if err := fetch.PrepareChangeDetection(opened); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return &p, nil
	}
	d := &blockDevice{plain: p, file: opened}
	if d.writes, err = d.count(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return d, nil
}

// lookAt opens what is at the path for a moment, waits for nothing, and refuses what
// cannot be a disk. That is not even opened: to some devices it means something.
func lookAt(c *fetch.Client, path string) (os.FileInfo, error) {
	info, err := c.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeDevice {
		return nil, &fetch.Error{Class: fetch.BadSource, Err: fmt.Errorf("%s is neither a file nor a block device", path)}
	}
	f, err := c.OpenFile(path, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil && (size == 0 || size%512 != 0) {
		err = &fetch.Error{Class: fetch.BadSource, Err: fmt.Errorf("%s has %d bytes, and a disk is a number of whole sectors of 512", path, size)}
	}
	return info, err
}

// plain is a file whose bytes are those of the disk.
type plain struct {
	*disk.File
	ahead      io.ReaderAt
	asked      int64 // where data was looked for last
	start, end int64 // of what was found
}

// Fingerprint tells the file by its times and inode.
func (p *plain) Fingerprint() string {
	sum := sha256.Sum256(fmt.Append(nil, p.Evidence()))
	return hex.EncodeToString(sum[:])
}

// NextData returns the next range that is no hole. Where the file system does not tell,
// all is data.
func (p *plain) NextData(offset int64) (start, end int64, err error) {
	if offset >= p.Size() {
		return 0, 0, io.EOF
	}
	start, err = unix.Seek(p.Fd(), offset, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return 0, 0, io.EOF
	}
	if err != nil {
		return offset, p.Size(), nil
	}
	if start >= p.Size() {
		return 0, 0, io.EOF // it has grown, which Unchanged tells
	}
	if end, err = unix.Seek(p.Fd(), start, unix.SEEK_HOLE); err != nil {
		end = p.Size()
	}
	return start, min(end, p.Size()), nil
}

// ReadAt reads the data, and makes up the zeros of holes.
func (p *plain) ReadAt(b []byte, offset int64) (read int, err error) {
	for read < len(b) {
		at := offset + int64(read)
		if at >= p.Size() {
			return read, io.EOF
		}
		if at >= p.end || at < p.asked {
			p.asked = at
			if p.start, p.end, err = p.NextData(at); errors.Is(err, io.EOF) {
				p.start, p.end = p.Size(), p.Size()
			} else if err != nil {
				return read, err
			}
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
				err = fmt.Errorf("%w: it became shorter", disk.ErrModified)
			}
			return read, err
		}
	}
	return read, nil
}

// blockDevice is a block device, or a logical volume, that nobody else has claimed.
type blockDevice struct {
	plain
	file   *os.File
	writes string // as the kernel counts them
}

// Fingerprint is empty: nothing tells what was written to a device before it was opened.
func (d *blockDevice) Fingerprint() string { return "" }

// NextData takes everything for data.
func (d *blockDevice) NextData(offset int64) (start, end int64, err error) {
	if offset >= d.Size() {
		return 0, 0, io.EOF
	}
	return offset, d.Size(), nil
}

// ReadAt reads the device.
func (d *blockDevice) ReadAt(b []byte, offset int64) (int, error) {
	return d.ahead.ReadAt(b, offset)
}

// Unchanged reports whether nothing was written to the device since it was opened.
func (d *blockDevice) Unchanged() error {
	now, err := d.count()
	if err != nil {
		return err
	}
	if now != d.writes {
		return fmt.Errorf("%w: the device was written to", disk.ErrModified)
	}
	return nil
}

// count returns how much was written to the device, and discarded of it, until now.
func (d *blockDevice) count() (string, error) {
	// What somebody wrote through the page cache is counted when it is written back.
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
		return "", fmt.Errorf("what the kernel says of the device's writes is not understood: %q", text)
	}
	counts := fields[4:7:7]
	if len(fields) > 13 {
		counts = append(counts, fields[11], fields[13]) // discards
	}
	return strings.Join(counts, " "), nil
}

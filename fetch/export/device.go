package export

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
)

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
		return fmt.Errorf("%w: the device was written to", disk.ErrChanging)
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

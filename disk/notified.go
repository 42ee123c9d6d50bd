package disk

import (
	"errors"
	"fmt"
	"io/fs"
)

// notifiedFile has the notifications of the manager that are not over, so that a restart neither repeats nor loses one. It is
// beside longhorn-disk.cfg, and belongs to the whole disk. Package reconcile defines its content.
const notifiedFile = "backing-image-manager.notified"

// Notified returns what SetNotified recorded; nil: nothing. It has at most 1 MiB, and may come from another program.
func (d *Disk) Notified() ([]byte, error) {
	data, err := readSmall(d.root, notifiedFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s of %s: %w", notifiedFile, d.path, err)
	}
	return data, nil
}

// SetNotified records data, durably. The disk must be locked.
func (d *Disk) SetNotified(data []byte) error {
	if err := writeDurably(d.root, notifiedFile, data); err != nil {
		return fmt.Errorf("write %s of %s: %w", notifiedFile, d.path, err)
	}
	return nil
}

package disk

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// replaceable makes sure that there is no image yet, or one that failed and that
// nobody uses. Of a file that has come meanwhile nobody knows what it is worth.
func (p *Part) replaceable() error {
	switch c := p.disk.Look(p.id); c.State {
	case Pending:
		return nil
	case Failed:
		return p.disk.used(p.id, p.id.file(imageFile))
	case Ready:
		return fmt.Errorf("%s is ready already", p.id)
	default:
		return fmt.Errorf("a file is there, which has to be verified before it may be replaced: %s", c.Message)
	}
}

// putInPlace gives the part of id the name of the image. An older image, which
// failed, changes places with it, so that it can be looked at once more when no new
// user can find it, and goes back if it has got one meanwhile: *InUseError.
func (d *Disk) putInPlace(id ID) error {
	swapped, err := d.exchange(id)
	if err != nil {
		return err
	}
	if !swapped {
		return renameDurably(d.root, id.file(partFile), id.file(imageFile))
	}
	if err := d.used(id, id.file(partFile)); err != nil {
		_, back := d.exchange(id)
		return errors.Join(err, back, syncFolder(d.root, id.folder()))
	}
	return syncFolder(d.root, id.folder())
}

// exchange has the part and the image of id change places, in one step. It does
// nothing where there is no image, or where the file system cannot do that; users
// are then looked for before the renaming alone.
func (d *Disk) exchange(id ID) (done bool, err error) {
	folder, err := d.root.Open(id.folder())
	if err != nil {
		return false, err
	}
	defer folder.Close()
	fd := int(folder.Fd())
	err = unix.Renameat2(fd, partFile, fd, imageFile, unix.RENAME_EXCHANGE)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ENOTSUP):
		return false, nil
	}
	return false, fmt.Errorf("exchange part and image: %w", err)
}

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
	err := d.renamePart(id, unix.RENAME_EXCHANGE)
	if err == nil {
		if err := d.used(id, id.file(partFile)); err != nil {
			return errors.Join(err, d.renamePart(id, unix.RENAME_EXCHANGE), syncFolder(d.root, id.folder()))
		}
		return syncFolder(d.root, id.folder())
	}
	if errors.Is(err, unix.ENOENT) { // there is no image, and one that comes now stays
		err = d.renamePart(id, unix.RENAME_NOREPLACE)
	}
	switch {
	case err == nil:
		return syncFolder(d.root, id.folder())
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ENOTSUP):
		return d.replace(id)
	}
	return fmt.Errorf("give the part its name: %w", err)
}

// renamePart renames the part of id to the image in one step, in the way of
// renameat2's flags.
func (d *Disk) renamePart(id ID, flags uint) error {
	folder, err := d.root.Open(id.folder())
	if err != nil {
		return err
	}
	defer folder.Close()
	fd := int(folder.Fd())
	return unix.Renameat2(fd, partFile, fd, imageFile, flags)
}

// replace is for file systems that know no flags. Users are looked for at the last
// moment before, since nothing can be taken back.
func (d *Disk) replace(id ID) error {
	_, err := d.root.Lstat(id.file(imageFile))
	if err == nil {
		err = d.used(id, id.file(imageFile))
	}
	if ignoreMissing(err) != nil {
		return err
	}
	return renameDurably(d.root, id.file(partFile), id.file(imageFile))
}

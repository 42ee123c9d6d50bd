package disk

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// replaceable makes sure that there is no image yet, or one that failed and that
// nobody uses, and notes which that is. Of a file that has come meanwhile nobody knows
// what it is worth.
func (p *Part) replaceable() error {
	var err error
	if p.replaces, err = p.disk.evidence(p.id.file(imageFile)); err != nil {
		return err
	}
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

// evidence is what a file is at the moment, zero where there is none.
func (d *Disk) evidence(name string) (Evidence, error) {
	info, err := d.root.Lstat(name)
	if err != nil {
		return Evidence{}, ignoreMissing(err)
	}
	return evidenceOf(info), nil
}

// replaced makes sure that the file at name is the one that was looked at, or that
// there is none. fs.ErrExist says that another one came, or other bytes.
func (p *Part) replaced(name string) error {
	now, err := p.disk.evidence(name)
	if err != nil {
		return err
	}
	now.ChangeTime = p.replaces.ChangeTime // moves with the name
	if now != (Evidence{ChangeTime: now.ChangeTime}) && now != p.replaces {
		return fmt.Errorf("a file has come, which has to be verified before it may be replaced: %w", fs.ErrExist)
	}
	return nil
}

// putInPlace gives the part the name of the image. An older image, which failed,
// changes places with it, so that it can be looked at once more when no new user can
// find it, and goes back if it has got one meanwhile, *InUseError, or is not the one
// that failed: fs.ErrExist.
func (p *Part) putInPlace() error {
	d, id := p.disk, p.id
	err := error(unix.ENOENT)
	if p.replaces != (Evidence{}) {
		err = d.renamePart(id, unix.RENAME_EXCHANGE)
	}
	if err == nil {
		err := p.replaced(id.file(partFile))
		if err == nil {
			err = d.used(id, id.file(partFile))
		}
		if err != nil {
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
		return p.replace()
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
func (p *Part) replace() error {
	d, id := p.disk, p.id
	_, err := d.root.Lstat(id.file(imageFile))
	if err == nil {
		err = d.used(id, id.file(imageFile))
	}
	if err == nil {
		err = p.replaced(id.file(imageFile))
	}
	if ignoreMissing(err) != nil {
		return err
	}
	return renameDurably(d.root, id.file(partFile), id.file(imageFile))
}

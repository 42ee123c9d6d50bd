package chaos

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// disk is a disk of a node: a file system of limited size in memory. The daemon finds it at path. The
// observer reads it at store, where it is also while it is not mounted at path.
type disk struct {
	node        *node
	name        string
	path, store string
	size        int64
	life        int // number of the disk at this place: a lost disk is replaced by the next one
	attached    bool
	unmanaged   []unmanagedFile
}

// unmanagedFile is a file that the program must not touch.
type unmanagedFile struct {
	path string // relative to the store
	info os.FileInfo
}

// ref returns NODE/DISK.
func (d *disk) ref() string { return d.node.name + "/" + d.name }

// insert mounts a new, empty disk.
func (d *disk) insert(binary string) error {
	if err := errors.Join(os.MkdirAll(d.store, 0o755), os.MkdirAll(d.path, 0o755)); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", d.store, "tmpfs", 0, fmt.Sprintf("size=%d", d.size)); err != nil {
		return fmt.Errorf("mount %s: %w", d.store, err)
	}
	d.life++
	if _, err := runCommand(time.Minute, binary, "disk", "init", d.store); err != nil {
		return err
	}
	if err := d.writeUnmanaged(); err != nil {
		return err
	}
	return d.attach()
}

// attach mounts the disk at the path of the daemon.
func (d *disk) attach() error {
	d.attached = true
	if err := syscall.Mount(d.store, d.path, "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", d.path, err)
	}
	return nil
}

// detach unmounts it there, also if files are open.
func (d *disk) detach() error {
	d.attached = false
	if err := syscall.Unmount(d.path, syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", d.path, err)
	}
	return nil
}

// remove unmounts the disk, which loses its content.
func (d *disk) remove() error {
	var err error
	if d.attached {
		err = d.detach()
	}
	if unmountErr := syscall.Unmount(d.store, syscall.MNT_DETACH); unmountErr != nil {
		err = errors.Join(err, fmt.Errorf("unmount %s: %w", d.store, unmountErr))
	}
	return err
}

// setReadOnly remounts the file system. It fails with EBUSY while the daemon writes to a file.
func (d *disk) setReadOnly(on bool) error {
	flags := uintptr(syscall.MS_REMOUNT)
	if on {
		flags |= syscall.MS_RDONLY
	}
	if err := syscall.Mount("", d.store, "", flags, ""); err != nil {
		return fmt.Errorf("remount %s: %w", d.store, err)
	}
	return nil
}

const fillerFile = "somebody-elses-file"

// fill leaves at most a few KiB of free space.
func (d *disk) fill(leave int64) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(d.store, &stat); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(d.store, fillerFile))
	if err != nil {
		return err
	}
	defer f.Close()
	size := int64(stat.Bavail)*stat.Bsize - leave
	if size <= 0 {
		return nil
	}
	return unix.Fallocate(int(f.Fd()), 0, 0, size)
}

func (d *disk) unfill() error { return os.Remove(filepath.Join(d.store, fillerFile)) }

// writeUnmanaged creates files that the program must not touch: beside the images, in their place, and
// in Longhorn's folders.
func (d *disk) writeUnmanaged() error {
	d.unmanaged = nil
	if _, err := d.addReplica("other-0a1b2c3d", ""); err != nil {
		return err
	}
	for _, name := range []string{
		"notes.txt", "tmp/image-0-leftover", "replicas/other-0a1b2c3d/volume-head-000.img",
		"backing-images/README", "backing-images/of-another-0a0b0c0d/backing", "backing-images/.hidden/backing",
		"backing-images/not an image/backing",
	} {
		path := filepath.Join(d.store, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("of somebody else: "+name), 0o644)); err != nil {
			return err
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		d.unmanaged = append(d.unmanaged, unmanagedFile{name, info})
	}
	return nil
}

// touched returns the unmanaged files that changed.
func (d *disk) touched() (changed []string) {
	for _, f := range d.unmanaged {
		info, err := os.Stat(filepath.Join(d.store, f.path))
		switch {
		case err != nil:
			changed = append(changed, err.Error())
		case !os.SameFile(f.info, info), !info.ModTime().Equal(f.info.ModTime()), info.Size() != f.info.Size(), info.Mode() != f.info.Mode():
			changed = append(changed, f.path)
		}
	}
	return changed
}

// folder returns the folder of a copy, which exists.
func (d *disk) folder(id string) string { return filepath.Join(d.store, "backing-images", id) }

// flip changes one bit of a copy. If it is silent, the modification time and the record match
// the changed file, as after a fault of the medium: only reading the bytes shows it.
func (d *disk) flip(id string, offset uint64, silent bool) error {
	file := filepath.Join(d.folder(id), "backing")
	f, err := os.OpenFile(file, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return err
	}
	b, at := make([]byte, 1), int64(offset%uint64(before.Size()))
	if _, err := f.ReadAt(b, at); err != nil {
		return err
	}
	b[0] ^= 1 << (offset % 8)
	if _, err := f.WriteAt(b, at); err != nil || !silent {
		return err
	}
	if err := os.Chtimes(file, before.ModTime(), before.ModTime()); err != nil {
		return err
	}
	after, err := f.Stat()
	if err != nil {
		return err
	}
	return editRecord(filepath.Join(d.folder(id), "backing.record"), after.Sys().(*syscall.Stat_t).Ctim.Nano())
}

// editRecord sets the change time in the evidence of a record.
func editRecord(name string, ctime int64) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	record := map[string]any{}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber() // times of files have too many digits for a float
	if err := d.Decode(&record); err != nil {
		return err
	}
	evidence, ok := record["evidence"].(map[string]any)
	if !ok {
		return fmt.Errorf("%s has no evidence", name)
	}
	evidence["changeTime"] = ctime
	if b, err = json.Marshal(record); err != nil {
		return err
	}
	return writeFile(name, b)
}

// garble tears a small file beside a copy.
func (d *disk) garble(id string, choice uint64) (name string, err error) {
	name = pick(choice, []string{"backing.record", "backing.chunks", "backing.cfg"})
	path := filepath.Join(d.folder(id), name)
	b, err := os.ReadFile(path)
	if err != nil {
		return name, err
	}
	return name, writeFile(path, b[:len(b)/2])
}

// addReplica creates the folder of a replica that uses a copy, or with an empty id none, and returns it.
func (d *disk) addReplica(volume, id string) (folder string, err error) {
	file := ""
	if id != "" {
		file = "/host/var/lib/longhorn/backing-images/" + id + "/backing"
	}
	meta, err := json.Marshal(map[string]any{
		"Size": 1 << 30, "Head": "volume-head-000.img", "Dirty": false, "Rebuilding": false, "Error": "", "Parent": "",
		"SectorSize": 512, "BackingFilePath": file, "Encrypted": false,
	})
	if err != nil {
		return "", err
	}
	folder = filepath.Join(d.store, "replicas", volume)
	return folder, errors.Join(os.MkdirAll(folder, 0o755), writeFile(filepath.Join(folder, "volume.meta"), meta))
}

// copyFolder returns the NAME-UUID of an entry of backing-images. A folder that is being removed still
// has its copy.
func copyFolder(entry string) string { return strings.TrimPrefix(entry, ".removing-") }

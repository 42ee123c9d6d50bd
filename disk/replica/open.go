package replica

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/qcow2"
)

// Errors that a caller decides on.
var (
	// ErrOpen: a process has the volume open, or died with it, so that its head is not
	// at rest. A snapshot of it is.
	ErrOpen = errors.New("the volume is attached, or was not detached cleanly")
	// ErrRemoved: the snapshot was removed. It is still there for those upon it.
	ErrRemoved = errors.New("the snapshot was removed")
)

// Location says what of a replica is to be read.
type Location struct {
	Disk     *disk.Disk
	Folder   string // of the replica
	Snapshot string // "": the head
	// Others are the disks of this node that the image below the volume is looked for
	// on, in this order, when the replica's own does not have it.
	Others []*disk.Disk
	// Removed allows a snapshot that was removed.
	Removed bool
}

// Open opens the volume as a replica has it. It reads small files only. Errors are
// sentences about the replica, to be put behind its name.
func Open(at Location) (*Source, error) {
	r, err := at.Disk.OpenReplica(at.Folder)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	p, err := at.parts(r)
	if err != nil {
		return nil, err
	}
	s := &Source{size: p.info.Size, recheck: at.fingerprint}
	if err := s.open(r, p); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.fingerprint = s.sum(p)
	whole := (s.size + sector - 1) / sector * sector
	s.reading, s.scan = newWalk(s.layers, whole), newWalk(s.layers, whole)
	// A file system that does not tell of extents is better found out now.
	if _, err := s.scan.at(0); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Check says why Open would fail, as far as metadata tell: it opens no more than the
// newest layer, and the image below the volume.
func Check(at Location) error {
	r, err := at.Disk.OpenReplica(at.Folder)
	if err != nil {
		return err
	}
	defer r.Close()
	p, err := at.parts(r)
	if err != nil {
		return err
	}
	if _, err := p.evidence(r); err != nil {
		return err
	}
	f, err := r.Open(p.files[0])
	if err != nil {
		return err
	}
	_, _, err = new(mapping).read(f, 0, nil)
	return errors.Join(err, f.Close())
}

// parts is what a disk is made of, by name.
type parts struct {
	info   Info
	files  []string // newest first
	below  disk.ID  // zero: no image
	holder *disk.Disk
}

func (at Location) parts(r *disk.ReplicaFolder) (p parts, err error) {
	if p.info, err = look(r); err != nil {
		return p, err
	}
	if err := p.info.CheckHealth(); err != nil {
		return p, err
	}
	first := p.info.Head
	if at.Snapshot != "" {
		if first, err = snapshotFile(at.Snapshot); err != nil {
			return p, err
		}
		if _, err := r.Stat(first); errors.Is(err, fs.ErrNotExist) {
			return p, fmt.Errorf("has no snapshot %q%s", at.Snapshot, snapshots(r, p.info.Head))
		}
	} else if !headPattern.MatchString(first) {
		return p, fmt.Errorf("read %s: head %q", volumeFile, first)
	}
	if at.Snapshot == "" && p.info.Dirty {
		return p, ErrOpen
	}
	var newest layerMeta
	if p.files, newest, err = chain(r, first); err != nil {
		return p, err
	}
	if at.Snapshot != "" && newest.Removed && !at.Removed {
		return p, ErrRemoved
	}
	p.below, p.holder, err = at.findBelow(p.info.VolumeMeta)
	return p, err
}

// findBelow returns the image below the volume, and the disk that has it. The path of
// it is another machine's, or a container's, so that only the name in it counts.
func (at Location) findBelow(m disk.VolumeMeta) (disk.ID, *disk.Disk, error) {
	folder, ok, err := m.BackingImage()
	if err != nil || !ok {
		return disk.ID{}, nil, err
	}
	id, err := disk.ParseID(folder)
	if end := path.Base(path.Clean(m.BackingFilePath)); err == nil && end != "backing" && end != folder {
		err = errors.New("that is no backing image")
	}
	if err != nil {
		return disk.ID{}, nil, fmt.Errorf("lies on %q: %w", m.BackingFilePath, err)
	}
	state := "is not there"
	for _, d := range append([]*disk.Disk{at.Disk}, at.Others...) {
		switch c := d.Stat(id); {
		case c.State == disk.Ready, c.State == disk.Unknown:
			return id, d, nil
		case c.State == disk.Failed:
			state = "cannot be used: " + c.Message
		}
	}
	return disk.ID{}, nil, fmt.Errorf("lies on the backing image %s, which %s on the disks of this node", id, state)
}

func (s *Source) open(r *disk.ReplicaFolder, p parts) error {
	for _, file := range p.files {
		f, err := r.Open(file)
		if err != nil {
			return missing(err, file)
		}
		s.layers = append(s.layers, layer{name: file, file: f})
	}
	if p.holder == nil {
		return nil
	}
	f, c, err := p.holder.OpenBackingFile(p.below)
	if err != nil {
		return err
	}
	format := c.Format
	if format == "" {
		info, err := disk.Inspect(f, f.Size(), "")
		if err != nil {
			return errors.Join(fmt.Errorf("backing image %s: %w", p.below, err), f.Close())
		}
		format = info.Format
	}
	if format == disk.Raw {
		s.layers = append(s.layers, layer{name: p.below.String(), file: f})
		return nil
	}
	s.base = f
	if s.below, err = qcow2.Open(f.ReadAhead(), f.Size()); err != nil {
		return fmt.Errorf("backing image %s: %w", p.below, err)
	}
	return nil
}

// sum makes the fingerprint from the files that are open.
func (s *Source) sum(p parts) string {
	var evidence []disk.Evidence
	for _, l := range s.layers {
		evidence = append(evidence, l.file.Evidence())
	}
	if s.base != nil {
		evidence = append(evidence, s.base.Evidence())
	}
	return p.sum(evidence)
}

// sum is what changes with any byte of the disk. What else volume.meta says changes
// whenever the volume is attached, and counts for nothing.
func (p parts) sum(evidence []disk.Evidence) string {
	below := struct{ Name, UUID string }(p.below) // its JSON is a part of fingerprints on disks
	text, err := json.Marshal([]any{p.info.Size, p.files, below, evidence})
	if err != nil {
		panic("replica: " + err.Error()) // numbers and names
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// fingerprint looks at everything by its name once more.
func (at Location) fingerprint() (string, error) {
	r, err := at.Disk.OpenReplica(at.Folder)
	if err != nil {
		return "", err
	}
	defer r.Close()
	at.Removed = true // while it is read
	p, err := at.parts(r)
	if err != nil {
		return "", err
	}
	evidence, err := p.evidence(r)
	return p.sum(evidence), err
}

// evidence is what the files are at the moment.
func (p parts) evidence(r *disk.ReplicaFolder) (all []disk.Evidence, err error) {
	for _, file := range p.files {
		e, err := r.Stat(file)
		if err != nil {
			return nil, missing(err, file)
		}
		all = append(all, e)
	}
	if p.holder == nil {
		return all, nil
	}
	f, _, err := p.holder.OpenBackingFile(p.below)
	if err != nil {
		return nil, err
	}
	return append(all, f.Evidence()), f.Close()
}

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
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/disk/qcow2"
)

// Errors that callers distinguish.
var (
	// ErrAttached: a process has the volume open, or exited without closing it. The head may change or
	// be inconsistent; snapshots are consistent.
	ErrAttached = errors.New("the volume is attached, or was not detached cleanly")
	// ErrRemoved: the snapshot was removed. Its layer still exists because newer layers need it.
	ErrRemoved = errors.New("the snapshot was removed")
)

// Location is a snapshot or the head of a replica.
type Location struct {
	Disk     *disk.Disk
	Folder   string // of the replica
	Snapshot string // "": the head
	// OtherDisks are searched for the backing image, in this order, if Disk does not have it.
	OtherDisks []*disk.Disk
	// AllowRemoved allows a snapshot that was marked as removed.
	AllowRemoved bool
}

// Open opens a volume or one of its snapshots. It reads small files only. An error text may be a
// predicate, such as "is being rebuilt …": the caller puts the name of the replica before it.
func Open(at Location) (*Source, error) {
	r, err := at.Disk.OpenReplica(at.Folder)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	p, err := at.resolve(r)
	if err != nil {
		return nil, err
	}
	s := &Source{size: p.info.Size, recheck: at.fingerprint}
	if err := s.open(r, p); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.fingerprint = s.computeFingerprint(p)
	whole := (s.size + sector - 1) / sector * sector
	s.reading, s.scan = newResolver(s.layers, whole), newResolver(s.layers, whole)
	// Fail now if the file system does not support FIEMAP.
	if _, err := s.scan.segmentAt(0); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Check returns the same error as Open, if the error is visible in the metadata, the newest layer or
// the backing image. It is cheaper, because it does not open the other layers.
func Check(at Location) error {
	r, err := at.Disk.OpenReplica(at.Folder)
	if err != nil {
		return err
	}
	defer r.Close()
	p, err := at.resolve(r)
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
	_, _, err = new(fiemap).read(f, 0, nil)
	return errors.Join(err, f.Close())
}

// sourceFiles are the names of the files that form a disk.
type sourceFiles struct {
	info        Info
	files       []string // newest first
	backing     ident.ID // zero: the volume has no backing image
	backingDisk *disk.Disk
}

func (at Location) resolve(r *disk.ReplicaFolder) (p sourceFiles, err error) {
	if p.info, err = readInfo(r); err != nil {
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
		return p, fmt.Errorf("read %s: invalid head %q", volumeFile, first)
	}
	if at.Snapshot == "" && p.info.Dirty {
		return p, ErrAttached
	}
	var newest layerMeta
	if p.files, newest, err = chain(r, first); err != nil {
		return p, err
	}
	if at.Snapshot != "" && newest.Removed && !at.AllowRemoved {
		return p, ErrRemoved
	}
	p.backing, p.backingDisk, err = at.findBackingImage(p.info.VolumeMeta)
	return p, err
}

// findBackingImage returns the backing image of the volume and the disk that contains it. The path in
// m is from another machine or container, so only the image name in it is used.
func (at Location) findBackingImage(m disk.VolumeMeta) (ident.ID, *disk.Disk, error) {
	folder, ok, err := m.BackingImage()
	if err != nil || !ok {
		return ident.ID{}, nil, err
	}
	id, err := ident.ParseID(folder)
	if end := path.Base(path.Clean(m.BackingFilePath)); err == nil && end != "backing" && end != folder {
		err = errors.New("it is not the file of an image")
	}
	if err != nil {
		return ident.ID{}, nil, fmt.Errorf("has the backing file %q: %w", m.BackingFilePath, err)
	}
	state := "does not exist"
	for _, d := range append([]*disk.Disk{at.Disk}, at.OtherDisks...) {
		switch c := d.Stat(id); {
		case c.State == model.Ready, c.State == model.Unknown:
			return id, d, nil
		case c.State == model.Failed:
			state = "is failed (" + c.Message + ")"
		}
	}
	return ident.ID{}, nil, fmt.Errorf("uses the backing image %s, which %s on the disks of this node", id, state)
}

// open opens the layers and the backing image.
func (s *Source) open(r *disk.ReplicaFolder, p sourceFiles) error {
	for _, file := range p.files {
		f, err := r.Open(file)
		if err != nil {
			return wrapMissing(err, file)
		}
		s.layers = append(s.layers, layer{name: file, file: f})
	}
	if p.backingDisk == nil {
		return nil
	}
	f, c, err := p.backingDisk.OpenBackingFile(p.backing)
	if err != nil {
		return err
	}
	format := c.Format
	if format == "" {
		info, err := disk.Inspect(f, f.Size(), "")
		if err != nil {
			return errors.Join(fmt.Errorf("backing image %s: %w", p.backing, err), f.Close())
		}
		format = info.Format
	}
	if format == model.Raw {
		s.layers = append(s.layers, layer{name: p.backing.String(), file: f})
		return nil
	}
	s.backingFile = f
	if s.backing, err = qcow2.Open(f.ReadAhead(), f.Size()); err != nil {
		return fmt.Errorf("backing image %s: %w", p.backing, err)
	}
	return nil
}

// computeFingerprint returns the fingerprint of the open files.
func (s *Source) computeFingerprint(p sourceFiles) string {
	var evidence []disk.Evidence
	for _, l := range s.layers {
		evidence = append(evidence, l.file.Evidence())
	}
	if s.backingFile != nil {
		evidence = append(evidence, s.backingFile.Evidence())
	}
	return p.fingerprint(evidence)
}

// fingerprint returns a hash that changes with any byte of the disk. Of volume.meta it includes only
// what decides about these bytes, because other keys change whenever the volume is attached.
func (p sourceFiles) fingerprint(evidence []disk.Evidence) string {
	below := struct{ Name, UUID string }(p.backing) // its JSON is part of fingerprints that are stored on disks
	text, err := json.Marshal([]any{p.info.Size, p.files, below, evidence})
	if err != nil {
		panic("replica: " + err.Error()) // cannot fail for numbers and names
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// fingerprint reads all metadata again and returns the current fingerprint.
func (at Location) fingerprint() (string, error) {
	r, err := at.Disk.OpenReplica(at.Folder)
	if err != nil {
		return "", err
	}
	defer r.Close()
	at.AllowRemoved = true // a snapshot may be marked as removed while it is read
	p, err := at.resolve(r)
	if err != nil {
		return "", err
	}
	evidence, err := p.evidence(r)
	return p.fingerprint(evidence), err
}

// evidence returns the current evidence of the files.
func (p sourceFiles) evidence(r *disk.ReplicaFolder) (all []disk.Evidence, err error) {
	for _, file := range p.files {
		e, err := r.Stat(file)
		if err != nil {
			return nil, wrapMissing(err, file)
		}
		all = append(all, e)
	}
	if p.backingDisk == nil {
		return all, nil
	}
	f, _, err := p.backingDisk.OpenBackingFile(p.backing)
	if err != nil {
		return nil, err
	}
	return append(all, f.Evidence()), f.Close()
}

package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"syscall"
	"time"
)

const (
	imageFile      = "backing"
	chunksFile     = "backing.chunks"
	recordFile     = "backing.record"
	partFile       = "backing.part"
	partChunksFile = "backing.part.chunks"

	// partManifestFile has this name only until it is open: what is left of one is
	// of no use.
	partManifestFile = "backing.part.manifest"
)

// partFiles belong to an image in the making and to nothing else.
var partFiles = []string{partManifestFile, partChunksFile, partFile}

const recordOwner = "backing-image-manager"

// Record is what is remembered about one copy, in backing.record beside it. A
// copy that has one is ours; all other state is derived from the files.
type Record struct {
	Owner       string      `json:"owner"`
	Created     time.Time   `json:"created"`
	Source      *PartSource `json:"origin,omitempty"` // of the bytes in backing.part
	Format      Format      `json:"format,omitempty"`
	VirtualSize int64       `json:"virtualSize,omitempty"` // bytes that a guest sees
	// SHA512 and SHA256 are the established digests: those of the bytes that were
	// verified when the copy became ready. SHA256 is there if it was asked for.
	SHA512 Digest `json:"sha512"`
	SHA256 Digest `json:"sha256"`
	// ManifestDigest is the SHA-256 of the sums in backing.chunks, and Size how many bytes
	// the image had, when those digests were established.
	ManifestDigest Digest    `json:"chunks,omitzero"`
	Size           int64     `json:"size,omitempty"`
	Evidence       *Evidence `json:"evidence,omitempty"`
	VerifiedAt     time.Time `json:"verified,omitzero"` // when the bytes were last hashed and were right
	Failed         string    `json:"failed,omitempty"`  // why the file must not be used
	DamagedAt      time.Time `json:"damaged,omitzero"`  // when a file here last failed, replaced or not
	// InUse is set when the copy was last seen used, so that a manager that was
	// away when the use ended starts the clock then and not before.
	InUse        bool      `json:"inUse,omitempty"`
	LastUsed     time.Time `json:"lastUsed,omitzero"`
	SurplusSince time.Time `json:"unwantedSince,omitzero"`
	// ClockNode is the node by whose clock these two are: the disk may move to another.
	ClockNode string `json:"markedBy,omitempty"`
	// BackupID says which backup of the copy was seen whole: a hash of where and of what.
	BackupID string `json:"backedUp,omitempty"`
}

// Evidence is what of a file's inode must be unchanged for its record to vouch
// for its bytes.
type Evidence struct {
	Size       int64  `json:"size"`
	ModTime    int64  `json:"mtime"` // nanoseconds since 1970
	ChangeTime int64  `json:"ctime"` // nanoseconds since 1970
	Inode      uint64 `json:"inode"`
}

func evidenceOf(info os.FileInfo) Evidence {
	st := info.Sys().(*syscall.Stat_t)
	return Evidence{Size: info.Size(), ModTime: st.Mtim.Nano(), ChangeTime: st.Ctim.Nano(), Inode: st.Ino}
}

func realSize(info os.FileInfo) int64 { return info.Sys().(*syscall.Stat_t).Blocks * 512 }

// folder and file return paths below the root of the disk.
func (id ID) folder() string { return path.Join(imagesFolder, id.String()) }

func (id ID) file(name string) string { return path.Join(imagesFolder, id.String(), name) }

// ParseRecord reads a backing.record.
func ParseRecord(data []byte) (Record, error) {
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, fmt.Errorf("read %s: %w", recordFile, err)
	}
	if r.Owner != recordOwner {
		return Record{}, fmt.Errorf("read %s: owner is %q", recordFile, r.Owner)
	}
	if r.SHA512.Algorithm() == SHA256 || r.SHA256.Algorithm() == SHA512 || r.ManifestDigest.Algorithm() == SHA512 {
		return Record{}, fmt.Errorf("read %s: a digest is of the wrong kind", recordFile)
	}
	for _, t := range []*time.Time{&r.Created, &r.VerifiedAt, &r.DamagedAt, &r.LastUsed, &r.SurplusSince} {
		if year := t.UTC().Year(); year < 1 || year > 9000 {
			*t = time.Time{} // JSON cannot hold it in every zone, and it says nothing
		}
	}
	return r, nil
}

// readRecord returns the record of id. One that is torn is as good as none: the
// copy is then not ours until it is adopted, and is verified before it is used. One
// that cannot be read at the moment is an error, since it must not be written over.
func (d *Disk) readRecord(id ID) (r Record, ours bool, err error) {
	if err := d.place(id); err != nil {
		return Record{}, false, err
	}
	data, err := readSmall(d.root, id.file(recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, false, nil
	}
	if err != nil {
		return Record{}, false, fmt.Errorf("read %s of %s: %w", recordFile, id, err)
	}
	r, err = ParseRecord(data)
	return r, err == nil, nil
}

func (d *Disk) writeRecord(id ID, r Record) error {
	r.Owner = recordOwner
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	defer d.forget(id)
	if err := writeDurably(d.root, id.file(recordFile), data); err != nil {
		return fmt.Errorf("write %s of %s: %w", recordFile, id, err)
	}
	return nil
}

// place says why nothing may be done in the folder of id: id cannot be the name of
// an image, or something else than a folder is on the way to it, such as a link to
// the folder of another image. That there is none is no error.
func (d *Disk) place(id ID) error {
	if err := errors.Join(CheckName(id.Name), CheckUUID(id.UUID)); err != nil {
		return err
	}
	if err := d.isFolder(imagesFolder); err != nil {
		return fmt.Errorf("%s: %w", imagesFolder, err)
	}
	return d.isFolder(id.folder())
}

func (d *Disk) isFolder(name string) error {
	info, err := d.root.Lstat(name)
	if err != nil {
		return ignoreMissing(err)
	}
	if !info.IsDir() {
		return errors.New("something else is in its place")
	}
	return nil
}

// Update changes the record of id durably. It does nothing and reports
// fs.ErrNotExist where there is none.
func (d *Disk) Update(id ID, change func(*Record)) error {
	r, ours, err := d.readRecord(id)
	if err != nil {
		return err
	}
	if !ours {
		return fmt.Errorf("update %s of %s: %w", recordFile, id, fs.ErrNotExist)
	}
	change(&r)
	return d.writeRecord(id, r)
}

// makeFolder makes the folder of id with a record in it, so that whatever is
// written there later is known to be ours.
func (d *Disk) makeFolder(id ID) (Record, error) {
	err := d.place(id)
	if err == nil {
		err = mkdirDurably(d.root, imagesFolder)
	}
	if err == nil {
		err = mkdirDurably(d.root, id.folder())
	}
	if err != nil {
		return Record{}, fmt.Errorf("make folder of %s: %w", id, err)
	}
	r, ours, err := d.readRecord(id)
	if ours || err != nil {
		return r, err
	}
	r = Record{Created: time.Now().UTC().Truncate(time.Second)}
	return r, d.writeRecord(id, r)
}

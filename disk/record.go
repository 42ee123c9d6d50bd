package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

const (
	recordOwner = "backing-image-manager"
	// recordVersion is the version of the format of a record.
	recordVersion = 1
)

// Record is the persistent state about one copy, in the file backing.record beside it. A copy with a
// record is owned. All other state is derived from the files.
type Record struct {
	Owner   string    `json:"owner"`
	Version int       `json:"version"`
	Created time.Time `json:"created"`
	// Source is the source of the bytes in backing.part; nil: Begin was not called.
	Source      *PartSource  `json:"source,omitempty"`
	Format      model.Format `json:"format,omitempty"`
	VirtualSize int64        `json:"virtualSize,omitempty"` // bytes that a guest sees
	// SHA512 and SHA256 are the established digests of the bytes that were verified when the copy
	// became ready. SHA256 is zero unless a SHA-256 was declared at that time.
	SHA512 ident.Digest `json:"sha512"`
	SHA256 ident.Digest `json:"sha256"`
	// ManifestDigest is the SHA-256 of the encoded manifest in backing.chunks, and Size is the size of the
	// image. Both were recorded together with the digests.
	ManifestDigest ident.Digest `json:"manifestDigest,omitzero"`
	Size           int64        `json:"size,omitempty"`
	// IndexDigest is the SHA-256 of the index in backing.caibx; zero: there is none.
	IndexDigest ident.Digest `json:"indexDigest,omitzero"`
	// Signature is the verified signature of the bytes with SHA512; zero: none was verified.
	Signature model.Signature `json:"signature,omitzero"`
	// Evidence is nil until the file is verified.
	Evidence   *Evidence `json:"evidence,omitempty"`
	VerifiedAt time.Time `json:"verifiedAt,omitzero"` // when all bytes last matched their digest
	// ReadBackAt is when all bytes were last read from the disk and matched. Zero: not since they were written.
	ReadBackAt time.Time `json:"readBackAt,omitzero"`
	Failed     string    `json:"failed,omitempty"` // why the file must not be used; "": it may be used
	// DamagedAt is when a file of this copy was last found damaged. A repair does not reset it.
	DamagedAt time.Time `json:"damagedAt,omitzero"`
	model.Usage
	// BackupID identifies the last backup of the copy that was found complete: a hash of the backup
	// store and of the content.
	BackupID string `json:"backupID,omitempty"`
}

// Evidence are the fields of a file's inode that must not change while a record is valid.
type Evidence struct {
	Size       int64  `json:"size"`
	ModTime    int64  `json:"modTime"`    // nanoseconds since 1970
	ChangeTime int64  `json:"changeTime"` // nanoseconds since 1970
	Inode      uint64 `json:"inode"`
}

func evidenceOf(info os.FileInfo) Evidence {
	st := info.Sys().(*syscall.Stat_t)
	return Evidence{Size: info.Size(), ModTime: st.Mtim.Nano(), ChangeTime: st.Ctim.Nano(), Inode: st.Ino}
}

// difference names the fields that differ between evidence e and evidence now, for messages.
func (e Evidence) difference(now Evidence) string {
	var what []string
	if e.Size != now.Size {
		what = append(what, fmt.Sprintf("size was %d and is %d", e.Size, now.Size))
	}
	if e.ModTime != now.ModTime {
		what = append(what, "mtime")
	}
	if e.ChangeTime != now.ChangeTime {
		what = append(what, "ctime")
	}
	if e.Inode != now.Inode {
		what = append(what, "inode")
	}
	return strings.Join(what, ", ")
}

// realSize returns the bytes allocated for a file. The kernel counts them in units of 512.
func realSize(info os.FileInfo) int64 { return info.Sys().(*syscall.Stat_t).Blocks * 512 }

// recordVersionError: a record has another version of the format. The record is neither used nor changed, because the
// release that wrote it may run again.
type recordVersionError int

func (v recordVersionError) Error() string {
	return model.VersionError(int(v), recordVersion, "run the release of backing-image-manager that wrote it, or remove the file: then the copy is verified and adopted").Error()
}

// ParseRecord parses a backing.record. With a recordVersionError, the Record has only the version.
func ParseRecord(data []byte) (Record, error) {
	var head struct {
		Owner   string
		Version int
	}
	err := json.Unmarshal(data, &head)
	switch {
	case err != nil:
	case head.Owner != recordOwner:
		err = fmt.Errorf("owner is %q", head.Owner)
	case head.Version < 1:
		err = errors.New("it has no version")
	case head.Version != recordVersion: // all other fields may have another meaning
		return Record{Version: head.Version}, fmt.Errorf("read %s: %w", recordFile, recordVersionError(head.Version))
	}
	var r Record
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return Record{}, fmt.Errorf("read %s: %w", recordFile, err)
	}
	if r.SHA512.Algorithm() == ident.SHA256 || r.SHA256.Algorithm() == ident.SHA512 || r.ManifestDigest.Algorithm() == ident.SHA512 || r.IndexDigest.Algorithm() == ident.SHA512 {
		return Record{}, fmt.Errorf("read %s: a digest has the wrong algorithm", recordFile)
	}
	r.Signature = validSignature(r.Signature)
	for _, t := range []*time.Time{&r.Created, &r.VerifiedAt, &r.ReadBackAt, &r.DamagedAt, &r.LastUsed, &r.SurplusSince, &r.ReplacedAt} {
		*t = ValidTime(*t)
	}
	return r, nil
}

// ValidTime returns t if its year is from 1 to 9000, and the zero time if not. JSON cannot encode years after 9999,
// and a time zone or the difference of two clocks, at most 292 years, may make t later.
func ValidTime(t time.Time) time.Time {
	if year := t.UTC().Year(); year < 1 || year > 9000 {
		return time.Time{}
	}
	return t
}

// readRecord returns the record of the image. A truncated or invalid record counts as missing: the
// copy is then not owned until it is adopted, and it is verified before it is used. If the record
// cannot be read at present, or has another version, readRecord returns an error: the record must
// not be overwritten.
func (f imageFolder) readRecord() (r Record, owned bool, err error) {
	if err := f.check(); err != nil {
		return Record{}, false, err
	}
	data, err := readSmall(f.disk.root, f.file(recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, false, nil
	}
	if err != nil {
		return Record{}, false, fmt.Errorf("read %s of %s: %w", recordFile, f.id, err)
	}
	r, err = ParseRecord(data)
	if other, ok := errors.AsType[recordVersionError](err); ok {
		return Record{}, false, fmt.Errorf("read %s: %w", filepath.Join(f.disk.path, f.file(recordFile)), other)
	}
	return r, err == nil, nil
}

// writeRecord replaces the record durably.
func (f imageFolder) writeRecord(r Record) error {
	r.Owner, r.Version = recordOwner, recordVersion
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	defer f.disk.metadata.invalidate(f.id)
	if err := writeDurably(f.disk.root, f.file(recordFile), data); err != nil {
		return fmt.Errorf("write %s of %s: %w", recordFile, f.id, err)
	}
	return nil
}

// Update calls change with the record of id and writes the result durably. fs.ErrNotExist: the copy
// has no record.
func (d *Disk) Update(id ident.ID, change func(*Record)) error {
	f := d.image(id)
	r, owned, err := f.readRecord()
	if err != nil {
		return err
	}
	if !owned {
		return fmt.Errorf("update %s of %s: %w", recordFile, id, fs.ErrNotExist)
	}
	change(&r)
	return f.writeRecord(r)
}

// recordSource replaces the source of the partial file in the record, durably.
func (f imageFolder) recordSource(source PartSource) error {
	return f.disk.Update(f.id, func(r *Record) { r.Source = &source })
}

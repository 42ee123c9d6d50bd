package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// State is the state of a copy, in the words of the original.
type State string

// The states that a look at a disk can tell apart. Starting and InProgress are
// known to the process that moves the bytes; a part that nobody is filling is
// Pending.
const (
	Pending    State = "pending"
	Starting   State = "starting"
	InProgress State = "in-progress"
	Ready      State = "ready"
	Failed     State = "failed"
	Unknown    State = "unknown" // a file is there, and nothing vouches for it
)

// Copy is the observed state of one copy: one image folder on one disk. It is the only
// type that describes a copy; packages above embed it and add what they know.
//
// Its JSON is the part of a copy in a peer's state (GET /v1/state) that the disk knows.
// Fields with the tag "-" are for the manager of the disk only.
type Copy struct {
	ID // JSON: name and uuid

	State   State  `json:"state"`
	Message string `json:"message,omitempty"` // why the state is Failed or Unknown

	Format      Format `json:"format,omitempty"`
	Size        int64  `json:"size,omitempty"`        // bytes of the file
	VirtualSize int64  `json:"virtualSize,omitempty"` // bytes that a guest sees; 0: not known
	RealSize    int64  `json:"realSize,omitempty"`    // bytes allocated on the disk

	// SHA512 is the established digest: always known for a ready copy.
	SHA512 Digest `json:"sha512,omitzero"`
	// SHA256 is zero unless a SHA-256 was declared when the copy was last verified.
	SHA256 Digest `json:"sha256,omitzero"`
	// ManifestDigest is the SHA-256 of the chunk manifest. Zero: the copy has no
	// manifest, or one that does not match its record.
	ManifestDigest Digest `json:"chunks,omitzero"`
	// CfgExpected is the expectedChecksum of backing.cfg.
	CfgExpected Digest `json:"-"`
	HasCfg      bool   `json:"-"` // backing.cfg is readable and describes this file

	Owned      bool      `json:"owned,omitempty"`   // this program created or adopted it
	VerifiedAt time.Time `json:"verified,omitzero"` // when all its bytes last matched its digest
	// DamagedAt is when a file of this copy was last found damaged. The file may have
	// been repaired or replaced since.
	DamagedAt time.Time `json:"damaged,omitzero"`
	BackupID  string    `json:"-"` // Record.BackupID

	// LastUsed and SurplusSince are by the clock of the node ClockNode.
	LastUsed     time.Time `json:"lastUsed,omitzero"`
	SurplusSince time.Time `json:"unwantedSince,omitzero"`
	ClockNode    string    `json:"-"`
	// InUseRecorded is the use in the record. Disk.Users observes the present one.
	InUseRecorded bool `json:"-"`

	// PartBytes is an upper bound: a resume keeps so many bytes of the partial file if
	// all their hashes match.
	PartBytes    int64  `json:"partBytes,omitempty"`
	PartTotal    int64  `json:"partTotal,omitempty"` // bytes of the complete file; 0: not known
	PartSourceID string `json:"-"`                   // PartSource.ID of the partial file
}

// PartSource returns what the bytes of a part come from; the zero Origin where there is
// no part, or none was begun.
func (d *Disk) PartSource(id ID) PartSource {
	r, _, err := d.readRecord(id)
	if _, gone := d.root.Lstat(id.file(partFile)); err != nil || gone != nil || r.Source == nil {
		return PartSource{}
	}
	return *r.Source
}

// String returns the folder, the state and its reason, for messages.
func (c Copy) String() string {
	if c.Message == "" {
		return fmt.Sprintf("%s is %s", c.ID, c.State)
	}
	return fmt.Sprintf("%s is %s: %s", c.ID, c.State, c.Message)
}

// HasDigest reports whether the bytes of a ready copy are known to have the digest.
func (c Copy) HasDigest(d Digest) bool {
	return c.State == Ready && !d.IsZero() && (c.SHA512 == d || c.SHA256 == d)
}

// Listing is everything below backing-images of one disk.
type Listing struct {
	Copies    []Copy   // sorted by folder
	Unmanaged []string // what is not an image folder, and Longhorn's left-overs in tmp
}

// List looks at every image folder. It reads a few small files of each and no
// image data.
func (d *Disk) List() (Listing, error) {
	err := d.isFolder(imagesFolder)
	var entries []fs.DirEntry
	if err == nil {
		entries, err = fs.ReadDir(d.root.FS(), imagesFolder)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Listing{}, fmt.Errorf("list images of %s: %w", d.path, err)
	}
	var l Listing
	for _, e := range entries {
		id, err := ParseID(e.Name())
		if err != nil || !e.IsDir() {
			l.Unmanaged = append(l.Unmanaged, imagesFolder+"/"+e.Name())
			continue
		}
		l.Copies = append(l.Copies, d.look(id))
	}
	d.forgetOthers(l.Copies)
	left, err := fs.ReadDir(d.root.FS(), "tmp")
	if err == nil {
		for _, e := range left {
			l.Unmanaged = append(l.Unmanaged, "tmp/"+e.Name())
		}
	}
	return l, nil
}

// Stat looks at one image folder. That there is none is no error: the copy is
// then pending and not owned.
func (d *Disk) Stat(id ID) Copy {
	if err := d.place(id); err != nil {
		return Copy{ID: id, State: Unknown, Message: err.Error()}
	}
	return d.look(id)
}

func (d *Disk) look(id ID) Copy {
	folder, err := d.root.OpenRoot(id.folder())
	if err != nil {
		c := Copy{ID: id, State: Pending}
		if !errors.Is(err, fs.ErrNotExist) {
			c.State, c.Message = Unknown, "cannot look into the folder: "+err.Error()
		}
		return c
	}
	defer folder.Close()
	return d.lookInto(id, folder)
}

func (d *Disk) lookInto(id ID, folder *os.Root) Copy {
	r, ours, cfg, hasCfg := d.described(id, folder)
	c := Copy{
		ID: id, State: Pending, Owned: ours,
		DamagedAt: r.DamagedAt, InUseRecorded: r.InUse, LastUsed: r.LastUsed, SurplusSince: r.SurplusSince, ClockNode: r.ClockNode,
		BackupID: r.BackupID,
	}
	lookAtPart(&c, r, folder)
	info, err := folder.Lstat(imageFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c
	case err != nil:
		c.State, c.Message = Unknown, "cannot look at the file: "+err.Error()
		return c
	case !info.Mode().IsRegular():
		c.State, c.Message = Unknown, "backing is not a regular file: it is left alone"
		return c
	}
	c.Size, c.RealSize = info.Size(), realSize(info)
	c.Format, c.VirtualSize, c.SHA512, c.SHA256 = r.Format, r.VirtualSize, r.SHA512, r.SHA256
	c.State, c.Message = vouch(r, ours, info)
	if c.State == Ready && d.knownDamaged(id, evidenceOf(info)) {
		c.State, c.Message = Unknown, "it was found damaged when it was last read, which could not be recorded"
	}
	c.VerifiedAt = r.VerifiedAt
	if c.State == Ready || c.State == Failed {
		c.ManifestDigest = d.trusts(id, r, info, folder)
	}
	if hasCfg {
		c.CfgExpected, _ = ParseDigest(cfg.ExpectedChecksum)
		c.HasCfg = cfg.ModificationTime == formatMtime(info.ModTime()) && cfg.Size == info.Size() && cfg.Digest() == r.SHA512
	}
	if hasCfg && !ours {
		c.SHA512, c.VirtualSize = cfg.Digest(), cfg.VirtualSize
	}
	return c
}

// vouch says what the record is worth for the file as it is.
func vouch(r Record, ours bool, info os.FileInfo) (State, string) {
	switch {
	case !ours:
		return Unknown, "not verified yet"
	case r.Evidence == nil:
		return Unknown, "not verified since it was written"
	case *r.Evidence != evidenceOf(info):
		return Unknown, "changed since it was verified: " + r.Evidence.difference(evidenceOf(info))
	case r.Failed != "":
		return Failed, r.Failed
	case r.SHA512.IsZero():
		return Unknown, "its record has no checksum"
	}
	return Ready, ""
}

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

func lookAtPart(c *Copy, r Record, folder *os.Root) {
	part, err := folder.Lstat(partFile)
	if err != nil || !part.Mode().IsRegular() {
		return
	}
	if chunks, err := folder.Lstat(partChunksFile); err == nil {
		c.PartBytes = min(part.Size(), chunkCount(chunks.Size())*ChunkSize)
	}
	if r.Source != nil {
		c.PartTotal, c.PartSourceID = max(r.Source.Size, 0), r.Source.ID
	}
}

// ListGenerations looks at the image folders of one name, in all generations, sorted by
// folder. It costs in proportion to them.
func (d *Disk) ListGenerations(name string) ([]Copy, error) {
	err := d.isFolder(imagesFolder)
	var entries []fs.DirEntry
	if err == nil {
		entries, err = fs.ReadDir(d.root.FS(), imagesFolder)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list images of %s: %w", d.path, err)
	}
	var copies []Copy
	for _, e := range entries {
		if id, err := ParseID(e.Name()); err == nil && id.Name == name && e.IsDir() {
			copies = append(copies, d.look(id))
		}
	}
	return copies, nil
}

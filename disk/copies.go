package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// State is the state of a copy, in Longhorn's terms.
type State string

// The states of a copy. This package never returns Starting or InProgress: only the process that
// writes a partial file knows them. In this package a copy with a partial file is Pending.
const (
	Pending    State = "pending"
	Starting   State = "starting"
	InProgress State = "in-progress"
	Ready      State = "ready"
	Failed     State = "failed"
	Unknown    State = "unknown" // a file exists without a valid record: it must be verified
)

// Copy is the observed state of one copy: one image folder on one disk. Other packages embed it and
// add fields.
//
// Its JSON is part of the state that a manager publishes to its peers (GET /v1/state). Fields with
// the tag "-" are not published.
type Copy struct {
	ident.ID // JSON: name and uuid
	// Folder is the identity of the folder.
	Folder FolderID `json:"-"`

	State State `json:"state"`
	// Message is why the state is Failed or Unknown, or a warning about a ready copy.
	Message string `json:"message,omitempty"`

	Format      Format `json:"format,omitempty"`
	Size        int64  `json:"size,omitempty"`        // bytes of the file
	VirtualSize int64  `json:"virtualSize,omitempty"` // bytes that a guest sees; 0: not known
	RealSize    int64  `json:"realSize,omitempty"`    // bytes allocated on the disk

	// SHA512 is the established digest: always known for a ready copy.
	SHA512 ident.Digest `json:"sha512,omitzero"`
	// SHA256 is zero unless a SHA-256 was declared when the copy was last verified.
	SHA256 ident.Digest `json:"sha256,omitzero"`
	// ManifestDigest is the SHA-256 of the chunk manifest. It is zero if the copy has no manifest, or
	// if the manifest does not match the record.
	ManifestDigest ident.Digest `json:"chunks,omitzero"`
	// HasIndex is true if the record has the digest of an index of the copy: see Disk.Index.
	HasIndex bool `json:"-"`
	// Signature is Record.Signature.
	Signature Signature `json:"-"`
	// CfgExpected is the expectedChecksum of backing.cfg.
	CfgExpected ident.Digest `json:"-"`
	HasCfg      bool         `json:"-"` // backing.cfg is readable and describes this file

	Owned      bool      `json:"owned,omitempty"`     // this program created or adopted it
	VerifiedAt time.Time `json:"verified,omitzero"`   // when all its bytes last matched its digest
	ReadBackAt time.Time `json:"readBackAt,omitzero"` // Record.ReadBackAt
	// DamagedAt is the time when a file of this copy was last found damaged. The file may have been
	// repaired or replaced since then.
	DamagedAt time.Time `json:"damaged,omitzero"`
	BackupID  string    `json:"-"` // Record.BackupID
	// Declaration is Record.Declaration.
	Declaration Declaration `json:"-"`

	// LastUsed and SurplusSince are times of the clock of the node ClockNode.
	LastUsed     time.Time `json:"lastUsed,omitzero"`
	SurplusSince time.Time `json:"unwantedSince,omitzero"`
	ClockNode    string    `json:"-"`
	// ReplacedAt is Record.ReplacedAt.
	ReplacedAt time.Time `json:"replaced,omitzero"`
	// InUseRecorded is true if the record says that the image is in use. Disk.Users observes the
	// current use.
	InUseRecorded bool `json:"-"`

	// PartBytes is an upper bound of the bytes that a resume keeps. It keeps all of them if the hashes
	// of all chunks match.
	PartBytes    int64  `json:"partBytes,omitempty"`
	PartTotal    int64  `json:"partTotal,omitempty"` // bytes of the complete file; 0: not known
	PartSourceID string `json:"-"`                   // PartSource.ID of the partial file
}

// String returns the folder, the state and the reason, for messages.
func (c Copy) String() string {
	if c.Message == "" {
		return fmt.Sprintf("%s is %s", c.ID, c.State)
	}
	return fmt.Sprintf("%s is %s: %s", c.ID, c.State, c.Message)
}

// HasDigest reports whether the copy is ready and its bytes have the digest.
func (c Copy) HasDigest(d ident.Digest) bool {
	return c.State == Ready && !d.IsZero() && (c.SHA512 == d || c.SHA256 == d)
}

// Stat returns the state of one copy. It reads small files only, no image data. If the folder does
// not exist, the copy is Pending and not owned.
func (d *Disk) Stat(id ident.ID) Copy {
	f := d.image(id)
	if err := f.check(); err != nil {
		return Copy{ID: id, State: Unknown, Message: err.Error()}
	}
	return f.stat()
}

// Listing is the content of the folder backing-images of one disk.
type Listing struct {
	Copies []Copy // sorted by folder
	// Unmanaged are the paths of all other entries of backing-images, and of files that Longhorn left
	// in its folder tmp.
	Unmanaged []string
}

// List returns the state of every copy. It reads no image data.
func (d *Disk) List() (Listing, error) {
	if d.unrestored.Load() && d.removals.TryLock() {
		d.unrestored.Store(restoreRemoved(d.root) != nil)
		d.removals.Unlock()
	}
	entries, err := imageEntries(d.root)
	if err != nil {
		return Listing{}, fmt.Errorf("list images of %s: %w", d.path, err)
	}
	var l Listing
	for _, e := range entries {
		id, err := ident.ParseID(e.Name())
		if err != nil || !e.IsDir() {
			l.Unmanaged = append(l.Unmanaged, imagesFolder+"/"+e.Name())
			continue
		}
		l.Copies = append(l.Copies, d.image(id).stat())
	}
	existing := make(map[ident.ID]bool, len(l.Copies))
	for _, c := range l.Copies {
		existing[c.ID] = true
	}
	d.metadata.keepOnly(existing)
	d.retained.keepOnly(existing)
	leftovers, err := fs.ReadDir(d.root.FS(), "tmp")
	if err == nil {
		for _, e := range leftovers {
			l.Unmanaged = append(l.Unmanaged, "tmp/"+e.Name())
		}
	}
	return l, nil
}

// ListGenerations returns the copies of all generations of one image name, sorted by folder.
// It reads the folder backing-images and the small files of these copies only.
func (d *Disk) ListGenerations(name string) ([]Copy, error) {
	entries, err := imageEntries(d.root)
	if err != nil {
		return nil, fmt.Errorf("list images of %s: %w", d.path, err)
	}
	var copies []Copy
	for _, e := range entries {
		if id, err := ident.ParseID(e.Name()); err == nil && id.Name == name && e.IsDir() {
			copies = append(copies, d.image(id).stat())
		}
	}
	return copies, nil
}

// imageEntries lists the folder backing-images. A missing folder has no entries.
func imageEntries(root *os.Root) ([]fs.DirEntry, error) {
	err := checkFolder(root, imagesFolder)
	var entries []fs.DirEntry
	if err == nil {
		entries, err = fs.ReadDir(root.FS(), imagesFolder)
	}
	return entries, ignoreMissing(err)
}

// PartSource returns the source of the partial file's bytes. It is zero if there is no partial file,
// or if Begin was never called for it.
func (d *Disk) PartSource(id ident.ID) PartSource {
	r, _, err := d.image(id).readRecord()
	if _, missing := d.root.Lstat(filePath(id, partFile)); err != nil || missing != nil || r.Source == nil {
		return PartSource{}
	}
	return *r.Source
}

func (f imageFolder) stat() Copy {
	folder, err := f.disk.root.OpenRoot(f.path())
	if err != nil {
		c := Copy{ID: f.id, State: Pending}
		if !errors.Is(err, fs.ErrNotExist) {
			c.State, c.Message = Unknown, "cannot open the folder: "+err.Error()
		}
		return c
	}
	defer folder.Close()
	return f.statIn(folder)
}

// statIn does the work of stat in the open folder of the image.
func (f imageFolder) statIn(folder *os.Root) Copy {
	r, owned, cfg, hasCfg := f.disk.metadata.read(f.id, folder)
	c := Copy{
		ID: f.id, State: Pending, Owned: owned,
		DamagedAt: r.DamagedAt, InUseRecorded: r.InUse, LastUsed: r.LastUsed, SurplusSince: r.SurplusSince, ReplacedAt: r.ReplacedAt, ClockNode: r.ClockNode,
		BackupID: r.BackupID, Declaration: r.Declaration,
	}
	if info, err := folder.Stat("."); err == nil {
		c.Folder = folderID(info)
	}
	c.addPart(r, folder)
	info, err := folder.Lstat(imageFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c
	case err != nil:
		c.State, c.Message = Unknown, "cannot stat the file: "+err.Error()
		return c
	case !info.Mode().IsRegular():
		c.State, c.Message = Unknown, "backing is not a regular file: it is not changed"
		return c
	}
	c.Size, c.RealSize = info.Size(), realSize(info)
	c.Format, c.VirtualSize, c.SHA512, c.SHA256, c.Signature = r.Format, r.VirtualSize, r.SHA512, r.SHA256, r.Signature
	c.State, c.Message = stateOf(r, owned, info)
	if n := links(info); c.State == Ready && n > 1 {
		c.Message = fmt.Sprintf("the file has %d names (hard links): a write to another one would damage this copy", n)
	}
	if c.State == Ready && f.disk.metadata.isDamaged(f.id, evidenceOf(info)) {
		c.State, c.Message = Unknown, "the last read found it damaged, and the record could not be written"
	}
	c.VerifiedAt, c.ReadBackAt = r.VerifiedAt, r.ReadBackAt
	if c.State == Ready || c.State == Failed {
		c.ManifestDigest = f.disk.metadata.manifestDigest(f.id, r, info, folder)
		c.HasIndex = !r.IndexDigest.IsZero()
	}
	if hasCfg {
		c.CfgExpected, _ = ident.ParseDigest(cfg.ExpectedChecksum)
		c.HasCfg = cfg.ModificationTime == formatMtime(info.ModTime()) && cfg.Size == info.Size() && cfg.Digest() == r.SHA512
	}
	if hasCfg && !owned {
		c.SHA512, c.VirtualSize = cfg.Digest(), cfg.VirtualSize
	}
	return c
}

// stateOf returns the state of an image file according to its record, and the reason if the state is
// Failed or Unknown.
func stateOf(r Record, owned bool, info os.FileInfo) (State, string) {
	switch {
	case !owned:
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

// addPart adds the progress of the partial file, if there is one.
func (c *Copy) addPart(r Record, folder *os.Root) {
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

package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"sync"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// Stat returns the state of one copy. It reads small files only, no image data. If the folder does
// not exist, the copy is Pending and not owned.
func (d *Disk) Stat(id ident.ID) model.Copy {
	f := d.image(id)
	if err := f.check(); err != nil {
		return model.Copy{ID: id, State: model.Unknown, Message: err.Error()}
	}
	return f.stat()
}

// Listing is the content of the folder backing-images of one disk.
type Listing struct {
	Copies []model.Copy // sorted by folder
	// Unmanaged are the paths of all other entries of backing-images, and of files that Longhorn left
	// in its folder tmp.
	Unmanaged []string
}

// List returns the state of every copy. It reads no image data.
func (d *Disk) List() (Listing, error) {
	if d.unrestored.Load() && d.removals.TryLock() {
		d.unrestored.Store(restoreRemoved(d.root, &d.marks) != nil)
		d.removals.Unlock()
	}
	d.marks.removeAgain()
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
func (d *Disk) ListGenerations(name string) ([]model.Copy, error) {
	entries, err := imageEntries(d.root)
	if err != nil {
		return nil, fmt.Errorf("list images of %s: %w", d.path, err)
	}
	var copies []model.Copy
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

func (f imageFolder) stat() model.Copy {
	folder, err := f.disk.root.OpenRoot(f.path())
	if err != nil {
		c := model.Copy{ID: f.id, State: model.Pending}
		if !errors.Is(err, fs.ErrNotExist) {
			c.State, c.Message = model.Unknown, "cannot open the folder: "+err.Error()
		}
		return c
	}
	defer folder.Close()
	return f.statIn(folder)
}

// statIn does the work of stat in the open folder of the image.
func (f imageFolder) statIn(folder *os.Root) model.Copy {
	r, owned, cfg, hasCfg := f.disk.metadata.read(f.id, folder)
	c := model.Copy{
		ID: f.id, State: model.Pending, Owned: owned,
		DamagedAt: r.DamagedAt, Usage: r.Usage, BackupID: r.BackupID,
	}
	if info, err := folder.Stat("."); err == nil {
		c.Folder = folderID(info)
	}
	addPart(&c, r, folder)
	info, err := folder.Lstat(imageFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c
	case err != nil:
		c.State, c.Message = model.Unknown, "cannot stat the file: "+err.Error()
		return c
	case !info.Mode().IsRegular():
		c.State, c.Message = model.Unknown, "backing is not a regular file, and is not changed: move it away"
		return c
	}
	c.Size, c.RealSize = info.Size(), realSize(info)
	c.Format, c.VirtualSize, c.SHA512, c.SHA256, c.Signature = r.Format, r.VirtualSize, r.SHA512, r.SHA256, r.Signature
	c.State, c.Message = stateOf(r, owned, info)
	if n := links(info); c.State == model.Ready && n > 1 {
		c.Message = fmt.Sprintf("the file has %d names (hard links), and a write to another name would damage this copy: remove the other names", n)
	}
	if c.State == model.Ready && f.disk.metadata.isDamaged(f.id, evidenceOf(info)) {
		c.State, c.Message = model.Unknown, "the last read found the file damaged, and the record could not be written"
	}
	c.VerifiedAt, c.ReadBackAt = r.VerifiedAt, r.ReadBackAt
	if c.State == model.Ready || c.State == model.Failed {
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
func stateOf(r Record, owned bool, info os.FileInfo) (model.State, string) {
	switch {
	case !owned && r.Version > 0:
		return model.Unknown, recordFile + ": " + recordVersionError(r.Version).Error()
	case !owned:
		return model.Unknown, "not verified yet"
	case r.Evidence == nil:
		return model.Unknown, "not verified since it was written"
	case *r.Evidence != evidenceOf(info):
		return model.Unknown, "changed since it was verified: " + r.Evidence.difference(evidenceOf(info))
	case r.Failed != "":
		return model.Failed, r.Failed
	case r.SHA512.IsZero():
		return model.Unknown, "its record has no checksum"
	}
	return model.Ready, ""
}

// addPart adds the progress of the partial file, if there is one.
func addPart(c *model.Copy, r Record, folder *os.Root) {
	part, err := folder.Lstat(partFile)
	if err != nil || !part.Mode().IsRegular() {
		return
	}
	if chunks, err := folder.Lstat(partChunksFile); err == nil {
		c.PartBytes = min(part.Size(), chunkCount(chunks.Size())*ChunkSize)
	}
	if r.Source != nil {
		c.PartTotal, c.PartKind = max(r.Source.Size, 0), r.Source.Kind
	}
}

// metaCache has what this process remembers of each image folder: the content of its small files, and findings
// that no file records. So List does not read small files that are unchanged. It is safe for concurrent use.
type metaCache struct {
	mu      sync.Mutex
	folders map[ident.ID]cachedFolder
}

// cachedFolder is the cached state of one image folder.
type cachedFolder struct {
	record cachedFile[Record]
	cfg    cachedFile[longhornCfg]
	findings
	retained *retainedPages // nil: none
}

// findings are faults of an image that are recorded in no file. They are kept when the cached files
// change.
type findings struct {
	badManifest manifestFile
	// damaged is the evidence of a file that is damaged although its record marks it as ready, because
	// the record could not be written.
	damaged Evidence
}

// manifestFile identifies a manifest file that does not match its record.
type manifestFile struct {
	file     Evidence
	recorded ident.Digest // in the record
}

// cachedFile is the content of a small file. It is valid while the inode is unchanged.
type cachedFile[T any] struct {
	evidence Evidence
	value    T
	ok       bool // the file was readable and valid
}

// update returns the current content of the file. It reads the file only if the inode changed.
func (c cachedFile[T]) update(folder *os.Root, name string, parse func([]byte) (T, error)) cachedFile[T] {
	info, err := folder.Lstat(name)
	if err != nil {
		return cachedFile[T]{}
	}
	now := evidenceOf(info)
	if c.ok && c.evidence == now {
		return c
	}
	data, err := readSmall(folder, name)
	if err != nil {
		return cachedFile[T]{}
	}
	value, err := parse(data)
	return cachedFile[T]{evidence: now, value: value, ok: err == nil}
}

// read returns the record and the cfg of an image folder. An unreadable record counts as missing: the
// copy is then not owned until it is adopted, and it is verified before it is used. If the record has
// another version, r has only that version.
func (m *metaCache) read(id ident.ID, folder *os.Root) (r Record, owned bool, cfg longhornCfg, hasCfg bool) {
	m.mu.Lock()
	old := m.folders[id]
	m.mu.Unlock()
	now := cachedFolder{
		record: old.record.update(folder, recordFile, ParseRecord),
		cfg:    old.cfg.update(folder, cfgFile, parseCfg),
	}
	m.change(id, func(c *cachedFolder) {
		c.record, c.cfg = now.record, now.cfg // the findings stay: a job may have added some since
	})
	return now.record.value, now.record.ok, now.cfg.value, now.cfg.ok
}

// invalidate makes the next read open the files of id again. After a write of this program, the
// comparison of inodes is not enough: a freed inode that is reused within one clock tick looks
// unchanged.
func (m *metaCache) invalidate(id ident.ID) {
	m.change(id, func(c *cachedFolder) { c.record, c.cfg = cachedFile[Record]{}, cachedFile[longhornCfg]{} })
}

// change calls f with the cached state of id.
func (m *metaCache) change(id ident.ID, f func(*cachedFolder)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.folders[id]
	f(&c)
	if m.folders == nil {
		m.folders = map[ident.ID]cachedFolder{}
	}
	if c == (cachedFolder{}) {
		delete(m.folders, id)
		return
	}
	m.folders[id] = c
}

// keepOnly removes all images that are not in existing.
func (m *metaCache) keepOnly(existing map[ident.ID]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.folders, func(id ident.ID, _ cachedFolder) bool { return !existing[id] })
}

// markDamaged makes isDamaged return true for the file with this evidence. A call with the zero
// Evidence reverts that.
func (m *metaCache) markDamaged(id ident.ID, file Evidence) {
	m.change(id, func(c *cachedFolder) { c.damaged = file })
}

// isDamaged reports whether markDamaged was called for the file with this evidence.
func (m *metaCache) isDamaged(id ident.ID, file Evidence) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.folders[id].damaged == file
}

// manifestDigest returns the recorded digest of the chunk manifest, if a manifest file of the right
// length exists and was not rejected.
func (m *metaCache) manifestDigest(id ident.ID, r Record, image os.FileInfo, folder *os.Root) ident.Digest {
	info, err := folder.Lstat(chunksFile)
	if err != nil || r.Size != image.Size() || info.Size() != model.ChunkFileSize(r.Size) {
		return ident.Digest{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.folders[id].badManifest == (manifestFile{file: evidenceOf(info), recorded: r.ManifestDigest}) {
		return ident.Digest{}
	}
	return r.ManifestDigest
}

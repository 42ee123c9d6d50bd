package disk

import (
	"maps"
	"os"
	"sync"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// metaCache caches the content of the small files of each image folder, so that List of a thousand
// unchanged images reads none of these files. It is safe for concurrent use.
type metaCache struct {
	mu      sync.Mutex
	folders map[ident.ID]cachedFolder
}

// cachedFolder is the cached state of one image folder.
type cachedFolder struct {
	record cachedFile[Record]
	cfg    cachedFile[longhornCfg]
	findings
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
// copy is then not owned until it is adopted, and it is verified before it is used.
func (m *metaCache) read(id ident.ID, folder *os.Root) (r Record, owned bool, cfg longhornCfg, hasCfg bool) {
	m.mu.Lock()
	old := m.folders[id]
	m.mu.Unlock()
	now := cachedFolder{
		record: old.record.update(folder, recordFile, ParseRecord),
		cfg:    old.cfg.update(folder, cfgFile, parseCfg),
	}
	m.change(id, func(c *cachedFolder) {
		c.record, c.cfg = now.record, now.cfg // without the findings: a job may have added some since
	})
	return now.record.value, now.record.ok, now.cfg.value, now.cfg.ok
}

// invalidate makes the next read open the files of id again. After a write of this program, the
// comparison of inodes is not enough: a freed inode that is reused within one clock tick looks
// unchanged.
func (m *metaCache) invalidate(id ident.ID) {
	m.change(id, func(c *cachedFolder) { *c = cachedFolder{findings: c.findings} })
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

// rejectManifest makes manifestDigest return the zero Digest until the manifest file, or its digest
// in the record, changes.
func (m *metaCache) rejectManifest(id ident.ID, bad manifestFile) {
	m.change(id, func(c *cachedFolder) { c.badManifest = bad })
}

// markDamaged makes isDamaged return true for the file with this evidence. The zero Evidence reverts
// it.
func (m *metaCache) markDamaged(id ident.ID, file Evidence) {
	m.change(id, func(c *cachedFolder) { c.damaged = file })
}

// isDamaged reports whether the file is damaged although its record does not mark it as failed.
func (m *metaCache) isDamaged(id ident.ID, file Evidence) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.folders[id].damaged == file
}

// manifestDigest returns the recorded digest of the chunk manifest, if a manifest file of the right
// length exists and was not rejected.
func (m *metaCache) manifestDigest(id ident.ID, r Record, image os.FileInfo, folder *os.Root) ident.Digest {
	info, err := folder.Lstat(chunksFile)
	if err != nil || r.Size != image.Size() || info.Size() != EncodedSize(r.Size) {
		return ident.Digest{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.folders[id].badManifest == (manifestFile{file: evidenceOf(info), recorded: r.ManifestDigest}) {
		return ident.Digest{}
	}
	return r.ManifestDigest
}

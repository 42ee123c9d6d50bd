package disk

import (
	"crypto/sha256"
	"maps"
	"os"
)

// described is what the small files of one image folder said when they were last
// read, so that a look at a thousand images that did not change reads none.
type described struct {
	record memo[Record]
	cfg    memo[longhornCfg]
	found
}

// found is what was found out about an image and is in no file.
type found struct {
	wrong   manifestLook
	damaged Evidence // of a file whose record says that it is right: it could not be written
}

// memo is the content of a small file for as long as its inode is the same.
type memo[T any] struct {
	evidence Evidence
	value    T
	good     bool
}

// read returns what the file says, and false when it cannot be read.
func (m memo[T]) read(folder *os.Root, name string, parse func([]byte) (T, error)) memo[T] {
	info, err := folder.Lstat(name)
	if err != nil {
		return memo[T]{}
	}
	now := evidenceOf(info)
	if m.good && m.evidence == now {
		return m
	}
	data, err := readSmall(folder, name)
	if err != nil {
		return memo[T]{}
	}
	value, err := parse(data)
	return memo[T]{evidence: now, value: value, good: err == nil}
}

// described returns record and cfg of an image folder. An unreadable record is as
// good as none: the copy is then not ours until it is adopted, and is verified
// before it is used.
func (d *Disk) described(id ID, folder *os.Root) (r Record, ours bool, cfg longhornCfg, hasCfg bool) {
	d.mu.Lock()
	was := d.texts[id]
	d.mu.Unlock()
	is := described{
		record: was.record.read(folder, recordFile, ParseRecord),
		cfg:    was.cfg.read(folder, cfgFile, parseCfg),
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	is.found = d.texts[id].found // a job may have found something out meanwhile
	d.texts[id] = is
	return is.record.value, is.record.good, is.cfg.value, is.cfg.good
}

// forget makes the next look read the files of id again. An inode that was used,
// freed and used again within a tick of the clock looks as if nothing had happened.
func (d *Disk) forget(id ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	stays := d.texts[id].found
	delete(d.texts, id)
	if stays != (found{}) {
		d.texts[id] = described{found: stays}
	}
}

// distrust makes every look say that there is no manifest, until it or its name in
// the record changes.
func (d *Disk) distrust(id ID, wrong manifestLook) {
	d.find(id, func(f *found) { f.wrong = wrong })
}

func (d *Disk) find(id ID, note func(*found)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.texts[id]
	note(&was.found)
	d.texts[id] = was
}

// knownDamaged reports whether the file was found wrong and its record does not say so.
func (d *Disk) knownDamaged(id ID, image Evidence) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.texts[id].damaged == image
}

// trusts returns the digest of the manifest, which is known by its length to be
// there, as far as nobody has found it to be another one.
func (d *Disk) trusts(id ID, r Record, image os.FileInfo, folder *os.Root) Digest {
	info, err := folder.Lstat(chunksFile)
	if err != nil || r.Size != image.Size() || info.Size() != chunkHeaderSize+chunksOf(r.Size)*sha256.Size {
		return Digest{}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.texts[id].wrong == (manifestLook{of: evidenceOf(info), named: r.ManifestDigest}) {
		return Digest{}
	}
	return r.ManifestDigest
}

// forgetOthers keeps what is remembered of the copies that there are.
func (d *Disk) forgetOthers(copies []Copy) {
	d.mu.Lock()
	defer d.mu.Unlock()
	kept := make(map[ID]described, len(copies))
	for _, c := range copies {
		kept[c.ID] = d.texts[c.ID]
	}
	d.texts = kept
	maps.DeleteFunc(d.left, func(id ID, _ leftPages) bool {
		_, there := kept[id]
		return !there
	})
}

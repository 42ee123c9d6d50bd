package schema

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func (d *decoder) image(name string, raw rawImage) *Image {
	m := &Image{
		ID: disk.ID{Name: name, UUID: raw.UUID}, UUIDDeclared: raw.UUID != "",
		Format:       disk.Format(raw.Format),
		NodeSelector: sorted(raw.NodeSelector), DiskSelector: sorted(raw.DiskSelector),
	}
	m.Checksum = d.digest(raw.Checksum, "checksum")
	m.Source = d.source(raw.Source)
	m.Backup = d.backup(raw.Backup)
	m.Suspend = d.suspension(raw.Suspend)
	var err error
	m.BandwidthLimit, err = quantity(raw.BandwidthLimit)
	d.check(err, "bandwidthLimit")
	if raw.MinNumberOfCopies == "all" {
		m.AllDisks, m.Copies = true, 1
	} else {
		m.Copies, err = count(raw.MinNumberOfCopies)
		d.check(err, "minNumberOfCopies")
	}
	for _, text := range sorted(raw.Disks) {
		node, disk, _ := strings.Cut(text, "/")
		m.Disks = append(m.Disks, DiskRef{Node: node, Disk: disk})
	}
	if c := m.Source.Clone; c != nil && c.Encryption == Encrypt && !m.Checksum.IsZero() {
		m.Checksum, m.ChecksumIgnored = disk.Digest{}, true
	}
	if c := m.Source.Clone; c != nil && c.BackingImage == name {
		d.fault(fieldPath{"source", "clone", "backingImage"}, "is the image itself", "name another image")
	}
	if !m.UUIDDeclared {
		m.ID.UUID = UUID(name, m.Checksum, m.Source)
	}
	return m
}

func (d *decoder) digest(text string, at ...string) disk.Digest {
	if text == "" {
		return disk.Digest{}
	}
	digest, err := disk.ParseDigest(text)
	d.check(err, at...)
	return digest
}

func (d *decoder) source(raw rawSource) (s Source) {
	switch {
	case raw.Download != nil:
		s.Download = d.download(raw.Download)
	case raw.Upload != nil:
		s.Upload = &Upload{}
	case raw.ExportFromVolume != nil:
		e := raw.ExportFromVolume
		s.ExportFromVolume = &ExportFromVolume{
			VolumeName: e.VolumeName, SnapshotName: e.SnapshotName, Path: e.Path,
			ExportType: disk.Format(e.ExportType), Compress: e.Compress,
		}
		d.export(*s.ExportFromVolume)
	case raw.Restore != nil:
		r := raw.Restore
		limit, err := count(r.ConcurrentLimit)
		d.check(err, "source", "restore", "concurrentLimit")
		s.Restore = &Restore{BackupURL: strings.TrimSpace(r.BackupURL), ConcurrentLimit: limit, Credentials: r.Credentials}
		d.backupURL(s.Restore.BackupURL)
	case raw.Clone != nil:
		c := raw.Clone
		s.Clone = &Clone{BackingImage: c.BackingImage, Encryption: Encryption(c.Encryption), Secret: c.Secret}
		d.secret(s.Clone)
	}
	return s
}

func (d *decoder) export(e ExportFromVolume) {
	at := fieldPath{"source", "exportFromVolume"}
	switch {
	case e.VolumeName == "" && e.Path == "":
		d.fault(at.with("volumeName"), "is missing", "name a volume, or give the path of a file or block device")
	case e.VolumeName != "" && e.Path != "":
		d.fault(at.with("path"), "is given beside volumeName", "keep the one that is meant")
	case e.Path != "" && e.SnapshotName != "":
		d.fault(at.with("snapshotName"), "is not of a path", "only a volume of Longhorn has snapshots")
	case e.Path != "" && path.Clean(e.Path) != e.Path:
		d.fault(at.with("path"), "is not a plain one", "write it without \"..\", \"//\" and a slash at the end")
	}
	if e.Compress && e.ExportType != disk.QCOW2 {
		d.fault(at.with("compress"), "is for qcow2", "set exportType to qcow2, or remove it")
	}
}

func (d *decoder) backup(raw *rawBackup) *Backup {
	if raw == nil {
		return nil
	}
	limit, err := count(raw.ConcurrentLimit)
	d.check(err, "backup", "concurrentLimit")
	b := &Backup{
		Target: strings.TrimSpace(raw.Target), Credentials: raw.Credentials,
		Compression: Compression(raw.Compression), ConcurrentLimit: limit,
	}
	d.backupTarget(b.Target, fieldPath{"backup", "target"})
	return b
}

func (d *decoder) secret(c *Clone) {
	at := fieldPath{"source", "clone", "secret"}
	if c.Encryption == EncryptionIgnore && c.Secret != "" {
		d.fault(at, "is not used without encryption", "set encryption to encrypt or decrypt, or remove it")
	}
	if c.Encryption != EncryptionIgnore && c.Secret == "" {
		d.fault(at, fmt.Sprintf("is missing: to %s needs a key", c.Encryption), "name a folder below --secrets-dir")
	}
}

func (d *decoder) download(raw *rawDownload) *Download {
	at := fieldPath{"source", "download"}
	w := &Download{
		URL: strings.TrimSpace(raw.URL), Credentials: raw.Credentials,
		ChecksumURL: strings.TrimSpace(raw.ChecksumURL),
	}
	d.url(w.URL, at.with("url"))
	for i, m := range raw.Mirrors {
		w.Mirrors = append(w.Mirrors, strings.TrimSpace(m))
		d.url(w.Mirrors[i], at.with("mirrors").with(fmt.Sprintf("[%d]", i)))
	}
	if w.ChecksumURL != "" {
		d.url(w.ChecksumURL, at.with("checksumURL"))
	}
	w.Unpack = d.unpack(raw.Unpack, w)
	w.PackedChecksum = d.digest(raw.PackedChecksum, at.with("packedChecksum")...)
	if w.Unpack == UnpackNone && !w.PackedChecksum.IsZero() {
		d.fault(at.with("packedChecksum"), "is of a packed file, and this one is not packed", "use checksum, or say in unpack how it is packed")
	}
	var err error
	w.MaxSize, err = quantity(raw.MaxSize)
	d.check(err, at.with("maxSize")...)
	return w
}

// unpack resolves "auto" by how the address ends. Mirrors have the same bytes,
// so they have to end alike.
func (d *decoder) unpack(declared string, w *Download) Unpack {
	if declared != "auto" {
		return Unpack(declared)
	}
	packing := packingOf(w.URL)
	for i, m := range w.Mirrors {
		if p := packingOf(m); p != packing {
			d.fault(fieldPath{"source", "download", "mirrors", fmt.Sprintf("[%d]", i)},
				fmt.Sprintf("ends as if it were packed otherwise than url (%s, not %s)", p, packing),
				"mirrors hold the same bytes; say in unpack how they are packed")
		}
	}
	return packing
}

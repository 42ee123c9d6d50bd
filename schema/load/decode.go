package load

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// decode converts the fields of a definition, and checks what CUE cannot.
func (f fields) decode(k key) (c checked) {
	switch k.section {
	case settingsSection:
		c.settings = f.settings()
	case nodesSection:
		c.node = f.node()
	case imagesSection:
		c.image = f.image(k.name)
		if follow, declared := f.value("followReplicas").(bool); declared {
			c.followReplicas = &follow
		}
	}
	c.problems, c.loopback = f.problems, f.loopback
	return c
}

func (f fields) settings() *schema.Settings {
	s := &schema.Settings{
		CleanupWaitInterval: read(f, "cleanupWaitInterval", minutes), RecoveryWaitInterval: read(f, "recoveryWaitInterval", seconds),
		ScrubInterval: read(f, "scrubInterval", seconds), MinNumberOfCopies: read(f, "minNumberOfCopies", count),
		ConcurrentReplenishPerNodeLimit: read(f, "concurrentReplenishPerNodeLimit", count),
		PruneLimit:                      read(f, "pruneLimit", pruneLimit), PruneConfirmed: readSet(f, "pruneConfirmed", ident.ParseID),
		FollowReplicas: f.flag("followReplicas"), AllowLoopbackSources: f.flag("allowLoopbackSources"),
		Suspend: f.suspension(), Report: f.reportTo(), Notify: f.notify(),
	}
	if v, ok := f.in("verify"); ok {
		s.Verify = &schema.VerifyPolicy{Required: v.flag("required"), Exempt: v.set("exempt")}
	}
	if w, ok := f.in("web"); ok {
		s.Web.EditURL = w.text("editURL")
	}
	return s
}

func (f fields) node() *schema.Node {
	n := &schema.Node{
		Address: strings.TrimSuffix(f.text("address"), "/"), Tags: f.set("tags"),
		AllowScheduling: f.flag("allowScheduling"), EvictionRequested: f.flag("evictionRequested"), Disks: map[string]schema.Disk{},
	}
	f.of("address").manager(n.Address)
	disks, _ := f.in("disks")
	first := map[string]string{} // disks by path
	for _, name := range sortedKeys(disks.values) {
		d, _ := disks.in(name)
		disk := schema.Disk{
			Path: filepath.Clean(d.text("path")), Tags: d.set("tags"), StorageReserved: read(d, "storageReserved", quantity),
			AllowScheduling: d.flag("allowScheduling"), EvictionRequested: d.flag("evictionRequested"),
		}
		if other, twice := first[disk.Path]; twice {
			d.of("path").report(fmt.Sprintf("is also the path of disk %q", other), "each disk needs its own path")
		} else {
			first[disk.Path] = name
		}
		n.Disks[name] = disk
	}
	return n
}

func (f fields) image(name string) *schema.Image {
	m := &schema.Image{
		ID: ident.ID{Name: name, UUID: f.text("uuid")}, Title: f.text("title"),
		Checksum: read(f, "checksum", parseDigest), Format: model.Format(f.text("format")), Source: f.source(),
		NodeSelector: f.set("nodeSelector"), DiskSelector: f.set("diskSelector"), Disks: readSet(f, "disks", ident.ParseDiskRef),
		BandwidthLimit: read(f, "bandwidthLimit", quantity), KeepGenerations: read(f, "keepGenerations", count),
		Backup: f.backup(), Suspend: f.suspension(),
	}
	m.UUIDDeclared = m.ID.UUID != ""
	m.Track, m.Verify = f.track(m.Source.Download), f.verify(m.Source.Download)
	if f.value("minNumberOfCopies") == "all" {
		m.AllDisks, m.Copies = true, 1
	} else {
		m.Copies = read(f, "minNumberOfCopies", count)
	}
	if e := m.Source.ExportFromVolume; e != nil && m.Format != "" && m.Format != e.ExportType {
		f.of("format").report(fmt.Sprintf("is %s, but exportType is %s", m.Format, e.ExportType), "set exportType only: it is the format of the image")
	}
	if c := m.Source.Clone; c != nil && c.Encryption == schema.Encrypt && !m.Checksum.IsZero() {
		m.Checksum, m.ChecksumIgnored = ident.Digest{}, true
	}
	if c := m.Source.Clone; c != nil && c.BackingImage == name {
		f.of("source").of("clone").of("backingImage").report("is the image itself", "write the name of another image")
	}
	if !m.UUIDDeclared && m.Source != (schema.Source{}) {
		m.ID.UUID = schema.UUID(name, m.Checksum, m.Source)
	}
	return m
}

func parseDigest(v any) (ident.Digest, error) { return ident.ParseDigest(v.(string)) }

func (f fields) source() (s schema.Source) {
	source, _ := f.in("source")
	if d, ok := source.in("download"); ok {
		s.Download = d.download()
	}
	if _, ok := source.in("upload"); ok {
		s.Upload = &schema.Upload{}
	}
	if e, ok := source.in("exportFromVolume"); ok {
		s.ExportFromVolume = e.export()
	}
	if r, ok := source.in("restore"); ok {
		s.Restore = &schema.Restore{BackupURL: r.trimmed("backupURL"), ConcurrentLimit: read(r, "concurrentLimit", count), Credentials: r.text("credentials")}
		r.of("backupURL").backupURL(s.Restore.BackupURL)
	}
	if c, ok := source.in("clone"); ok {
		s.Clone = c.clone()
	}
	return s
}

func (f fields) export() *schema.ExportFromVolume {
	e := &schema.ExportFromVolume{
		VolumeName: f.text("volumeName"), SnapshotName: f.text("snapshotName"), Path: f.text("path"),
		ExportType: model.Format(f.text("exportType")), Compress: f.flag("compress"),
	}
	switch {
	case e.VolumeName == "" && e.Path == "":
		f.of("volumeName").report("is missing", "set it, or set path to a file or block device")
	case e.VolumeName != "" && e.Path != "":
		f.of("path").report("cannot be combined with volumeName", "keep one of them")
	case e.Path != "" && e.SnapshotName != "":
		f.of("snapshotName").report("cannot be combined with path", "only a volume of Longhorn has snapshots")
	case e.Path != "" && path.Clean(e.Path) != e.Path:
		f.of("path").report("is not clean", "write it without \"..\", \"//\" and a slash at the end")
	}
	if e.Compress && e.ExportType != model.QCOW2 {
		f.of("compress").report("needs exportType qcow2", "set exportType to qcow2, or remove compress")
	}
	return e
}

func (f fields) clone() *schema.Clone {
	c := &schema.Clone{BackingImage: f.text("backingImage"), Encryption: schema.Encryption(f.text("encryption")), Secret: f.text("secret")}
	if c.Encryption == schema.EncryptionIgnore && c.Secret != "" {
		f.of("secret").report("is not used without encryption", "set encryption to encrypt or decrypt, or remove it")
	}
	if c.Encryption != schema.EncryptionIgnore && c.Secret == "" {
		f.of("secret").report(fmt.Sprintf("is missing: %s needs a key", c.Encryption), "write the name of a folder below --secrets-dir")
	}
	return c
}

func (f fields) backup() *schema.Backup {
	b, ok := f.in("backup")
	if !ok {
		return nil
	}
	b.of("target").backupTarget(b.trimmed("target"))
	return &schema.Backup{
		Target: b.trimmed("target"), Credentials: b.text("credentials"),
		Compression: schema.Compression(b.text("compression")), ConcurrentLimit: read(b, "concurrentLimit", count),
	}
}

func (f fields) download() *schema.Download {
	d := &schema.Download{
		URL: f.trimmed("url"), Credentials: f.text("credentials"), Mirrors: f.list("mirrors"), PackedChecksum: read(f, "packedChecksum", parseDigest),
		ChecksumURL: f.trimmed("checksumURL"), Index: f.trimmed("index"), Store: f.trimmed("store"), MaxSize: read(f, "maxSize", quantity),
	}
	f.of("url").address(d.URL)
	mirror := func(i int) place { return place{f.decoder, f.at.With("mirrors").WithIndex(i)} }
	for i, m := range d.Mirrors {
		d.Mirrors[i] = strings.TrimSpace(m)
		mirror(i).address(d.Mirrors[i])
	}
	for _, name := range []string{"checksumURL", "index", "store"} {
		if addr := f.trimmed(name); addr != "" {
			f.of(name).address(addr)
		}
	}
	// An index is no evidence for the bytes of an image. So a checksum must decide about a file that is assembled from
	// several origins.
	if d.Index != "" && f.lacks("checksum") {
		f.of("index").report("needs checksum", "declare the checksum of the unpacked file: an index does not prove which bytes are right")
	}
	if d.Store != "" && f.lacks("source", "download", "index") {
		f.of("store").report("needs index", "set the address of the index whose chunks the store has")
	}
	if d.Unpack = schema.Unpack(f.text("unpack")); d.Unpack == "auto" {
		d.Unpack = schema.PackingOf(d.URL)
		for i, m := range d.Mirrors { // mirrors have the same bytes, so they must have the same extension
			if p := schema.PackingOf(m); p != d.Unpack && d.URL != "" {
				mirror(i).report(fmt.Sprintf("has the extension of another packing (%s) than url (%s)", p, d.Unpack), "a mirror has the same bytes: set unpack")
			}
		}
	}
	if d.Unpack == schema.UnpackNone && !d.PackedChecksum.IsZero() {
		f.of("packedChecksum").report("is the checksum of a packed file, and this file is not packed", "use checksum, or set unpack")
	}
	return d
}

func (f fields) suspension() *schema.Suspension {
	s, ok := f.in("suspend")
	if !ok {
		return nil
	}
	return &schema.Suspension{Reason: s.trimmed("reason"), By: s.trimmed("by"), Until: read(s, "until", parseTime)}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

package schema

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cuelang.org/go/cue"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// The raw types are what the schema has, with its defaults filled in: where it
// takes a number or a text, there is an any.
type (
	rawSettings struct {
		CleanupWaitInterval             any
		RecoveryWaitInterval            any
		MinNumberOfCopies               any
		ConcurrentReplenishPerNodeLimit any
		PruneLimit                      any
		PruneConfirmed                  []string
		ScrubInterval                   any
		AllowLoopbackSources            bool
		Suspend                         *rawSuspend
	}
	rawSuspend struct{ Reason, By, Until string }
	rawNode    struct {
		Address                            string
		Tags                               []string
		AllowScheduling, EvictionRequested bool
		Disks                              map[string]rawDisk
	}
	rawDisk struct {
		Path                               string
		Tags                               []string
		StorageReserved                    any
		AllowScheduling, EvictionRequested bool
	}
	rawImage struct {
		Source                            rawSource
		Checksum, UUID, Format            string
		MinNumberOfCopies, BandwidthLimit any
		NodeSelector, DiskSelector, Disks []string
		Backup                            *rawBackup
		Suspend                           *rawSuspend
	}
	rawBackup struct {
		Target, Credentials, Compression string
		ConcurrentLimit                  any
	}
	rawSource struct {
		Download         *rawDownload
		Upload           *struct{}
		ExportFromVolume *struct {
			VolumeName, SnapshotName, Path, ExportType string
			Compress                                   bool
		}
		Restore *struct {
			BackupURL       string
			ConcurrentLimit any
			Credentials     string
		}
		Clone *struct{ BackingImage, Encryption, Secret string }
	}
	rawDownload struct {
		URL            string
		Mirrors        []string
		Credentials    string
		ChecksumURL    string
		PackedChecksum string
		Unpack         string
		MaxSize        any
	}
)

// decoder turns a valid thing into what the rest of the program takes, and
// collects what is wrong with it that a schema cannot say.
type decoder struct {
	verdict verdict
}

func (d *decoder) fault(at document.Path, msg, hint string) {
	d.verdict.faults = append(d.verdict.faults, document.Problem{Path: at, Message: msg, Hint: hint})
}

func (d *decoder) check(err error, at ...string) {
	if err != nil {
		d.fault(at, err.Error(), "")
	}
}

func decode(t task, v cue.Value) verdict {
	var d decoder
	switch t.section {
	case settingsSection:
		var raw rawSettings
		mustDecode(v, &raw)
		d.verdict.settings = d.settings(raw)
	case nodesSection:
		var raw rawNode
		mustDecode(v, &raw)
		d.verdict.node = d.node(raw)
	case imagesSection:
		var raw rawImage
		mustDecode(v, &raw)
		d.verdict.image = d.image(t.name, raw)
	}
	if len(d.verdict.faults) > 0 {
		return verdict{faults: d.verdict.faults, loopback: d.verdict.loopback}
	}
	return d.verdict
}

// mustDecode fills raw from a value that the schema accepted.
func mustDecode(v cue.Value, raw any) {
	if err := v.Decode(raw); err != nil {
		panic(fmt.Sprintf("schema: schema.cue and its Go types differ: %v", err))
	}
}

func (d *decoder) settings(raw rawSettings) *Settings {
	s := &Settings{AllowLoopbackSources: raw.AllowLoopbackSources, Suspend: d.suspension(raw.Suspend)}
	var err error
	s.CleanupWaitInterval, err = interval(raw.CleanupWaitInterval, time.Minute)
	d.check(err, "cleanupWaitInterval")
	s.RecoveryWaitInterval, err = interval(raw.RecoveryWaitInterval, time.Second)
	d.check(err, "recoveryWaitInterval")
	s.ScrubInterval, err = interval(raw.ScrubInterval, time.Nanosecond)
	d.check(err, "scrubInterval")
	s.MinNumberOfCopies, err = count(raw.MinNumberOfCopies)
	d.check(err, "minNumberOfCopies")
	s.ConcurrentReplenishPerNodeLimit, err = count(raw.ConcurrentReplenishPerNodeLimit)
	d.check(err, "concurrentReplenishPerNodeLimit")
	s.PruneLimit, err = pruneLimit(raw.PruneLimit)
	d.check(err, "pruneLimit")
	for i, text := range raw.PruneConfirmed {
		id, err := disk.ParseID(text)
		d.check(err, "pruneConfirmed", fmt.Sprintf("[%d]", i))
		s.PruneConfirmed = append(s.PruneConfirmed, id)
	}
	slices.SortFunc(s.PruneConfirmed, func(a, b disk.ID) int { return strings.Compare(a.String(), b.String()) })
	s.PruneConfirmed = slices.Compact(s.PruneConfirmed)
	return s
}

func pruneLimit(v any) (PruneLimit, error) {
	if s, ok := v.(string); ok {
		return parsePruneLimit(s)
	}
	n, err := count(v)
	return PruneCount(n), err
}

func (d *decoder) node(raw rawNode) *Node {
	n := &Node{
		Address: strings.TrimSuffix(raw.Address, "/"), Tags: sorted(raw.Tags),
		AllowScheduling: raw.AllowScheduling, EvictionRequested: raw.EvictionRequested,
		Disks: make(map[string]Disk, len(raw.Disks)),
	}
	d.address(raw.Address)
	for name, r := range raw.Disks {
		reserved, err := quantity(r.StorageReserved)
		d.check(err, "disks", name, "storageReserved")
		n.Disks[name] = Disk{
			Path: filepath.Clean(r.Path), Tags: sorted(r.Tags), StorageReserved: reserved,
			AllowScheduling: r.AllowScheduling, EvictionRequested: r.EvictionRequested,
		}
	}
	d.samePaths(n)
	return n
}

// samePaths finds disks of one node that are one folder.
func (d *decoder) samePaths(n *Node) {
	first := map[string]string{}
	for _, name := range sortedKeys(n.Disks) {
		p := n.Disks[name].Path
		if other, twice := first[p]; twice {
			d.fault(document.Path{"disks", name, "path"}, fmt.Sprintf("is the path of %q too", other), "every disk has a path of its own")
			continue
		}
		first[p] = name
	}
}

// sorted returns the texts sorted and each once, so that their order in a file
// does not matter. No texts are nil.
func sorted(texts []string) []string {
	if len(texts) == 0 {
		return nil
	}
	return slices.Compact(slices.Sorted(slices.Values(texts)))
}

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
		d.fault(document.Path{"source", "clone", "backingImage"}, "is the image itself", "name another image")
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
	at := document.Path{"source", "exportFromVolume"}
	switch {
	case e.VolumeName == "" && e.Path == "":
		d.fault(at.With("volumeName"), "is missing", "name a volume, or give the path of a file or block device")
	case e.VolumeName != "" && e.Path != "":
		d.fault(at.With("path"), "is given beside volumeName", "keep the one that is meant")
	case e.Path != "" && e.SnapshotName != "":
		d.fault(at.With("snapshotName"), "is not of a path", "only a volume of Longhorn has snapshots")
	case e.Path != "" && path.Clean(e.Path) != e.Path:
		d.fault(at.With("path"), "is not a plain one", "write it without \"..\", \"//\" and a slash at the end")
	}
	if e.Compress && e.ExportType != disk.QCOW2 {
		d.fault(at.With("compress"), "is for qcow2", "set exportType to qcow2, or remove it")
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
	d.backupTarget(b.Target, document.Path{"backup", "target"})
	return b
}

func (d *decoder) secret(c *Clone) {
	at := document.Path{"source", "clone", "secret"}
	if c.Encryption == EncryptionIgnore && c.Secret != "" {
		d.fault(at, "is not used without encryption", "set encryption to encrypt or decrypt, or remove it")
	}
	if c.Encryption != EncryptionIgnore && c.Secret == "" {
		d.fault(at, fmt.Sprintf("is missing: to %s needs a key", c.Encryption), "name a folder below --secrets-dir")
	}
}

func (d *decoder) download(raw *rawDownload) *Download {
	at := document.Path{"source", "download"}
	w := &Download{
		URL: strings.TrimSpace(raw.URL), Credentials: raw.Credentials,
		ChecksumURL: strings.TrimSpace(raw.ChecksumURL),
	}
	d.url(w.URL, at.With("url"))
	for i, m := range raw.Mirrors {
		w.Mirrors = append(w.Mirrors, strings.TrimSpace(m))
		d.url(w.Mirrors[i], at.With("mirrors").WithIndex(i))
	}
	if w.ChecksumURL != "" {
		d.url(w.ChecksumURL, at.With("checksumURL"))
	}
	w.Unpack = d.unpack(raw.Unpack, w)
	w.PackedChecksum = d.digest(raw.PackedChecksum, at.With("packedChecksum")...)
	if w.Unpack == UnpackNone && !w.PackedChecksum.IsZero() {
		d.fault(at.With("packedChecksum"), "is of a packed file, and this one is not packed", "use checksum, or say in unpack how it is packed")
	}
	var err error
	w.MaxSize, err = quantity(raw.MaxSize)
	d.check(err, at.With("maxSize")...)
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
			d.fault(document.Path{"source", "download", "mirrors", fmt.Sprintf("[%d]", i)},
				fmt.Sprintf("ends as if it were packed otherwise than url (%s, not %s)", p, packing),
				"mirrors hold the same bytes; say in unpack how they are packed")
		}
	}
	return packing
}

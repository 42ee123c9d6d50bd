package schema

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// The raw types are the values of the schema with all defaults. A field is any if the
// schema accepts a number or a string.
type (
	rawSettings struct {
		CleanupWaitInterval             any
		RecoveryWaitInterval            any
		MinNumberOfCopies               any
		ConcurrentReplenishPerNodeLimit any
		PruneLimit                      any
		PruneConfirmed                  []string
		ScrubInterval                   any
		FollowReplicas                  bool
		AllowLoopbackSources            bool
		Suspend                         *rawSuspend
		Verify                          *rawVerifyPolicy
		Report                          *rawReport
		Notify                          *rawNotify
		Web                             *rawWeb
	}
	rawWeb          struct{ EditURL string }
	rawReport       struct{ URL, Credentials string }
	rawNotify       struct{ URL, Format, Credentials, Cluster string }
	rawVerifyPolicy struct {
		Required bool
		Exempt   []string
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
		Checksum, UUID, Format, Title     string
		MinNumberOfCopies, BandwidthLimit any
		KeepGenerations                   any
		FollowReplicas                    *bool
		NodeSelector, DiskSelector, Disks []string
		Backup                            *rawBackup
		Suspend                           *rawSuspend
		Track                             *rawTrack
		Verify                            *rawVerify
	}
	rawVerify     struct{ OpenPGP, Minisign, Signify, Cosign *rawVerifyKeys }
	rawVerifyKeys struct{ Keys, SignatureURL string }
	rawTrack      struct {
		Simplestreams *struct{ URL, Product, Item, Keys string }
		CoreOS        *struct{ Stream, URL, Arch, Artifact, Format string }
		Listing       *struct{ URL, Match, Checksum, Keys, Signature string }
		HTTP          *struct{ Keys, Signature string }
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
		Index, Store   string
		Credentials    string
		ChecksumURL    string
		PackedChecksum string
		Unpack         string
		MaxSize        any
	}
)

// decoder converts a valid value of the schema to the types of this package, and
// collects the problems that a schema cannot find.
type decoder struct {
	value  *document.Value // the definition
	result checked
}

func (d *decoder) report(at document.Path, message, hint string) {
	d.result.problems = append(d.result.problems, document.Problem{Path: at, Message: message, Hint: hint})
}

// reportError adds a problem if err is not nil.
func (d *decoder) reportError(err error, at ...string) {
	if err != nil {
		d.report(at, err.Error(), "")
	}
}

// newRaw returns a pointer to the raw type of a section.
func newRaw(s section) any {
	return [sections]any{settingsSection: &rawSettings{}, nodesSection: &rawNode{}, imagesSection: &rawImage{}}[s]
}

// decode converts a raw value, which a pointer refers to.
func decode(t task, raw any) checked {
	d := decoder{value: t.value}
	switch raw := raw.(type) {
	case *rawSettings:
		d.result.settings = d.settings(*raw)
	case *rawNode:
		d.result.node = d.node(*raw)
	case *rawImage:
		d.result.image = d.image(t.name, *raw)
	}
	if len(d.result.problems) > 0 {
		return checked{problems: d.result.problems, loopback: d.result.loopback, rest: d.result.image}
	}
	return d.result
}

func (d *decoder) settings(raw rawSettings) *Settings {
	s := &Settings{FollowReplicas: raw.FollowReplicas, AllowLoopbackSources: raw.AllowLoopbackSources, Suspend: d.suspension(raw.Suspend)}
	if v := raw.Verify; v != nil {
		s.Verify = &VerifyPolicy{Required: v.Required, Exempt: sorted(v.Exempt)}
	}
	s.Report, s.Notify = d.reportTo(raw.Report), d.notify(raw.Notify)
	if raw.Web != nil {
		s.Web = Web{raw.Web.EditURL}
	}
	var err error
	s.CleanupWaitInterval, err = interval(raw.CleanupWaitInterval, time.Minute)
	d.reportError(err, "cleanupWaitInterval")
	s.RecoveryWaitInterval, err = interval(raw.RecoveryWaitInterval, time.Second)
	d.reportError(err, "recoveryWaitInterval")
	s.ScrubInterval, err = interval(raw.ScrubInterval, time.Nanosecond)
	d.reportError(err, "scrubInterval")
	s.MinNumberOfCopies, err = count(raw.MinNumberOfCopies)
	d.reportError(err, "minNumberOfCopies")
	s.ConcurrentReplenishPerNodeLimit, err = count(raw.ConcurrentReplenishPerNodeLimit)
	d.reportError(err, "concurrentReplenishPerNodeLimit")
	s.PruneLimit, err = pruneLimit(raw.PruneLimit)
	d.reportError(err, "pruneLimit")
	s.PruneConfirmed = []ident.ID{}
	for i, text := range raw.PruneConfirmed {
		id, err := ident.ParseID(text)
		d.reportError(err, "pruneConfirmed", fmt.Sprintf("[%d]", i))
		s.PruneConfirmed = append(s.PruneConfirmed, id)
	}
	slices.SortFunc(s.PruneConfirmed, func(a, b ident.ID) int { return strings.Compare(a.String(), b.String()) })
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
		d.reportError(err, "disks", name, "storageReserved")
		n.Disks[name] = Disk{
			Path: filepath.Clean(r.Path), Tags: sorted(r.Tags), StorageReserved: reserved,
			AllowScheduling: r.AllowScheduling, EvictionRequested: r.EvictionRequested,
		}
	}
	d.checkPaths(n)
	return n
}

// checkPaths finds disks of one node with the same folder.
func (d *decoder) checkPaths(n *Node) {
	first := map[string]string{}
	for _, name := range sortedKeys(n.Disks) {
		p := n.Disks[name].Path
		if other, twice := first[p]; twice {
			d.report(document.Path{"disks", name, "path"}, fmt.Sprintf("is also the path of %q", other), "each disk needs its own path")
			continue
		}
		first[p] = name
	}
}

// sorted returns the strings sorted, without duplicates and never nil, so that their order
// in a file does not matter.
func sorted(list []string) []string {
	return slices.Compact(append([]string{}, slices.Sorted(slices.Values(list))...))
}

func (d *decoder) image(name string, raw rawImage) *Image {
	m := &Image{
		ID: ident.ID{Name: name, UUID: raw.UUID}, UUIDDeclared: raw.UUID != "",
		Format:       model.Format(raw.Format),
		Title:        raw.Title,
		NodeSelector: sorted(raw.NodeSelector), DiskSelector: sorted(raw.DiskSelector),
		followReplicas: raw.FollowReplicas,
	}
	m.Checksum = d.digest(raw.Checksum, "checksum")
	m.Source = d.source(raw.Source)
	if e := m.Source.ExportFromVolume; e != nil && m.Format != "" && m.Format != e.ExportType {
		d.report(document.Path{"format"}, fmt.Sprintf("is %s, but exportType is %s", m.Format, e.ExportType), "set exportType only: it is the format of the image")
	}
	m.Backup = d.backup(raw.Backup)
	m.Suspend = d.suspension(raw.Suspend)
	m.Track = d.track(raw.Track, m.Source.Download)
	m.Verify = d.verify(raw.Verify, m.Source.Download)
	var err error
	m.BandwidthLimit, err = quantity(raw.BandwidthLimit)
	d.reportError(err, "bandwidthLimit")
	if raw.MinNumberOfCopies == "all" {
		m.AllDisks, m.Copies = true, 1
	} else {
		m.Copies, err = count(raw.MinNumberOfCopies)
		d.reportError(err, "minNumberOfCopies")
	}
	m.KeepGenerations, err = count(raw.KeepGenerations)
	d.reportError(err, "keepGenerations")
	m.Disks = []ident.DiskRef{}
	for _, text := range sorted(raw.Disks) {
		ref, err := ident.ParseDiskRef(text)
		d.reportError(err, "disks")
		m.Disks = append(m.Disks, ref)
	}
	if c := m.Source.Clone; c != nil && c.Encryption == Encrypt && !m.Checksum.IsZero() {
		m.Checksum, m.ChecksumIgnored = ident.Digest{}, true
	}
	if c := m.Source.Clone; c != nil && c.BackingImage == name {
		d.report(document.Path{"source", "clone", "backingImage"}, "is the image itself", "write the name of another image")
	}
	if !m.UUIDDeclared && m.Source != (Source{}) {
		m.ID.UUID = UUID(name, m.Checksum, m.Source)
	}
	return m
}

func (d *decoder) digest(text string, at ...string) ident.Digest {
	if text == "" {
		return ident.Digest{}
	}
	digest, err := ident.ParseDigest(text)
	d.reportError(err, at...)
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
			ExportType: model.Format(e.ExportType), Compress: e.Compress,
		}
		d.export(*s.ExportFromVolume)
	case raw.Restore != nil:
		r := raw.Restore
		limit, err := count(r.ConcurrentLimit)
		d.reportError(err, "source", "restore", "concurrentLimit")
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
		d.report(at.With("volumeName"), "is missing", "set it, or set path to a file or block device")
	case e.VolumeName != "" && e.Path != "":
		d.report(at.With("path"), "cannot be combined with volumeName", "keep one of them")
	case e.Path != "" && e.SnapshotName != "":
		d.report(at.With("snapshotName"), "cannot be combined with path", "only a volume of Longhorn has snapshots")
	case e.Path != "" && path.Clean(e.Path) != e.Path:
		d.report(at.With("path"), "is not clean", "write it without \"..\", \"//\" and a slash at the end")
	}
	if e.Compress && e.ExportType != model.QCOW2 {
		d.report(at.With("compress"), "needs exportType qcow2", "set that, or remove this")
	}
}

func (d *decoder) backup(raw *rawBackup) *Backup {
	if raw == nil {
		return nil
	}
	limit, err := count(raw.ConcurrentLimit)
	d.reportError(err, "backup", "concurrentLimit")
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
		d.report(at, "is not used without encryption", "set encryption to encrypt or decrypt, or remove it")
	}
	if c.Encryption != EncryptionIgnore && c.Secret == "" {
		d.report(at, fmt.Sprintf("is missing: %s needs a key", c.Encryption), "write the name of a folder below --secrets-dir")
	}
}

func (d *decoder) download(raw *rawDownload) *Download {
	at := document.Path{"source", "download"}
	w := &Download{
		URL: strings.TrimSpace(raw.URL), Credentials: raw.Credentials, Mirrors: []string{},
		ChecksumURL: strings.TrimSpace(raw.ChecksumURL), Index: strings.TrimSpace(raw.Index), Store: strings.TrimSpace(raw.Store),
	}
	d.url(w.URL, at.With("url"))
	for i, m := range raw.Mirrors {
		w.Mirrors = append(w.Mirrors, strings.TrimSpace(m))
		d.url(w.Mirrors[i], at.With("mirrors").WithIndex(i))
	}
	if w.ChecksumURL != "" {
		d.url(w.ChecksumURL, at.With("checksumURL"))
	}
	d.delta(w, at)
	w.Unpack = d.unpack(raw.Unpack, w)
	w.PackedChecksum = d.digest(raw.PackedChecksum, at.With("packedChecksum")...)
	if w.Unpack == UnpackNone && !w.PackedChecksum.IsZero() {
		d.report(at.With("packedChecksum"), "is the checksum of a packed file, and this file is not packed", "use checksum, or set unpack")
	}
	var err error
	w.MaxSize, err = quantity(raw.MaxSize)
	d.reportError(err, at.With("maxSize")...)
	return w
}

// delta checks the addresses of an index and of a chunk store. An index is not evidence for the bytes
// of an image, so that it must not be the only thing that a file of several origins is compared with.
func (d *decoder) delta(w *Download, at document.Path) {
	if w.Index != "" {
		d.url(w.Index, at.With("index"))
		if d.lacks(document.Path{"checksum"}) {
			d.report(at.With("index"), "needs checksum", "declare the checksum of the unpacked file: an index does not prove which bytes are right")
		}
	}
	if w.Store != "" {
		d.url(w.Store, at.With("store"))
		if d.lacks(at.With("index")) {
			d.report(at.With("store"), "needs index", "set the address of the index whose chunks the store has")
		}
	}
}

// lacks reports whether the definition has no value at a path. A value with a mistake, which the
// decoded value lacks, is reported already.
func (d *decoder) lacks(at document.Path) bool {
	v, _ := d.value.Find(at, document.Position{})
	return v == nil || v.Kind == document.Text && strings.TrimSpace(v.Text) == ""
}

// hasOtherSource reports whether the image declares a source that is no download. If it does not, the source
// has a mistake, which is reported already.
func (d *decoder) hasOtherSource() bool {
	return slices.ContainsFunc([]SourceKind{KindUpload, KindExportFromVolume, KindRestore, KindClone}, func(k SourceKind) bool {
		return !d.lacks(document.Path{"source", string(k)})
	})
}

// unpack resolves "auto" by the extension in the address. Mirrors have the same bytes,
// so they must have the same extension.
func (d *decoder) unpack(declared string, w *Download) Unpack {
	if declared != "auto" {
		return Unpack(declared)
	}
	packing := packingOf(w.URL)
	for i, m := range w.Mirrors {
		if p := packingOf(m); p != packing && w.URL != "" {
			d.report(document.Path{"source", "download", "mirrors", fmt.Sprintf("[%d]", i)},
				fmt.Sprintf("has another packing than url by its extension (%s, not %s)", p, packing),
				"a mirror has the same bytes: set unpack")
		}
	}
	return packing
}

func (d *decoder) suspension(raw *rawSuspend) *Suspension {
	if raw == nil {
		return nil
	}
	s := &Suspension{Reason: strings.TrimSpace(raw.Reason), By: strings.TrimSpace(raw.By)}
	if raw.Until != "" {
		var err error
		s.Until, err = parseTime(raw.Until)
		d.reportError(err, "suspend", "until")
	}
	return s
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

package main

import (
	"cmp"
	"strconv"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// The view of a configuration is a configuration again, with every default filled
// in: what it says can be put in a file and means the same. Only secrets in
// addresses are left out.
type configView struct {
	Settings settingsView         `json:"settings"`
	Nodes    map[string]nodeView  `json:"nodes"`
	Images   map[string]imageView `json:"images"`
}

type settingsView struct {
	CleanupWaitInterval             string   `json:"cleanupWaitInterval"`
	RecoveryWaitInterval            string   `json:"recoveryWaitInterval"`
	MinNumberOfCopies               int      `json:"minNumberOfCopies"`
	ConcurrentReplenishPerNodeLimit int      `json:"concurrentReplenishPerNodeLimit"`
	PruneLimit                      any      `json:"pruneLimit"` // a number, or "50%"
	PruneConfirmed                  []string `json:"pruneConfirmed"`
	ScrubInterval                   string   `json:"scrubInterval"`
	AllowLoopbackSources            bool     `json:"allowLoopbackSources"`

	Suspend *suspendView `json:"suspend,omitempty"`
}

type suspendView struct {
	Reason string    `json:"reason"`
	By     string    `json:"by,omitempty"`
	Until  time.Time `json:"until,omitzero"`
}

type nodeView struct {
	Address           string              `json:"address,omitempty"`
	Tags              []string            `json:"tags"`
	AllowScheduling   bool                `json:"allowScheduling"`
	EvictionRequested bool                `json:"evictionRequested"`
	Disks             map[string]diskView `json:"disks"`
}

type diskView struct {
	Path              string   `json:"path"`
	Tags              []string `json:"tags"`
	StorageReserved   int64    `json:"storageReserved"`
	AllowScheduling   bool     `json:"allowScheduling"`
	EvictionRequested bool     `json:"evictionRequested"`
}

type imageView struct {
	UUID              string      `json:"uuid"`
	Source            sourceView  `json:"source"`
	Checksum          string      `json:"checksum,omitempty"`
	Format            disk.Format `json:"format,omitempty"`
	MinNumberOfCopies any         `json:"minNumberOfCopies"` // a number, or "all"
	NodeSelector      []string    `json:"nodeSelector"`
	DiskSelector      []string    `json:"diskSelector"`
	Disks             []string    `json:"disks"`
	BandwidthLimit    int64       `json:"bandwidthLimit"`
	Backup            *backupView `json:"backup,omitempty"`

	Suspend *suspendView `json:"suspend,omitempty"`
}

type sourceView struct {
	Download         *downloadView `json:"download,omitempty"`
	Upload           *struct{}     `json:"upload,omitempty"`
	ExportFromVolume *exportView   `json:"exportFromVolume,omitempty"`
	Restore          *restoreView  `json:"restore,omitempty"`
	Clone            *cloneView    `json:"clone,omitempty"`
}

type downloadView struct {
	URL            string        `json:"url"`
	Mirrors        []string      `json:"mirrors"`
	Credentials    string        `json:"credentials,omitempty"`
	ChecksumURL    string        `json:"checksumURL,omitempty"`
	PackedChecksum string        `json:"packedChecksum,omitempty"`
	Unpack         schema.Unpack `json:"unpack"`
	MaxSize        int64         `json:"maxSize"`
}

type exportView struct {
	VolumeName   string      `json:"volumeName,omitempty"`
	SnapshotName string      `json:"snapshotName,omitempty"`
	Path         string      `json:"path,omitempty"`
	ExportType   disk.Format `json:"exportType"`
	Compress     bool        `json:"compress,omitempty"`
}

type backupView struct {
	Target          string             `json:"target"`
	Credentials     string             `json:"credentials,omitempty"`
	Compression     schema.Compression `json:"compression"`
	ConcurrentLimit int                `json:"concurrentLimit"`
}

type restoreView struct {
	BackupURL       string `json:"backupURL"`
	ConcurrentLimit int    `json:"concurrentLimit"`
	Credentials     string `json:"credentials,omitempty"`
}

type cloneView struct {
	BackingImage string            `json:"backingImage"`
	Encryption   schema.Encryption `json:"encryption"`
	Secret       string            `json:"secret,omitempty"`
}

func viewConfig(c schema.Config) configView {
	v := configView{Settings: viewSettings(c.Settings), Nodes: map[string]nodeView{}, Images: map[string]imageView{}}
	for name, n := range c.Nodes {
		v.Nodes[name] = viewNode(n)
	}
	for name, m := range c.Images {
		v.Images[name] = viewImage(m)
	}
	return v
}

func viewSettings(s schema.Settings) settingsView {
	return settingsView{
		CleanupWaitInterval: viewDuration(s.CleanupWaitInterval), RecoveryWaitInterval: viewDuration(s.RecoveryWaitInterval),
		MinNumberOfCopies: s.MinNumberOfCopies, ConcurrentReplenishPerNodeLimit: s.ConcurrentReplenishPerNodeLimit,
		PruneLimit: viewPruneLimit(s.PruneLimit), PruneConfirmed: texts(s.PruneConfirmed),
		ScrubInterval: viewDuration(s.ScrubInterval), AllowLoopbackSources: s.AllowLoopbackSources,
		Suspend: viewSuspension(s.Suspend),
	}
}

func viewSuspension(s *schema.Suspension) *suspendView {
	if s == nil {
		return nil
	}
	return &suspendView{s.Reason, s.By, s.Until}
}

// viewPruneLimit is a number, or a text with a percentage.
func viewPruneLimit(l schema.PruneLimit) any {
	if n, err := strconv.Atoi(l.String()); err == nil {
		return n
	}
	return l.String()
}

func viewDuration(d time.Duration) string { return d.String() }

// texts is never nil: in JSON an empty list is not null.
func texts[T interface{ String() string }](values []T) []string {
	list := []string{}
	for _, v := range values {
		list = append(list, v.String())
	}
	return list
}

func words(list []string) []string { return append([]string{}, list...) }

func viewNode(n schema.Node) nodeView {
	v := nodeView{
		Address: redactText(n.Address), Tags: words(n.Tags),
		AllowScheduling: n.AllowScheduling, EvictionRequested: n.EvictionRequested, Disks: map[string]diskView{},
	}
	for name, d := range n.Disks {
		v.Disks[name] = diskView{
			Path: d.Path, Tags: words(d.Tags), StorageReserved: d.StorageReserved,
			AllowScheduling: d.AllowScheduling, EvictionRequested: d.EvictionRequested,
		}
	}
	return v
}

func viewImage(m schema.Image) imageView {
	v := imageView{
		UUID: m.ID.UUID, Source: viewSource(m.Source), Checksum: m.Checksum.String(), Format: m.Format,
		MinNumberOfCopies: m.Copies, NodeSelector: words(m.NodeSelector), DiskSelector: words(m.DiskSelector),
		Disks: texts(m.Disks), BandwidthLimit: m.BandwidthLimit, Suspend: viewSuspension(m.Suspend),
	}
	if m.AllDisks {
		v.MinNumberOfCopies = "all"
	}
	if b := m.Backup; b != nil {
		v.Backup = &backupView{redactText(b.Target), b.Credentials, b.Compression, b.ConcurrentLimit}
	}
	return v
}

func viewSource(s schema.Source) (v sourceView) {
	switch s.Kind() {
	case schema.KindDownload:
		d := s.Download
		mirrors := []string{}
		for _, m := range d.Mirrors {
			mirrors = append(mirrors, redactText(m))
		}
		v.Download = &downloadView{
			URL: redactText(d.URL), Mirrors: mirrors, Credentials: d.Credentials, ChecksumURL: redactText(d.ChecksumURL),
			PackedChecksum: d.PackedChecksum.String(), Unpack: cmp.Or(d.Unpack, schema.UnpackNone), MaxSize: d.MaxSize,
		}
	case schema.KindUpload:
		v.Upload = &struct{}{}
	case schema.KindExportFromVolume:
		e := s.ExportFromVolume
		v.ExportFromVolume = &exportView{e.VolumeName, e.SnapshotName, e.Path, e.ExportType, e.Compress}
	case schema.KindRestore:
		v.Restore = &restoreView{redactText(s.Restore.BackupURL), s.Restore.ConcurrentLimit, s.Restore.Credentials}
	case schema.KindClone:
		v.Clone = &cloneView{s.Clone.BackingImage, s.Clone.Encryption, s.Clone.Secret}
	}
	return v
}

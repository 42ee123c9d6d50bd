package report

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/redact"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// validatedView is the document of validate -o json. It is a stable interface.
type validatedView struct {
	Valid          bool                `json:"valid"` // no errors; there may be warnings
	Configurations []configurationView `json:"configurations"`
}

type configurationView struct {
	Path     string        `json:"path"`
	Digest   string        `json:"digest"` // "" if there are errors
	Revision string        `json:"revision,omitempty"`
	Errors   []problemView `json:"errors"`
	Warnings []problemView `json:"warnings"`
	// Manifests are the Kubernetes documents that were converted, and Skipped the others.
	Manifests []manifestView `json:"manifests"`
	Skipped   []skippedView  `json:"skipped"`
	// Config is the configuration with all defaults.
	Config configView `json:"config"`
	// Origins are the positions of the declarations, by section (settings, nodes, images) and
	// name.
	Origins map[string]map[string]originView `json:"origins"`
}

type originView struct {
	placeView
	// Kind is the kind of the manifest, "" for the native form.
	Kind string `json:"kind,omitempty"`
	// Values are the positions of fields by their native paths. Other fields have defaults.
	Values map[string]valueOriginView `json:"values"`
}

type valueOriginView struct {
	placeView
	// From is the path in the manifest.
	From string `json:"from,omitempty"`
}

type placeView struct {
	File   string `json:"file"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
}

type problemView struct {
	placeView
	Path    string    `json:"path,omitempty"`
	Message string    `json:"message"`
	Also    placeView `json:"also,omitzero"` // the second position of a conflict
	Hint    string    `json:"hint,omitempty"`
}

type manifestView struct {
	placeView
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
}

type skippedView struct {
	manifestView
	Why   string `json:"why"`
	Image string `json:"mayDeclare,omitempty"` // the image that the document may declare
}

// WriteValidationsJSON writes the results as one JSON document.
func WriteValidationsJSON(w io.Writer, all []Validation) error {
	return WriteJSON(w, newValidatedView(all))
}

func newValidatedView(all []Validation) validatedView {
	v := validatedView{Valid: true, Configurations: []configurationView{}}
	for _, one := range all {
		v.Valid = v.Valid && len(one.Errors) == 0
		c := configurationView{
			Path: one.Path, Digest: one.Digest, Revision: one.Revision, Config: viewConfig(one.Config),
			Errors: viewProblems(one.Path, one.Errors), Warnings: viewProblems(one.Path, one.Warnings),
			Manifests: []manifestView{}, Skipped: []skippedView{}, Origins: viewOrigins(one.Path, one.Origins()),
		}
		for _, m := range one.Manifests {
			c.Manifests = append(c.Manifests, viewManifest(one.Path, m))
		}
		for _, s := range one.Skipped {
			c.Skipped = append(c.Skipped, skippedView{viewManifest(one.Path, s.Document), s.Why, s.Image})
		}
		v.Configurations = append(v.Configurations, c)
	}
	return v
}

func viewPlace(dir string, p document.Position) placeView {
	return placeView{filepath.Join(dir, p.File), p.Line, p.Column}
}

func viewManifest(dir string, d schema.Document) manifestView {
	return manifestView{viewPlace(dir, d.Position), d.APIVersion, d.Kind, d.Name}
}

func viewOrigins(dir string, origins []schema.Origin) map[string]map[string]originView {
	views := map[string]map[string]originView{"settings": {}, "nodes": {}, "images": {}}
	for _, o := range origins {
		values := map[string]valueOriginView{}
		for _, v := range o.Values {
			values[v.Path] = valueOriginView{viewPlace(dir, v.Position), v.From}
		}
		views[o.Section][o.Name] = originView{viewPlace(dir, o.Position), o.Kind, values}
	}
	return views
}

func viewProblems(dir string, problems []document.Problem) []problemView {
	views := []problemView{}
	for _, p := range problems {
		view := problemView{placeView: viewPlace(dir, p.Position), Path: p.Path.String(), Message: p.Message, Hint: p.Hint}
		if p.Also != (document.Position{}) {
			view.Also = viewPlace(dir, p.Also)
		}
		views = append(views, view)
	}
	return views
}

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
		Address: redact.Text(n.Address), Tags: words(n.Tags),
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
		v.Backup = &backupView{redact.Text(b.Target), b.Credentials, b.Compression, b.ConcurrentLimit}
	}
	return v
}

func viewSource(s schema.Source) (v sourceView) {
	switch s.Kind() {
	case schema.KindDownload:
		d := s.Download
		mirrors := []string{}
		for _, m := range d.Mirrors {
			mirrors = append(mirrors, redact.Text(m))
		}
		v.Download = &downloadView{
			URL: redact.Text(d.URL), Mirrors: mirrors, Credentials: d.Credentials, ChecksumURL: redact.Text(d.ChecksumURL),
			PackedChecksum: d.PackedChecksum.String(), Unpack: cmp.Or(d.Unpack, schema.UnpackNone), MaxSize: d.MaxSize,
		}
	case schema.KindUpload:
		v.Upload = &struct{}{}
	case schema.KindExportFromVolume:
		e := s.ExportFromVolume
		v.ExportFromVolume = &exportView{e.VolumeName, e.SnapshotName, e.Path, e.ExportType, e.Compress}
	case schema.KindRestore:
		v.Restore = &restoreView{redact.Text(s.Restore.BackupURL), s.Restore.ConcurrentLimit, s.Restore.Credentials}
	case schema.KindClone:
		v.Clone = &cloneView{s.Clone.BackingImage, s.Clone.Encryption, s.Clone.Secret}
	}
	return v
}

// Validation is the result of validate for one configuration.
type Validation struct {
	Path string // of the folder with its files
	schema.Result
	ChangedSettings int // number of settings without their default
}

// summary returns one line with the numbers of declarations and problems.
func (v Validation) summary() string {
	text := fmt.Sprintf("%s: %s, %s, %s", v.Path, Count(len(v.Config.Images), "image"),
		Count(len(v.Config.Nodes), "node"), Count(v.ChangedSettings, "setting"))
	if n := len(v.Manifests); n > 0 {
		text += fmt.Sprintf("; %s read", Count(n, "manifest"))
	}
	if n := len(v.Skipped); n > 0 {
		text += fmt.Sprintf("; %s skipped", Count(n, "document"))
	}
	if n := len(v.Errors); n > 0 {
		text += "; " + Count(n, "error")
	}
	if n := len(v.Warnings); n > 0 {
		text += "; " + Count(n, "warning")
	}
	if len(v.Errors)+len(v.Warnings) == 0 {
		text += "; valid"
	}
	return text
}

// WriteValidations writes the problems of configurations, the skipped documents, and a summary
// for each.
func WriteValidations(w io.Writer, all []Validation) error {
	for _, v := range all {
		WriteProblems(w, v.Path, v.Result)
	}
	for _, v := range all {
		for _, s := range v.Skipped {
			s.File = filepath.Join(v.Path, s.File)
			fmt.Fprintf(w, "%s: skipped: %s %s %q %s\n", s.Position, s.APIVersion, s.Kind, s.Name, s.Why)
		}
	}
	for _, v := range all {
		if _, err := fmt.Fprintln(w, v.summary()); err != nil {
			return err
		}
	}
	return nil
}

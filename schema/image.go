package schema

import (
	"cmp"
	"encoding/json"
	"path"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Image is a declared backing image.
type Image struct {
	// ID names the folder of a copy on a disk. Its uuid is the declared one. If none is
	// declared, the function UUID computes it.
	ID           ident.ID     `json:"-"` // MarshalJSON encodes the uuid
	UUIDDeclared bool         `json:"-"`
	Source       Source       `json:"source"`
	Checksum     ident.Digest `json:"checksum,omitzero"` // zero: none is declared
	Format       model.Format `json:"format,omitempty"`  // "": none is declared
	// Copies is at least 1 and already has the default of the settings. AllDisks means
	// one copy on every disk that matches; Copies is 1 then.
	Copies         int             `json:"-"` // MarshalJSON encodes both as minNumberOfCopies
	AllDisks       bool            `json:"-"`
	NodeSelector   []string        `json:"nodeSelector"`   // sorted, without duplicates
	DiskSelector   []string        `json:"diskSelector"`   // sorted, without duplicates
	Disks          []ident.DiskRef `json:"-"`              // MarshalJSON encodes them
	BandwidthLimit int64           `json:"bandwidthLimit"` // bytes per second; 0: no limit
	// KeepGenerations is how many older ready generations each disk keeps. 0 is not encoded, so that it
	// leads to the config digest of releases without the field.
	KeepGenerations int `json:"keepGenerations,omitempty"`
	// FollowReplicas is true if each disk with a replica that needs the image is a desired disk. It already has
	// the default of the settings. MarshalJSON encodes only false, for the same reason as in KeepGenerations.
	FollowReplicas bool        `json:"-"`
	Backup         *Backup     `json:"backup,omitempty"`  // nil: none
	Suspend        *Suspension `json:"suspend,omitempty"` // nil: none
	// Title is a name for people; "": none. Like Track, it decides nothing. Its text is not trusted.
	Title string `json:"-"`
	// Track is where the vendor publishes versions; nil: nowhere. It decides nothing that a manager does, so it is
	// neither encoded nor part of the config digest.
	Track *Track `json:"-"`
	// Verify says who must have signed the image; nil: nobody. Where it is set, Source.Download is set, too.
	Verify *Verify `json:"verify,omitempty"`
	// ChecksumIgnored is true if a checksum is declared for a clone that this program
	// encrypts. Each encryption produces different bytes, so a checksum cannot match.
	// Then Checksum is zero, as in Longhorn.
	ChecksumIgnored bool `json:"-"`
	// Declaration identifies the document that declares the image.
	Declaration model.Declaration `json:"-"`
	// Pos is the position of the definition.
	Pos document.Position `json:"-"`
}

// MarshalJSON encodes the image with the fields of a configuration file.
func (m Image) MarshalJSON() ([]byte, error) {
	type plain Image
	v := struct {
		UUID string `json:"uuid"`
		plain
		MinNumberOfCopies any             `json:"minNumberOfCopies"`
		Disks             []ident.DiskRef `json:"disks"`
		FollowReplicas    *bool           `json:"followReplicas,omitempty"`
	}{m.ID.UUID, plain(m), m.Copies, m.Disks, ifFalse(m.FollowReplicas)}
	if m.AllDisks {
		v.MinNumberOfCopies = "all"
	}
	return json.Marshal(v)
}

// ifFalse returns nil for true, so that the default of a field is not encoded.
func ifFalse(v bool) *bool {
	if v {
		return nil
	}
	return &v
}

// SourceKind is a kind of source, spelled like its field in the configuration.
type SourceKind string

// The kinds of source.
const (
	KindDownload         SourceKind = "download"
	KindUpload           SourceKind = "upload"
	KindExportFromVolume SourceKind = "exportFromVolume"
	KindRestore          SourceKind = "restore"
	KindClone            SourceKind = "clone"
)

// Source declares how to get the bytes of an image. Exactly one field is set.
type Source struct {
	Download         *Download         `json:"download,omitempty"`
	Upload           *Upload           `json:"upload,omitempty"`
	ExportFromVolume *ExportFromVolume `json:"exportFromVolume,omitempty"`
	Restore          *Restore          `json:"restore,omitempty"`
	Clone            *Clone            `json:"clone,omitempty"`
}

// Kind returns which field is set. It panics if no field is set.
func (s Source) Kind() SourceKind {
	kind, _ := s.describe()
	return kind
}

// From returns where the bytes come from: an address, which may have secrets, a path, or the name of a volume or an image. It is
// empty for an upload.
func (s Source) From() string {
	_, from := s.describe()
	return from
}

func (s Source) describe() (kind SourceKind, from string) {
	switch {
	case s.Download != nil:
		return KindDownload, s.Download.URL
	case s.Upload != nil:
		return KindUpload, ""
	case s.ExportFromVolume != nil:
		return KindExportFromVolume, cmp.Or(s.ExportFromVolume.VolumeName, s.ExportFromVolume.Path)
	case s.Restore != nil:
		return KindRestore, s.Restore.BackupURL
	case s.Clone != nil:
		return KindClone, s.Clone.BackingImage
	}
	panic("schema: source without a kind")
}

// Unpack is how the bytes at an address are packed.
type Unpack string

// The formats that can be unpacked while the bytes are received.
const (
	UnpackNone  Unpack = "none"
	UnpackGzip  Unpack = "gz"
	UnpackXZ    Unpack = "xz"
	UnpackZstd  Unpack = "zst"
	UnpackBzip2 Unpack = "bz2"
)

// PackingOf returns how the file at an address is packed, by its extension.
func PackingOf(address string) Unpack {
	switch p := Unpack(strings.TrimPrefix(strings.ToLower(path.Ext(baseOf(address))), ".")); p {
	case UnpackGzip, UnpackXZ, UnpackZstd, UnpackBzip2:
		return p
	}
	return UnpackNone
}

// Download fetches the image from an address.
type Download struct {
	URL            string       `json:"url"`
	Mirrors        []string     `json:"mirrors"`               // in the order in which they are tried
	Index          string       `json:"index,omitempty"`       // address of an index of the unpacked file; "": none. Only with Image.Checksum
	Store          string       `json:"store,omitempty"`       // address of a chunk store; "": none. Only with Index
	Credentials    string       `json:"credentials,omitempty"` // a folder below --secrets-dir; "": none
	ChecksumURL    string       `json:"checksumURL,omitempty"` // address of a list of checksums; "": none
	PackedChecksum ident.Digest `json:"packedChecksum,omitzero"`
	Unpack         Unpack       `json:"unpack"`  // "auto" is resolved
	MaxSize        int64        `json:"maxSize"` // bytes; 0: only the disk limits it
}

// Upload waits until a person uploads the file.
type Upload struct{}

// ExportFromVolume makes the image from a volume: from a replica of Longhorn, or
// from a file or block device. Exactly one of VolumeName and Path is set.
type ExportFromVolume struct {
	VolumeName   string       `json:"volumeName,omitempty"`
	SnapshotName string       `json:"snapshotName,omitempty"` // "": the current content
	Path         string       `json:"path,omitempty"`
	ExportType   model.Format `json:"exportType"`
	Compress     bool         `json:"compress,omitempty"` // only with ExportType qcow2
}

// Restore makes the image from a backup.
type Restore struct {
	BackupURL       string `json:"backupURL"`
	ConcurrentLimit int    `json:"concurrentLimit"` // at least 1
	Credentials     string `json:"credentials,omitempty"`
}

// Compression is how the blocks of a backup are compressed, as in Longhorn: lz4, gzip or none.
type Compression string

// Backup is a backup store that keeps a backup of the image, in Longhorn's format.
type Backup struct {
	Target          string      `json:"target"`                // the address of the store
	Credentials     string      `json:"credentials,omitempty"` // a folder below --secrets-dir; "": none
	Compression     Compression `json:"compression"`
	ConcurrentLimit int         `json:"concurrentLimit"` // at least 1
}

// Encryption is what a clone does with the bytes.
type Encryption string

// What a clone may do with the bytes of its source.
const (
	EncryptionIgnore Encryption = "ignore"
	Encrypt          Encryption = "encrypt"
	Decrypt          Encryption = "decrypt"
)

// Clone makes the image from another image of the configuration.
type Clone struct {
	BackingImage string     `json:"backingImage"`
	Encryption   Encryption `json:"encryption"`
	Secret       string     `json:"secret,omitempty"` // a folder below --secrets-dir; set unless Encryption is ignore
}

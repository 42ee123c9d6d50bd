package schema

import (
	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Image is a declared backing image.
type Image struct {
	// ID is the folder on disk: the declared uuid, or the one that follows from
	// what identifies the bytes (see UUID).
	ID           disk.ID
	UUIDDeclared bool
	Source       Source
	Checksum     disk.Digest // zero: none declared
	Format       disk.Format // "": not declared
	// Copies is at least 1 and has the settings' default applied. AllDisks means
	// one on every disk that matches; Copies is 1 then.
	Copies         int
	AllDisks       bool
	NodeSelector   []string // sorted, without duplicates
	DiskSelector   []string // sorted, without duplicates
	Disks          []DiskRef
	BandwidthLimit int64       // bytes a second; 0: no limit
	Backup         *Backup     `json:",omitempty"` // nil: none is kept
	Suspend        *Suspension `json:",omitempty"` // nil: none
	// ChecksumIgnored says that a checksum is declared of bytes that are different each
	// time, as with Longhorn: Checksum is zero then.
	ChecksumIgnored bool `json:"-"`
	// Pos is where the image is defined.
	Pos document.Position `json:"-"`
}

// Kind is a kind of source, spelled as its key in the configuration.
type Kind string

// The kinds of source.
const (
	KindDownload         Kind = "download"
	KindUpload           Kind = "upload"
	KindExportFromVolume Kind = "exportFromVolume"
	KindRestore          Kind = "restore"
	KindClone            Kind = "clone"
)

// Source is where the bytes of an image come from. Exactly one field is set.
type Source struct {
	Download         *Download         `json:",omitempty"`
	Upload           *Upload           `json:",omitempty"`
	ExportFromVolume *ExportFromVolume `json:",omitempty"`
	Restore          *Restore          `json:",omitempty"`
	Clone            *Clone            `json:",omitempty"`
}

// Kind returns which field is set.
func (s Source) Kind() Kind {
	switch {
	case s.Download != nil:
		return KindDownload
	case s.Upload != nil:
		return KindUpload
	case s.ExportFromVolume != nil:
		return KindExportFromVolume
	case s.Restore != nil:
		return KindRestore
	case s.Clone != nil:
		return KindClone
	}
	panic("schema: source without a kind")
}

// Unpack is how the bytes at an address are packed.
type Unpack string

// The packings that can be undone while the bytes stream.
const (
	UnpackNone  Unpack = "none"
	UnpackGzip  Unpack = "gz"
	UnpackXZ    Unpack = "xz"
	UnpackZstd  Unpack = "zst"
	UnpackBzip2 Unpack = "bz2"
)

// Download fetches from an address.
type Download struct {
	URL            string
	Mirrors        []string // in the order in which they are tried
	Credentials    string   // a folder below --secrets-dir, or ""
	ChecksumURL    string   // of a SUMS file, or ""
	PackedChecksum disk.Digest
	Unpack         Unpack // "auto" is resolved
	MaxSize        int64  // bytes; 0: the disk alone bounds it
}

// Upload waits for a person to send the file.
type Upload struct{}

// ExportFromVolume makes the image from a volume: from a replica of Longhorn's, or
// from a file or block device. Exactly one of VolumeName and Path is set.
type ExportFromVolume struct {
	VolumeName   string
	SnapshotName string // "": the volume as it is
	Path         string
	ExportType   disk.Format
	Compress     bool // only with ExportType qcow2
}

// Restore makes the image from a backup.
type Restore struct {
	BackupURL       string
	ConcurrentLimit int // at least 1
	Credentials     string
}

// Compression is how the blocks of a backup are compressed.
type Compression string

// The compressions that Longhorn's backup stores have.
const (
	CompressionLZ4  Compression = "lz4"
	CompressionGzip Compression = "gzip"
	CompressionNone Compression = "none"
)

// Backup is a backup store that a ready image is kept in, in Longhorn's format.
type Backup struct {
	Target          string // the address of the store, without an image
	Credentials     string // a folder below --secrets-dir, or ""
	Compression     Compression
	ConcurrentLimit int // at least 1
}

// Encryption is what a clone does with the bytes.
type Encryption string

// What a clone may do with the bytes of its source.
const (
	EncryptionIgnore Encryption = "ignore"
	Encrypt          Encryption = "encrypt"
	Decrypt          Encryption = "decrypt"
)

// Clone makes the image from another one of the same configuration.
type Clone struct {
	BackingImage string
	Encryption   Encryption
	Secret       string // a folder below --secrets-dir; set unless Encryption is ignore
}

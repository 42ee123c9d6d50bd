package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// UUID derives the 8 hex digits of a generation of an image without a declared uuid.
// It is a pure function of what identifies the bytes, so all nodes compute the same:
//
//	uuid = first 8 hex digits of SHA-256(field field field …)
//	field = length in bytes, in decimal, ":" and the bytes themselves
//
// The fields are UTF-8, in this order: "backing-image-uuid-1", the name of the
// image, and, where a checksum is declared,
//
//	"checksum", and "sha512:" or "sha256:" with lower-case hex digits;
//
// otherwise the kind of source and its parameters that select the bytes. A parameter that
// is not declared is a field of length 0:
//
//	"download", URL, packing (none, gz, xz, zst or bz2; auto is resolved),
//	            packed checksum (written as above)
//	"upload"
//	"exportFromVolume", volume, snapshot, export type (raw or qcow2); then, if it
//	            has a path or is compressed: path, "compress" or nothing
//	"restore", backup URL
//	"clone", name of the source image, encryption (ignore, encrypt or decrypt)
//
// The formula is frozen: another formula would declare a new generation of every
// image on every disk. schema/load/testdata/uuid.txt has test vectors.
func UUID(name string, checksum ident.Digest, source Source) string {
	h := sha256.New()
	for _, f := range append([]string{"backing-image-uuid-1", name}, identifying(checksum, source)...) {
		h.Write([]byte(strconv.Itoa(len(f)) + ":" + f))
	}
	return hex.EncodeToString(h.Sum(nil)[:4])
}

func identifying(checksum ident.Digest, s Source) []string {
	if !checksum.IsZero() {
		return []string{"checksum", prefixed(checksum)}
	}
	fields := []string{string(s.Kind())}
	switch s.Kind() {
	case KindDownload:
		d := s.Download
		fields = append(fields, d.URL, string(d.Unpack), prefixed(d.PackedChecksum))
	case KindExportFromVolume:
		e := s.ExportFromVolume
		fields = append(fields, e.VolumeName, e.SnapshotName, string(e.ExportType))
		if e.Path != "" || e.Compress {
			fields = append(fields, e.Path, map[bool]string{true: "compress"}[e.Compress])
		}
	case KindRestore:
		fields = append(fields, s.Restore.BackupURL)
	case KindClone:
		fields = append(fields, s.Clone.BackingImage, string(s.Clone.Encryption))
	}
	return fields
}

// prefixed returns a digest after its algorithm, which Digest.String omits for SHA-512. It returns "" for no digest.
func prefixed(d ident.Digest) string {
	if d.IsZero() {
		return ""
	}
	if d.Algorithm() == ident.SHA512 {
		return "sha512:" + d.String()
	}
	return d.String()
}

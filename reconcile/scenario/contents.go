package scenario

import (
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/simulation"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// contents has the contents of all files. Each source delivers the right bytes: the content of a
// generation has the declared digest.
type contents struct{ *simulation.Library }

// of returns the content of a generation with a size. Without a declared digest, the digests depend
// on the generation only.
func (l contents) of(c schema.Config, id ident.ID, size int64) string {
	p := simulation.Properties{Format: model.Raw, Size: size, RealSize: size, VirtualSize: size}
	p.SHA512, p.SHA256, p.ManifestDigest = digestsOf(c, id)
	return l.Add(p)
}

// damaged returns the content of a damaged file.
func (l contents) damaged(content string) string {
	p := l.Properties(content)
	p.SHA512, p.SHA256, p.ManifestDigest = ident.Digest{}, ident.Digest{}, ident.Digest{}
	return l.Add(p)
}

// computeSHA256 computes the SHA-256 of the file of a copy, if a SHA-256 is declared and was not
// computed before. A file that is not damaged has the declared SHA-256.
func (l contents) computeSHA256(c *simulation.Copy, declared ident.Digest) {
	p := l.Properties(c.File)
	if declared.Algorithm() != ident.SHA256 || !p.SHA256.IsZero() || c.Recorded != "" && c.Recorded != c.File {
		return
	}
	p.SHA256 = declared
	c.File = l.Add(p)
	if c.Recorded != "" {
		c.Recorded = c.File
	}
}

// restore returns a copy with the state of a saved copy. If the saved copy has no digest, the record
// has no digest, either.
func (l contents) restore(c schema.Config, saved model.Copy) *simulation.Copy {
	restored := &simulation.Copy{
		Partial: saved.PartBytes, PartialTotal: saved.PartTotal, PartialSource: saved.PartKind,
		Owned: saved.Owned, NoCfg: !saved.HasCfg, VerifiedAt: saved.VerifiedAt, ReadBackAt: saved.ReadBackAt, DamagedAt: saved.DamagedAt, UsedBy: saved.UsedBy,
		Usage: saved.Usage,
	}
	if saved.UsedBy != "" {
		restored.Users = 1
	}
	if saved.State == model.Pending {
		return restored
	}
	p := simulation.Properties{
		Format: saved.Format, Size: saved.Size, RealSize: saved.RealSize, VirtualSize: saved.VirtualSize,
		SHA512: saved.SHA512, SHA256: saved.SHA256, ManifestDigest: saved.ManifestDigest,
	}
	if p.SHA512.IsZero() {
		p.SHA512, p.SHA256, p.ManifestDigest = digestsOf(c, saved.ID)
		restored.File = l.Add(p)
	} else {
		restored.Recorded = l.Add(p)
		restored.File = restored.Recorded
	}
	switch saved.State {
	case model.Failed:
		restored.File, restored.Failure = l.damaged(restored.File), saved.Message
	case model.Unknown:
		restored.Changed = true
	}
	return restored
}

// digestsOf returns the digests of a generation: the declared digest, and others that it derives from
// name and uuid. The digest sha256 is zero unless it is declared.
func digestsOf(c schema.Config, id ident.ID) (sha512, sha256, manifest ident.Digest) {
	h, m := ident.SHA512.New(), ident.SHA256.New()
	h.Write([]byte(id.String()))
	m.Write([]byte(id.String()))
	sha512, manifest = ident.SHA512.Digest(h), ident.SHA256.Digest(m)
	if image, ok := c.Images[id.Name]; ok && image.ID == id && !image.Checksum.IsZero() {
		if image.Checksum.Algorithm() == ident.SHA512 {
			return image.Checksum, sha256, manifest
		}
		return sha512, image.Checksum, manifest
	}
	return sha512, sha256, manifest
}

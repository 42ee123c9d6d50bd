package simulation

import (
	"fmt"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// Properties are what is known of the bytes of a file.
type Properties struct {
	Format model.Format
	// Size is the size of the file, RealSize the space that it takes on a disk, and
	// VirtualSize the size that a guest sees.
	Size, RealSize, VirtualSize int64
	// SHA512 is the digest of the file. SHA256 may be zero: then nothing computes it.
	SHA512, SHA256 ident.Digest
	// ManifestDigest is the digest of the chunk manifest, see Manifests.
	ManifestDigest ident.Digest
}

// Manifests returns the digests of the chunk manifests that the bytes may have: ManifestDigest, and that
// of a manifest with another hash algorithm.
func (p Properties) Manifests() []ident.Digest {
	if p.ManifestDigest.IsZero() {
		return nil
	}
	return []ident.Digest{p.ManifestDigest, digestOf(ident.SHA256, "other hashes of "+p.ManifestDigest.String())}
}

// HasManifest reports whether the bytes may have a chunk manifest with the digest.
func (p Properties) HasManifest(d ident.Digest) bool { return slices.Contains(p.Manifests(), d) }

// defaultSize is the size of a content that was named without properties.
const defaultSize = 1 << 30

// Library has the properties of contents. A content is a name for the bytes of a file: equal
// names are equal bytes. The empty name means that there is no file.
type Library struct {
	contents   []string // all, in the order in which they became known
	properties map[string]Properties
	names      map[Properties]string
}

// NewLibrary returns an empty Library.
func NewLibrary() *Library {
	return &Library{properties: map[string]Properties{}, names: map[Properties]string{}}
}

// Add returns the content with these properties. Equal properties are the same content.
func (l *Library) Add(p Properties) (content string) {
	name, known := l.names[p]
	if !known {
		name = fmt.Sprintf("content %d", len(l.names)+1)
		l.names[p] = name
		l.learn(name, p)
	}
	return name
}

func (l *Library) learn(content string, p Properties) {
	l.contents, l.properties[content] = append(l.contents, content), p
}

// Properties returns the properties of a content. A content that was not added has 1 GiB, and the
// digests of its name.
func (l *Library) Properties(content string) Properties {
	p, known := l.properties[content]
	if !known {
		p = Properties{
			Format: model.Raw, Size: defaultSize, RealSize: defaultSize, VirtualSize: defaultSize,
			SHA512: digestOf(ident.SHA512, content), ManifestDigest: digestOf(ident.SHA256, content),
		}
		l.learn(content, p)
	}
	return p
}

// WithSHA512 returns the content with a digest. known is false if the digest is zero, or if the
// library does not know a content with it yet.
func (l *Library) WithSHA512(d ident.Digest) (content string, known bool) {
	i := slices.IndexFunc(l.contents, func(c string) bool { return l.properties[c].SHA512 == d })
	if d.IsZero() || i < 0 {
		return "", false
	}
	return l.contents[i], true
}

func digestOf(a ident.Algorithm, content string) ident.Digest {
	h := a.New()
	h.Write([]byte(content))
	return a.Digest(h)
}

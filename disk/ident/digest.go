package ident

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
	"strings"
)

// Algorithm is a hash function for checksums of images.
type Algorithm uint8

// The algorithms of declared checksums. Longhorn uses SHA512, and every ready copy has one. Vendors
// of images publish SHA256.
const (
	SHA512 Algorithm = iota + 1
	SHA256
)

// New returns a new hash of the algorithm.
func (a Algorithm) New() hash.Hash {
	switch a {
	case SHA512:
		return sha512.New()
	case SHA256:
		return sha256.New()
	}
	panic(fmt.Sprintf("ident: unknown algorithm %d", a))
}

// Digest returns the digest of the bytes written to h, a hash from a.New.
func (a Algorithm) Digest(h hash.Hash) Digest {
	d := Digest{algorithm: a}
	h.Sum(d.sum[:0])
	return d
}

// String returns the prefix of a checksum: "sha512" or "sha256".
func (a Algorithm) String() string {
	switch a {
	case SHA512:
		return "sha512"
	case SHA256:
		return "sha256"
	}
	return "no algorithm"
}

// Digest is the checksum of a whole file. Digests are comparable with ==; the zero Digest
// means "none".
type Digest struct {
	algorithm Algorithm
	sum       [sha512.Size]byte
}

// ParseDigest parses a checksum: the 128 hex digits of a SHA-512 as Longhorn writes them, or
// "sha512:" or "sha256:" followed by hex digits, in upper or lower case. Surrounding space is ignored.
func ParseDigest(s string) (Digest, error) {
	s = strings.TrimSpace(s)
	a, digits := SHA512, s
	if name, rest, ok := strings.Cut(s, ":"); ok {
		switch strings.ToLower(name) {
		case "sha512":
		case "sha256":
			a = SHA256
		default:
			return Digest{}, fmt.Errorf("checksum algorithm %q is not known: use sha512 or sha256", name)
		}
		digits = rest
	}
	size := a.New().Size()
	d := Digest{algorithm: a}
	if strings.Trim(digits, "0123456789abcdefABCDEF") != "" {
		return Digest{}, fmt.Errorf("checksum is not hexadecimal: a %s has %d digits of 0-9 and a-f", a, 2*size)
	}
	if len(digits) != 2*size {
		return Digest{}, checksumLength(a, len(digits), digits == s)
	}
	if _, err := hex.Decode(d.sum[:], []byte(digits)); err != nil {
		panic("ident: " + err.Error())
	}
	return d, nil
}

// checksumLength returns the error for a checksum of n digits. bare is true if the checksum has no
// prefix.
func checksumLength(a Algorithm, n int, bare bool) error {
	if bare && n == 2*sha256.Size {
		return fmt.Errorf("checksum has %d digits where a SHA-512 has 128: for a SHA-256 write \"sha256:…\"", n)
	}
	if other := map[int]string{32: "an MD5", 40: "a SHA-1"}[n]; bare && other != "" {
		return fmt.Errorf("checksum has %d digits, as %s has: use a SHA-512 (128), or a SHA-256 as \"sha256:…\"", n, other)
	}
	return fmt.Errorf("checksum has %d digits where a %s has %d", n, a, 2*a.New().Size())
}

// Algorithm returns the algorithm of the digest; 0 for the zero Digest.
func (d Digest) Algorithm() Algorithm { return d.algorithm }

// IsZero reports whether d is the zero Digest.
func (d Digest) IsZero() bool { return d == Digest{} }

// String returns the canonical form: hex digits without a prefix for SHA-512, as in
// backing.cfg; "sha256:" and hex digits for SHA-256; "" for the zero Digest.
func (d Digest) String() string {
	if d.IsZero() {
		return ""
	}
	digits := hex.EncodeToString(d.sum[:d.algorithm.New().Size()])
	if d.algorithm == SHA512 {
		return digits
	}
	return d.algorithm.String() + ":" + digits
}

// Short returns the algorithm and the first 12 digits, for messages; "none" for the zero Digest.
func (d Digest) Short() string {
	if d.IsZero() {
		return "none"
	}
	return d.algorithm.String() + ":" + hex.EncodeToString(d.sum[:6]) + "…"
}

// MarshalText returns the form of String.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses text like ParseDigest; an empty text is the zero Digest.
func (d *Digest) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*d = Digest{}
		return nil
	}
	parsed, err := ParseDigest(string(b))
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}

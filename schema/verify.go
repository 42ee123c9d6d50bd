package schema

import (
	"encoding/json"
	"net/url"
	"path"
	"strings"
)

// Verify declares who must have signed an image: the checksum list at Download.ChecksumURL, or the file at Download.URL.
type Verify struct {
	Scheme VerifyScheme
	Keys   string // name of a folder below --keys-dir
	// SignatureURL is the address of the signature. "" means that the list contains the signature, or that the scheme
	// derives its address from that of the list or the file.
	SignatureURL string
}

// VerifyScheme is a kind of signature, spelled like its field in the configuration.
type VerifyScheme string

// The kinds of signatures.
const (
	VerifyOpenPGP  VerifyScheme = "openpgp"
	VerifyMinisign VerifyScheme = "minisign"
	VerifySignify  VerifyScheme = "signify"
	VerifyCosign   VerifyScheme = "cosign"
)

// MarshalJSON encodes a Verify like a configuration file: in one field, which has the name of the scheme.
func (v Verify) MarshalJSON() ([]byte, error) {
	type keys struct {
		Keys         string `json:"keys"`
		SignatureURL string `json:"signatureURL,omitempty"`
	}
	return json.Marshal(map[VerifyScheme]keys{v.Scheme: {v.Keys, v.SignatureURL}})
}

// VerifyPolicy declares which images need a signature.
type VerifyPolicy struct {
	Required bool     `json:"required"`
	Exempt   []string `json:"exempt"` // patterns for names; sorted, without duplicates
}

// exempts reports whether an image needs no signature.
func (p VerifyPolicy) exempts(image string) bool {
	for _, pattern := range p.Exempt {
		// The schema allows no pattern that is malformed.
		if matches, _ := path.Match(pattern, image); matches {
			return true
		}
	}
	return false
}

// LacksVerify reports whether the settings require a signature that the image does not declare. A clone that is not
// exempt lacks a signature if its source image lacks one or is not declared.
func (c Config) LacksVerify(image string) bool {
	p := c.Settings.Verify
	if p == nil || !p.Required {
		return false
	}
	for range c.Images { // a chain of clones is not longer
		m, declared := c.Images[image]
		switch {
		case p.exempts(image):
			return false
		case !declared || m.Source.Clone == nil:
			return !declared || m.Verify == nil
		}
		image = m.Source.Clone.BackingImage
	}
	return true
}

// SignsFile reports whether the signature signs the (packed) file itself and not its checksum list. It does if there is
// no list, or if SignatureURL names the file with an additional extension.
func (v Verify) SignsFile(d Download) bool {
	if d.ChecksumURL == "" {
		return true
	}
	extends := func(addr string) bool {
		return strings.HasPrefix(baseOf(v.SignatureURL), baseOf(addr)+".")
	}
	return v.SignatureURL != "" && extends(d.URL) && !extends(d.ChecksumURL)
}

// baseOf returns the last element of the path of an address.
func baseOf(addr string) string {
	u, err := url.Parse(strings.TrimPrefix(addr, "s3::"))
	if err != nil {
		return ""
	}
	return path.Base(u.Path)
}

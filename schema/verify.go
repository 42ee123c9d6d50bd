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
	// SignatureURL is the address of the signature, or "": the list contains it, or it is beside the list or the file at
	// the address that the scheme defines.
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

// MarshalJSON encodes it like a configuration file: one field for the scheme.
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

// LacksVerify reports whether the settings require a signature that the image does not declare. A clone without an
// exemption needs a source that lacks none.
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

// SignsFile reports whether the signature is that of the (packed) file itself, and not that of its checksum list: there is
// no list, or the name in SignatureURL is that of the file and an extension.
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

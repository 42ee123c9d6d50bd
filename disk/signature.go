package disk

import (
	"io"
	"regexp"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// Signature is who signed the bytes of a copy. The zero value is no signature.
type Signature struct {
	Scheme  string    `json:"scheme"`            // the kind of signature, such as "openpgp"
	Signer  string    `json:"signer"`            // identifies the key
	Time    time.Time `json:"time,omitzero"`     // when it was signed, as the signer says; zero: not known
	Warning string    `json:"warning,omitempty"` // a word for what is odd about it, or ""
}

// String returns the signature for a message.
func (s Signature) String() string {
	text := s.Scheme + " " + s.Signer
	if !s.Time.IsZero() {
		text += " on " + s.Time.UTC().Format(time.DateOnly)
	}
	if s.Warning != "" {
		text += " (" + s.Warning + ")"
	}
	return text
}

var (
	signatureWord  = regexp.MustCompile(`^[a-z-]{1,40}$`)
	signaturePlain = regexp.MustCompile(`^[A-Za-z0-9:]{1,200}$`)
)

// valid returns the signature, or the zero value if a record cannot have it. Other programs may write records, and no
// output may contain what they like.
func (s Signature) valid() Signature {
	if !signatureWord.MatchString(s.Scheme) || !signaturePlain.MatchString(s.Signer) || s.Warning != "" && !signatureWord.MatchString(s.Warning) {
		return Signature{}
	}
	s.Time = ValidTime(s.Time)
	return s
}

// SignatureCheck judges the bytes of a partial file by a signature before they become a copy.
type SignatureCheck struct {
	// Digest is what the image must have besides the digest of Commit; zero: nothing.
	Digest ident.Digest
	// Begin is called when the bytes begin, and when they begin again. It returns a writer for all bytes of the image, in
	// order, also those that were in the partial file before. One goroutine writes to it. nil: the bytes are not needed.
	Begin func() io.Writer
	// End is called by Commit after the last byte. It returns the signature for the record. After an error, which Commit
	// wraps in a *SignatureError, there is no copy. nil: there is no signature.
	End func() (Signature, error)
}

func (c SignatureCheck) end() (Signature, error) {
	if c.End == nil {
		return Signature{}, nil
	}
	s, err := c.End()
	if err != nil {
		return Signature{}, &SignatureError{err}
	}
	return s.valid(), nil
}

// SignatureError is the error for bytes without a valid signature. Like a ChecksumError, it is final.
type SignatureError struct{ Err error }

func (e *SignatureError) Error() string { return "signature: " + e.Err.Error() }

func (e *SignatureError) Unwrap() error { return e.Err }

package disk

import (
	"io"
	"regexp"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

var (
	signatureWord  = regexp.MustCompile(`^[a-z-]{1,40}$`)
	signaturePlain = regexp.MustCompile(`^[A-Za-z0-9:]{1,200}$`)
)

// validSignature returns the signature, or the zero value if a record cannot have it. Other programs may write records, and no
// output may contain what they like.
func validSignature(s model.Signature) model.Signature {
	if !signatureWord.MatchString(s.Scheme) || !signaturePlain.MatchString(s.Signer) || s.Warning != "" && !signatureWord.MatchString(s.Warning) {
		return model.Signature{}
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
	End func() (model.Signature, error)
}

func (c SignatureCheck) end() (model.Signature, error) {
	if c.End == nil {
		return model.Signature{}, nil
	}
	s, err := c.End()
	if err != nil {
		return model.Signature{}, &SignatureError{err}
	}
	return validSignature(s), nil
}

// SignatureError is the error for bytes without a valid signature. Like a ChecksumError, it is final.
type SignatureError struct{ Err error }

func (e *SignatureError) Error() string { return "signature: " + e.Err.Error() }

func (e *SignatureError) Unwrap() error { return e.Err }

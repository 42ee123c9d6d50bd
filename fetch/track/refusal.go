package track

import (
	"errors"
	"fmt"
	"strings"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/signature"
)

// Reason is a stable word for the cause of a Refusal.
type Reason string

// The reasons of refusals.
const (
	// OlderThanPinned: everything that is published is older than the declared version.
	OlderThanPinned Reason = "older-than-pinned"
	// NothingMatches: nothing that is published is the tracked image.
	NothingMatches Reason = "nothing-matches"
	// NoChecksum: no published version has a checksum.
	NoChecksum Reason = "no-checksum"
	// PlaceholderChecksum: the published checksum consists of zeros.
	PlaceholderChecksum Reason = "placeholder-checksum"
	// PackedChecksumOnly: only the checksum of the packed file is published, not the checksum of the image.
	PackedChecksumOnly Reason = "packed-checksum-only"
	// ChangedInPlace: the declared version has another checksum now.
	ChangedInPlace Reason = "changed-in-place"
	// PinnedChecksumURL: the image needs a signed list, and no list at checksumURL vouches for the new version.
	PinnedChecksumURL Reason = "pinned-checksum-url"
	// PinnedSignatureURL: the file needs a signature, and signatureURL has no signature of the new file.
	PinnedSignatureURL Reason = "pinned-signature-url"
	// ForeignAddress: an address is outside of where the vendor publishes.
	ForeignAddress Reason = "foreign-address"
	// Ambiguous: two files or two checksums are equally right.
	Ambiguous Reason = "ambiguous"
	// Malformed: a document does not have the form that it must have.
	Malformed Reason = "malformed"
	// Unreadable: a document cannot be read.
	Unreadable Reason = "unreadable"
	// Unsigned: a list must be signed, and has no signature. For a signature that is not accepted, the reasons are those
	// of package signature.
	Unsigned Reason = Reason(signature.Unsigned)
)

// Refusal is the error that Resolve returns unless the context ends. After a Refusal, the declaration must stay as it is.
type Refusal struct {
	Reason Reason
	Err    error
}

func (e *Refusal) Error() string {
	text := fmt.Sprintf("%s: %v", e.Reason, e.Err)
	if len(text) > maxError { // a document may have long names
		text = strings.ToValidUTF8(text[:maxError], "") + "…"
	}
	return text
}

const maxError = 500

func (e *Refusal) Unwrap() error { return e.Err }

func refuse(reason Reason, format string, args ...any) error {
	return &Refusal{Reason: reason, Err: fmt.Errorf(format, args...)}
}

// unreadable classifies an error of Resolver.read.
func unreadable(err error) error {
	_, refused := errors.AsType[*Refusal](err)
	if _, ok := errors.AsType[*fetch.Error](err); refused || !ok {
		return err // perhaps the end of the context
	}
	return &Refusal{Reason: Unreadable, Err: err}
}

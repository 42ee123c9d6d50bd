package signature

import (
	"fmt"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/text"
)

// Scheme is a kind of signature.
type Scheme string

// The schemes.
const (
	OpenPGP  Scheme = "openpgp"
	Minisign Scheme = "minisign"
	Signify  Scheme = "signify"
	Cosign   Scheme = "cosign"
)

// Result describes a valid signature.
type Result struct {
	Scheme Scheme
	// Signer identifies the key: the fingerprint of the primary key in upper-case hex (openpgp), the key id as the
	// program prints it (minisign) or in hex (signify), or "sha256:" and the digest of the DER key (cosign).
	Signer  string
	Time    time.Time // when it was signed, as the signer says; zero: the scheme has no time
	Warning Reason    // KeyExpiredSince, or empty
}

// Reason says in one word why a signature is not accepted. The words are stable: users see them.
type Reason string

// The reasons.
const (
	NoKeys          Reason = "no-keys"                   // the folder contains no key of the scheme
	BadKeyFile      Reason = "bad-key-file"              // a file of the folder is not a key
	UnknownKey      Reason = "unknown-key"               // no key of the folder that may sign made the signature
	BadSignature    Reason = "bad-signature"             // the bytes are not those that were signed
	Malformed       Reason = "malformed"                 // not a signature of the scheme
	WeakHash        Reason = "weak-hash"                 // a hash weaker than SHA-256
	WeakKey         Reason = "weak-key"                  // RSA below 2048 bits, DSA or ElGamal
	KeyRevoked      Reason = "key-revoked"               // the key or its primary key is revoked
	KeyExpired      Reason = "key-expired"               // the key had expired when it signed
	KeyNotYetValid  Reason = "key-not-yet-valid"         // an SSH key signed before its first day
	SigExpired      Reason = "signature-expired"         // the signature itself has expired
	FromFuture      Reason = "signature-from-the-future" // it is dated more than 5 minutes after now
	OlderThanKey    Reason = "older-than-key"            // it is dated before its key was made
	OlderThanCommit Reason = "older-than-commit"         // it is dated more than 5 minutes before the commit that it signs
	OtherFile       Reason = "other-file"                // it is a signature of a file with another name
	Unsigned        Reason = "unsigned"                  // there is no signature
	Namespace       Reason = "namespace"                 // an SSH signature for another purpose

	// KeyExpiredSince is a warning, not an error: the key expired after it signed.
	KeyExpiredSince Reason = "key-expired-since"
)

// MaxSkew is how far the clock of a signer may be ahead of the clock of this node.
const MaxSkew = 5 * time.Minute

// Error says why a signature, or a folder with keys, is not accepted.
type Error struct {
	Reason Reason
	Text   string // one printable line
}

func (e *Error) Error() string { return string(e.Reason) + ": " + e.Text }

// Errorf returns an *Error. It makes the text printable, because parts of it may come from a signature.
func Errorf(reason Reason, format string, args ...any) *Error {
	return &Error{Reason: reason, Text: text.Line(fmt.Sprintf(format, args...))}
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }

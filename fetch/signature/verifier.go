package signature

import (
	"io"
	"time"
)

// Verifier judges one detached signature. It receives the bytes of the signed file as an io.Writer; the bytes are hashed,
// not kept. It is for one goroutine.
type Verifier struct {
	io.Writer
	verify func() (Result, error)
}

// Verify returns a Result if the signature is valid for exactly the bytes that were written, and otherwise an *Error. Call
// it once.
func (v *Verifier) Verify() (Result, error) { return v.verify() }

// NewVerifier parses a detached signature of an image file with the given name (without folders). It returns an error at
// once for a signature that cannot be valid for any bytes, so that a large file need not be read: a malformed or weak
// signature, or a signature by an unknown key. A signature that needs the whole file in memory (signify, minisign with -l,
// cosign with an Ed25519 key), or for which line ends do not count (OpenPGP text mode), counts as malformed.
func (k *Keys) NewVerifier(signature []byte, name string, now time.Time) (*Verifier, error) {
	return k.newVerifier(signature, signed{name: name}, now)
}

// VerifyList judges a detached signature of the list with the given name (without folders). Errors are an *Error.
func (k *Keys) VerifyList(list, signature []byte, name string, now time.Time) (Result, error) {
	if len(list) > MaxList {
		return Result{}, Errorf(Malformed, "the list is larger than %d bytes", MaxList)
	}
	v, err := k.newVerifier(signature, signed{name: name, isList: true, list: list}, now)
	if err != nil {
		return Result{}, err
	}
	v.Write(list) // a hash returns no error
	return v.Verify()
}

// VerifyEmbedded judges a list that contains its signature: a clearsigned OpenPGP message, or the output of signify -S -e.
// It returns the signed text. Only this text may be used: other bytes of the file are not signed. Errors are an *Error.
func (k *Keys) VerifyEmbedded(file []byte, now time.Time) (text []byte, r Result, err error) {
	if len(file) > MaxList {
		return nil, Result{}, Errorf(Malformed, "the list is larger than %d bytes", MaxList)
	}
	switch k.scheme {
	case OpenPGP:
		return k.verifyClearsigned(file, now)
	case Signify:
		return k.verifySignifyEmbedded(file)
	}
	return nil, Result{}, Errorf(Malformed, "a list cannot contain its signature with %s: declare signatureURL", k.scheme)
}

// signed describes the signed file.
type signed struct {
	name   string
	isList bool
	list   []byte // the bytes, if it is a list
}

func (k *Keys) newVerifier(signature []byte, file signed, now time.Time) (*Verifier, error) {
	if len(signature) > MaxSize {
		return nil, Errorf(Malformed, "the signature is larger than %d bytes", MaxSize)
	}
	switch k.scheme {
	case OpenPGP:
		return k.verifyOpenPGP(signature, file, now)
	case Minisign:
		return k.verifyMinisign(signature, file)
	case Signify:
		return k.verifySignify(signature, file)
	case Cosign:
		return k.verifyCosign(signature, file)
	}
	panic("signature: unknown scheme " + string(k.scheme))
}

// inMemory returns a Verifier for a scheme that signs the bytes of a list, not their hash.
func inMemory(verify func() (Result, error)) *Verifier { return &Verifier{io.Discard, verify} }

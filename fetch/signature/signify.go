package signature

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
)

type signifyKey struct {
	id     [8]byte // opaque
	public ed25519.PublicKey
}

func (k *Keys) addSignify(name string, b []byte) error {
	if isSecretKey(b) {
		k.warnSecret(name)
		return nil
	}
	raw, ok := publicKey42(b)
	if !ok || string(raw[:2]) != "Ed" {
		return Errorf(BadKeyFile, "%s is not a signify public key: replace or remove it", name)
	}
	k.signify = append(k.signify, signifyKey{[8]byte(raw[2:10]), raw[10:]})
	return nil
}

func (k *Keys) verifySignify(signature []byte, file signed) (*Verifier, error) {
	if !file.isList {
		return nil, Errorf(Malformed, "signify signs lists, not image files: declare checksumURL")
	}
	raw, rest, ok := parseSignify(signature)
	if !ok || len(bytes.TrimSpace(rest)) > 0 {
		return nil, Errorf(Malformed, "the file is not a signify signature")
	}
	return inMemory(func() (Result, error) { return k.judgeSignify(raw, file.list) }), nil
}

func (k *Keys) verifySignifyEmbedded(file []byte) (text []byte, r Result, err error) {
	raw, text, ok := parseSignify(file)
	if !ok {
		return nil, Result{}, Errorf(Malformed, "the file does not begin with a signify signature")
	}
	if r, err = k.judgeSignify(raw, text); err != nil {
		return nil, Result{}, err
	}
	return text, r, nil
}

// parseSignify returns the signature in the first two lines, and what follows these lines. The signature has 2 bytes
// algorithm, 8 bytes key id, and the Ed25519 signature of the message.
func parseSignify(b []byte) (raw, rest []byte, ok bool) {
	comment, b, ok1 := bytes.Cut(b, []byte("\n"))
	encoded, rest, _ := bytes.Cut(b, []byte("\n"))
	raw, err := base64.StdEncoding.Strict().DecodeString(string(encoded))
	ok = ok1 && err == nil && bytes.HasPrefix(comment, []byte(untrustedComment)) &&
		len(raw) == 2+8+ed25519.SignatureSize && string(raw[:2]) == "Ed"
	return raw, rest, ok
}

func (k *Keys) judgeSignify(raw, message []byte) (Result, error) {
	id := [8]byte(raw[2:10])
	for _, key := range k.signify {
		switch {
		case key.id != id:
		case !ed25519.Verify(key.public, message, raw[10:]):
			return Result{}, Errorf(BadSignature, "the list is not the one that key %x signed", id)
		default:
			return Result{Scheme: Signify, Signer: fmt.Sprintf("%x", id)}, nil
		}
	}
	return Result{}, Errorf(UnknownKey, "it is signed by key %x, which is not in the keys folder", id)
}

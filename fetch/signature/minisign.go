package signature

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"aead.dev/minisign"
)

type minisignKey struct {
	id     uint64
	public minisign.PublicKey
}

// size42 is the size of a public key of minisign and of signify: 2 bytes algorithm, 8 bytes id, the Ed25519 key.
const size42 = 2 + 8 + ed25519.PublicKeySize

func (k *Keys) addMinisign(name string, b []byte) error {
	if isSecretKey(b) {
		k.warnSecret(name)
		return nil
	}
	var p minisign.PublicKey
	if raw, ok := publicKey42(b); !ok || string(raw[:2]) != "Ed" || p.UnmarshalText(bytes.TrimSpace(b)) != nil {
		return Errorf(BadKeyFile, "%s is not a minisign public key: replace or remove it", name)
	}
	k.minisign = append(k.minisign, minisignKey{p.ID(), p})
	return nil
}

// isSecretKey reports whether the comment in the first line names a secret key.
func isSecretKey(b []byte) bool {
	first, _, _ := bytes.Cut(b, []byte("\n"))
	return bytes.Contains(bytes.ToLower(first), []byte("secret key"))
}

// publicKey42 returns the bytes of a public key of minisign or signify: an optional comment line and one line of base64.
func publicKey42(b []byte) ([]byte, bool) {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) == 2 && strings.HasPrefix(lines[0], untrustedComment) {
		lines = lines[1:]
	}
	if len(lines) != 1 {
		return nil, false
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSpace(lines[0]))
	return raw, err == nil && len(raw) == size42
}

const untrustedComment = "untrusted comment:"

func (k *Keys) verifyMinisign(signature []byte, file signed) (*Verifier, error) {
	var s minisign.Signature
	if err := s.UnmarshalText(signature); err != nil {
		return nil, Errorf(Malformed, "the file is not a minisign signature")
	}
	i := 0
	for i < len(k.minisign) && k.minisign[i].id != s.KeyID {
		i++
	}
	if i == len(k.minisign) {
		return nil, Errorf(UnknownKey, "it is signed by key %016X, which is not in the keys folder", s.KeyID)
	}
	key := k.minisign[i]
	made, name := trustedComment(s.TrustedComment)
	result := Result{Scheme: Minisign, Signer: fmt.Sprintf("%016X", key.id), Time: made}
	judge := func(valid bool) (Result, error) {
		switch {
		case !valid:
			return Result{}, Errorf(BadSignature, "the file is not the one that key %s signed", result.Signer)
		case name != "" && name != file.name:
			return Result{}, Errorf(OtherFile, "it is a signature of %q, not of %q", name, file.name)
		}
		return result, nil
	}
	switch {
	case s.Algorithm == minisign.HashEdDSA: // the Reader of the library does not look at the algorithm
		h := newMinisignHash()
		return &Verifier{h, func() (Result, error) { return judge(h.digest.Verify(key.public, signature)) }}, nil
	case !file.isList:
		return nil, Errorf(Malformed, "the signature is not over a hash: sign image files without -l")
	}
	return inMemory(func() (Result, error) { return judge(minisign.Verify(key.public, file.list, signature)) }), nil
}

// minisignHash writes into a Reader of the library.
type minisignHash struct {
	written *bytes.Reader
	digest  *minisign.Reader
}

func newMinisignHash() *minisignHash {
	h := &minisignHash{written: new(bytes.Reader)}
	h.digest = minisign.NewReader(h.written)
	return h
}

// Write hashes p.
func (h *minisignHash) Write(p []byte) (int, error) {
	h.written.Reset(p)
	n, err := io.Copy(io.Discard, h.digest)
	return int(n), err
}

// trustedComment returns the time and the file name in a trusted comment, which minisign writes by default:
// fields "timestamp:UNIX" and "file:NAME", separated by tabs.
func trustedComment(comment string) (made time.Time, name string) {
	for field := range strings.SplitSeq(comment, "\t") {
		switch key, value, _ := strings.Cut(field, ":"); key {
		case "timestamp":
			if seconds, err := strconv.ParseInt(value, 10, 64); err == nil && seconds > 0 && seconds < 1<<40 {
				made = time.Unix(seconds, 0).UTC()
			}
		case "file":
			name = value
		}
	}
	return made, name
}

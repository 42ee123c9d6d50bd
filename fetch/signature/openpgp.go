package signature

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	openpgp "github.com/ProtonMail/go-crypto/openpgp/v2"
)

// maxCandidates is the maximum number of signatures by known keys in one file.
const maxCandidates = 16

// acceptedHashes are the hashes of signatures over lists and files.
var acceptedHashes = map[crypto.Hash]bool{crypto.SHA256: true, crypto.SHA384: true, crypto.SHA512: true,
	crypto.SHA3_256: true, crypto.SHA3_512: true}

const armourStart = "-----BEGIN PGP SIGNATURE-----"

func (k *Keys) verifyOpenPGP(signature []byte, file signed, now time.Time) (*Verifier, error) {
	r, err := openPGPReader(signature)
	if err != nil {
		return nil, err
	}
	return k.openPGPVerifier(r, file.isList, now)
}

// openPGPReader returns the packets of a detached signature. Vendors use the same names for binary and for armoured files.
func openPGPReader(signature []byte) (io.Reader, error) {
	if len(signature) > 0 && signature[0]&0x80 != 0 { // the first bit of each packet
		return bytes.NewReader(signature), nil
	}
	text := bytes.TrimSpace(signature)
	if !bytes.HasPrefix(text, []byte(armourStart)) {
		return nil, Errorf(Malformed, "the file is not an OpenPGP signature")
	}
	block, err := armor.Decode(bytes.NewReader(text))
	if err != nil {
		return nil, Errorf(Malformed, "the armour of the signature is damaged")
	}
	return block.Body, nil
}

// verifyClearsigned verifies a clearsigned message. The signature covers the Bytes of its block, in which lines end with CRLF; the
// Plaintext of the block is the same text with LF.
func (k *Keys) verifyClearsigned(file []byte, now time.Time) (text []byte, r Result, err error) {
	block, rest := clearsign.Decode(file)
	switch {
	case block == nil:
		return nil, Result{}, Errorf(Malformed, "the file is not a complete clearsigned message")
	case bytes.Contains(rest, []byte("-----BEGIN PGP ")):
		return nil, Result{}, Errorf(Malformed, "the file contains more than one message")
	case block.ArmoredSignature.Type != openpgp.SignatureType:
		return nil, Result{}, Errorf(Malformed, "the message does not end with a signature")
	}
	v, err := k.openPGPVerifier(block.ArmoredSignature.Body, true, now)
	if err != nil {
		return nil, Result{}, err
	}
	v.Write(block.Bytes) // a hash returns no error
	if r, err = v.Verify(); err != nil {
		return nil, Result{}, err
	}
	return append(block.Plaintext, '\n'), r, nil
}

// candidate is a signature by a known key. It is valid if the key signed the bytes of the file.
type candidate struct {
	sig    *packet.Signature
	key    *packet.PublicKey
	result Result
	digest hash.Hash // of the file, for the signature
	text   hash.Hash // digest, or a wrapper that makes line ends CRLF
}

// openPGPVerifier reads the signature packets in r. A file may contain signatures by several keys.
func (k *Keys) openPGPVerifier(r io.Reader, isList bool, now time.Time) (*Verifier, error) {
	var candidates []candidate
	var failed *Error // of the first signature by a known key, else of the first signature
	fail := func(e *Error) {
		if failed == nil || failed.Reason == UnknownKey {
			failed = e
		}
	}
	seen, packets := 0, packet.NewReader(r)
	for {
		p, err := packets.NextWithUnsupported()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, Errorf(Malformed, "the signature is damaged or cut off")
		}
		seen++
		if u, ok := p.(*packet.UnsupportedPacket); ok {
			if s, ok := u.IncompletePacket.(*packet.Signature); ok && s.Hash == 0 && s.PubKeyAlgo != 0 {
				fail(Errorf(WeakHash, "the signature uses a hash that is not accepted"))
			} else {
				fail(Errorf(UnknownKey, "the signature has an unknown version or algorithm"))
			}
			continue
		}
		sig, ok := p.(*packet.Signature)
		if !ok {
			return nil, Errorf(Malformed, "the file contains something else than signatures")
		}
		c, e := k.candidate(sig, isList, now)
		if e != nil {
			fail(e)
			continue
		}
		if candidates = append(candidates, c); len(candidates) > maxCandidates {
			return nil, Errorf(Malformed, "the file contains more than %d signatures", maxCandidates)
		}
	}
	switch {
	case seen == 0:
		return nil, Errorf(Malformed, "the file contains no signature")
	case len(candidates) == 0:
		return nil, failed
	}
	writers := make([]io.Writer, len(candidates))
	for i, c := range candidates {
		writers[i] = c.text
	}
	return &Verifier{io.MultiWriter(writers...), func() (Result, error) {
		var valid Result
		for _, c := range candidates {
			switch {
			case c.key.VerifySignature(c.digest, c.sig) != nil:
				fail(Errorf(BadSignature, "the file is not the one that key %s signed", c.result.Signer))
			case valid.Signer == "" || valid.Warning != "":
				valid = c.result
			}
		}
		if valid.Signer == "" {
			return Result{}, failed
		}
		return valid, nil
	}}, nil
}

// candidate checks all that does not depend on the signed bytes, so that an image whose signature can never be valid is
// rejected before its download.
func (k *Keys) candidate(sig *packet.Signature, isList bool, now time.Time) (candidate, *Error) {
	c := candidate{sig: sig}
	for _, n := range sig.Notations {
		if n.IsCritical {
			return c, Errorf(Malformed, "the signature has the unknown critical notation %q", n.Name)
		}
	}
	var failed *Error
	for _, key := range k.openPGP {
		if !sig.CheckKeyIdOrFingerprint(key.public) {
			continue
		}
		r, err := key.judge(sig, now)
		switch {
		case err != nil && err.Reason == KeyRevoked: // also if another file has the key without the revocation
			return c, err
		case err != nil && failed == nil:
			failed = err
		case err == nil && (c.key == nil || c.result.Warning != ""):
			c.key, c.result = key.public, r
		}
	}
	switch {
	case c.key == nil && failed != nil:
		return c, failed
	case c.key == nil:
		return c, Errorf(UnknownKey, "it is signed by key %s, which is not in the keys folder", issuer(sig))
	}
	digest, err := sig.PrepareVerify()
	if err != nil {
		return c, Errorf(Malformed, "the signature is damaged")
	}
	c.digest, c.text = digest, digest
	switch {
	case sig.SigType == packet.SigTypeText && isList:
		c.text = openpgp.NewCanonicalTextHash(digest)
	case sig.SigType == packet.SigTypeText:
		return c, Errorf(Malformed, "the signature is in text mode, for which line ends do not count: that is for lists only")
	case sig.SigType != packet.SigTypeBinary:
		return c, Errorf(Malformed, "the signature is of type %#02x, not a signature of a file", uint8(sig.SigType))
	}
	return c, nil
}

// judge returns the result if key made sig.
func (key *openPGPKey) judge(sig *packet.Signature, now time.Time) (Result, *Error) {
	made, id := sig.CreationTime, key.primary
	switch {
	case key.revoked:
		return Result{}, Errorf(KeyRevoked, "key %s is revoked", id)
	case key.weak != "":
		return Result{}, Errorf(WeakKey, "key %s is %s", id, key.weak)
	case key.usable != "":
		return Result{}, Errorf(UnknownKey, "key %s must not sign: %s", id, key.usable)
	case !acceptedHashes[sig.Hash]:
		return Result{}, Errorf(WeakHash, "key %s signed with the weak hash %v", id, sig.Hash)
	case made.After(now.Add(MaxSkew)):
		return Result{}, Errorf(FromFuture, "it is dated %s, ahead of the clock of this node", made.UTC().Format(time.RFC3339))
	case made.Before(key.created):
		return Result{}, Errorf(OlderThanKey, "it is dated %s, before key %s was made on %s", day(made), id, day(key.created))
	case sig.SigExpired(now) && !made.After(now):
		return Result{}, Errorf(SigExpired, "the signature by key %s, dated %s, has expired", id, day(made))
	case !key.expires.IsZero() && made.After(key.expires):
		return Result{}, Errorf(KeyExpired, "key %s expired on %s, before it signed on %s", id, day(key.expires), day(made))
	}
	r := Result{Scheme: OpenPGP, Signer: id, Time: made.UTC()}
	if !key.expires.IsZero() && now.After(key.expires) {
		r.Warning = KeyExpiredSince
	}
	return r, nil
}

// issuer returns the fingerprint or the id of the key that a signature names.
func issuer(sig *packet.Signature) string {
	switch {
	case len(sig.IssuerFingerprint) > 0:
		return fmt.Sprintf("%X", sig.IssuerFingerprint)
	case sig.IssuerKeyId != nil:
		return fmt.Sprintf("%016X", *sig.IssuerKeyId)
	}
	return "(not named)"
}

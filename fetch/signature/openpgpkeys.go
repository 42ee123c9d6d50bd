package signature

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp/armor"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	openpgp "github.com/ProtonMail/go-crypto/openpgp/v2"
)

// openPGPKey is a primary key or a subkey, with what its self-signatures say.
type openPGPKey struct {
	public  *packet.PublicKey
	primary string // fingerprint of the primary key

	usable  string    // why it must not sign; empty: it is usable
	weak    string    // why its algorithm or length is too weak; empty: it is not
	revoked bool      // the key or its primary key
	created time.Time // the later creation of the key and its primary key
	expires time.Time // the earlier end of the key and its primary key; zero: never
}

// minRSABits is the minimum length of RSA keys.
const minRSABits = 2048

// selfSignatures is the configuration of go-crypto for self-signatures: SHA-1 is accepted, because old keys have no
// others. All calls pass no time, so that the result does not depend on the clock.
var selfSignatures = &packet.Config{}

// errNoUserID is the error of go-crypto for a key without user ids, as keys.openpgp.org sends it. Only the self-signature
// of a user id says when the key expires and what it may sign.
const errNoUserID = pgperrors.StructuralError("v4 entity without any identities")

func (k *Keys) addOpenPGP(name string, b []byte) error {
	if len(b) > 12 && string(b[8:12]) == "KBXf" {
		return Errorf(BadKeyFile, "%s is a keybox of GnuPG: write its keys into a file with gpg --export", name)
	}
	found := 0
	err := eachKeyBlock(b, func(r io.Reader) error {
		packets := packet.NewReader(r)
		for {
			e, err := openpgp.ReadEntity(packets)
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			found++
			k.addEntity(name, e)
		}
	})
	switch {
	case err == nil && found == 0, errors.Is(err, io.EOF):
		err = errors.New("it contains no complete key")
	case errors.Is(err, errNoUserID):
		err = errors.New("it has no user id, so that nothing says when it expires: get the key with its user id from the vendor")
	}
	if err != nil {
		return Errorf(BadKeyFile, "%s is not a readable OpenPGP key: %v", name, err)
	}
	return nil
}

// eachKeyBlock calls f with the bytes of each armoured block of a file, or with the bytes of a binary file.
func eachKeyBlock(b []byte, f func(io.Reader) error) error {
	if len(b) > 0 && b[0]&0x80 != 0 { // the first bit of each packet
		return f(bytes.NewReader(b))
	}
	r := bufio.NewReader(bytes.NewReader(b)) // one reader, because armor.Decode reads ahead
	for blocks := 0; ; blocks++ {
		block, err := armor.Decode(r)
		if errors.Is(err, io.EOF) && blocks > 0 {
			return nil
		}
		if err != nil {
			return err
		}
		if block.Type != openpgp.PublicKeyType && block.Type != openpgp.PrivateKeyType {
			return pgperrors.StructuralError("it contains a block " + block.Type)
		}
		if err := f(block.Body); err != nil {
			return err
		}
	}
}

// addEntity adds the primary key and the subkeys of e.
func (k *Keys) addEntity(name string, e *openpgp.Entity) {
	if e.PrivateKey != nil {
		k.warnSecret(name)
	}
	primary := openPGPKey{public: e.PrimaryKey, primary: fmt.Sprintf("%X", e.PrimaryKey.Fingerprint), created: e.PrimaryKey.CreationTime,
		weak: weakness(e.PrimaryKey), revoked: isRevoked(e)}
	self := newestSelfSignature(e)
	direct, _ := e.LatestValidDirectSignature(time.Time{}, selfSignatures) // nil if there is none
	switch {
	case self == nil:
		primary.usable = "it has no valid self-signature"
	default:
		primary.usable = maySign(self)
		primary.expires = earlier(keyEnd(e.PrimaryKey, self), keyEnd(e.PrimaryKey, direct))
	}
	k.openPGP = append(k.openPGP, primary)
	for i := range e.Subkeys {
		k.openPGP = append(k.openPGP, subkey(&e.Subkeys[i], primary, self))
	}
}

func subkey(s *openpgp.Subkey, primary openPGPKey, primarySelf *packet.Signature) openPGPKey {
	key := openPGPKey{public: s.PublicKey, primary: primary.primary, created: primary.created, revoked: primary.revoked,
		weak: primary.weak}
	if s.PublicKey.CreationTime.After(key.created) {
		key.created = s.PublicKey.CreationTime
	}
	if key.weak == "" {
		key.weak = weakness(s.PublicKey)
	}
	for _, r := range s.Revocations {
		key.revoked = key.revoked || s.Primary.PrimaryKey.VerifySubkeyRevocationSignature(r.Packet, s.PublicKey) == nil
	}
	binding, err := s.LatestValidBindingSignature(time.Time{}, selfSignatures) // checks the back signature, too
	switch {
	case primarySelf == nil:
		key.usable = primary.usable
	case err != nil:
		key.usable = "it has no valid binding to its primary key"
	default:
		key.usable = maySign(binding)
		key.expires = earlier(primary.expires, keyEnd(s.PublicKey, binding))
	}
	return key
}

// isRevoked reports whether e has a revocation of its primary key, of any time and for any reason.
func isRevoked(e *openpgp.Entity) bool {
	for _, r := range e.Revocations {
		if e.PrimaryKey.VerifyRevocationSignature(r.Packet) == nil {
			return true
		}
	}
	return false
}

// newestSelfSignature returns the newest self-signature of e that is valid, or nil. It may be newer than a signature that
// is to be verified: a key that was extended later counts as extended.
func newestSelfSignature(e *openpgp.Entity) *packet.Signature {
	if e.PrimaryKey.Version == 6 {
		s, _ := e.LatestValidDirectSignature(time.Time{}, selfSignatures) // nil if there is none
		return s
	}
	var newest *packet.Signature
	for _, id := range e.Identities {
		s, err := id.Verify(time.Time{}, selfSignatures)
		if err == nil && (newest == nil || s.CreationTime.After(newest.CreationTime)) {
			newest = s
		}
	}
	return newest
}

// maySign returns why the flags of a self-signature forbid to sign; empty: they allow it.
func maySign(self *packet.Signature) string {
	if self.FlagsValid && self.FlagSign {
		return ""
	}
	return "it is not a key for signing"
}

// weakness returns why an algorithm or length is too weak; empty: it is not.
func weakness(p *packet.PublicKey) string {
	switch p.PubKeyAlgo {
	case packet.PubKeyAlgoRSA, packet.PubKeyAlgoRSASignOnly:
		if bits, err := p.BitLength(); err != nil || bits < minRSABits-1 { // the product of two primes may be a bit shorter
			return Errorf("", "an RSA key of %d bits, at least %d are required", bits, minRSABits).Text
		}
	case packet.PubKeyAlgoEdDSA, packet.PubKeyAlgoECDSA:
		switch curve, err := p.Curve(); {
		case err != nil:
			return "an unknown curve"
		case curve != packet.Curve25519 && curve != packet.Curve448 && curve != packet.CurveNistP256 &&
			curve != packet.CurveNistP384 && curve != packet.CurveNistP521:
			return "the curve " + string(curve)
		}
	case packet.PubKeyAlgoEd25519, packet.PubKeyAlgoEd448:
	default:
		return "an algorithm that is not accepted"
	}
	return ""
}

// keyEnd returns when a key expires according to a self-signature, which may be nil; zero: never.
func keyEnd(p *packet.PublicKey, self *packet.Signature) time.Time {
	if self == nil || self.KeyLifetimeSecs == nil || *self.KeyLifetimeSecs == 0 {
		return time.Time{}
	}
	return p.CreationTime.Add(time.Duration(*self.KeyLifetimeSecs) * time.Second)
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

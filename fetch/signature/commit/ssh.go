package commit

import (
	"bytes"
	"crypto/rsa"
	"encoding/pem"
	"slices"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"github.com/seed-26586806/backing-image-manager/fetch/signature"
)

// minRSABits is the minimum length of RSA keys. ssh-keygen accepts 1024.
const minRSABits = 2048

// verifySSH judges an armoured SSH signature of message. It is enough that one line of the key accepts the signature.
func verifySSH(signers []allowedSigner, message, armoured []byte, namespace string, at time.Time) (allowedSigner, error) {
	block, rest := pem.Decode(armoured)
	if block == nil || len(bytes.TrimSpace(rest)) > 0 || block.Type != sshsig.PEMType || len(block.Headers) > 0 {
		return allowedSigner{}, signature.Errorf(signature.Malformed, "the SSH signature is damaged or cut off")
	}
	sig, err := sshsig.ParseSignature(block.Bytes)
	if err != nil {
		return allowedSigner{}, signature.Errorf(signature.Malformed, "the SSH signature is damaged")
	}
	id := ssh.FingerprintSHA256(sig.PublicKey)
	failed := signature.Errorf(signature.UnknownKey, "it is signed by key %s, which is not in the file %s", id, allowedSigners)
	for _, s := range signers {
		if !bytes.Equal(s.key.Marshal(), sig.PublicKey.Marshal()) {
			continue
		}
		err := s.accepts(sig, message, namespace, at)
		if err == nil {
			return s, nil
		}
		failed = err
	}
	return allowedSigner{}, failed
}

// accepts judges a signature by the key of s.
func (s *allowedSigner) accepts(sig *sshsig.Signature, message []byte, namespace string, at time.Time) *signature.Error {
	switch day := at.Format(time.DateOnly); {
	case sig.Namespace != namespace:
		return signature.Errorf(signature.Namespace, "the signature is for namespace %q, not for %q", sig.Namespace, namespace)
	case len(s.namespaces) > 0 && !slices.Contains(s.namespaces, namespace):
		return signature.Errorf(signature.Namespace, "the key of %s is not allowed for namespace %q", s.principals, namespace)
	case isWeak(s.key):
		return signature.Errorf(signature.WeakKey, "the key of %s is weaker than RSA with %d bits", s.principals, minRSABits)
	case sig.Signature.Format == ssh.KeyAlgoRSA:
		return signature.Errorf(signature.WeakHash, "%s signed with the weak hash SHA-1", s.principals)
	case sshsig.Verify(bytes.NewReader(message), sig, s.key, sig.HashAlgorithm, namespace) != nil:
		return signature.Errorf(signature.BadSignature, "the bytes are not those that %s signed", s.principals)
	case !s.after.IsZero() && at.Before(s.after):
		return signature.Errorf(signature.KeyNotYetValid, "the key of %s was not yet valid on %s", s.principals, day)
	case !s.before.IsZero() && at.After(s.before):
		return signature.Errorf(signature.KeyExpired, "the key of %s was no longer valid on %s", s.principals, day)
	}
	return nil
}

func isWeak(k ssh.PublicKey) bool {
	c, ok := k.(ssh.CryptoPublicKey)
	if !ok {
		return k.Type() != ssh.KeyAlgoSKED25519 && k.Type() != ssh.KeyAlgoSKECDSA256
	}
	r, isRSA := c.CryptoPublicKey().(*rsa.PublicKey)
	return isRSA && r.N.BitLen() < minRSABits
}

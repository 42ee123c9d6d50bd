package signature

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"hash"
	"io"
	"strings"
)

type cosignKey struct {
	id     string // "sha256:" and the digest of the DER key
	public crypto.PublicKey
	hash   crypto.Hash // 0: the bytes themselves are signed
	weak   string      // why the key is too weak; empty: it is not
}

func (k *Keys) addCosign(name string, b []byte) error {
	found := 0
	for rest := bytes.TrimSpace(b); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return Errorf(BadKeyFile, "%s is not a public key in PEM: replace or remove it", name)
		}
		found++
		if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			k.warnSecret(name)
			continue
		}
		key, err := parseCosignKey(block)
		if err != nil {
			return Errorf(BadKeyFile, "%s is not a public key: %v", name, err)
		}
		k.cosign = append(k.cosign, key)
	}
	if found == 0 {
		return Errorf(BadKeyFile, "%s is empty: replace or remove it", name)
	}
	return nil
}

func parseCosignKey(block *pem.Block) (cosignKey, error) {
	if block.Type != "PUBLIC KEY" {
		return cosignKey{}, fmt.Errorf("it contains a block %q", block.Type)
	}
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return cosignKey{}, err
	}
	key := cosignKey{id: fmt.Sprintf("sha256:%x", sha256.Sum256(block.Bytes)), public: public}
	switch p := public.(type) {
	case *ecdsa.PublicKey:
		hashes := map[elliptic.Curve]crypto.Hash{elliptic.P256(): crypto.SHA256, elliptic.P384(): crypto.SHA384,
			elliptic.P521(): crypto.SHA512}
		if key.hash = hashes[p.Curve]; key.hash == 0 {
			key.weak = "on a curve that is not accepted"
		}
	case *rsa.PublicKey:
		key.hash = crypto.SHA256
		if bits := p.N.BitLen(); bits < minRSABits {
			key.weak = fmt.Sprintf("an RSA key of %d bits, at least %d are required", bits, minRSABits)
		}
	case ed25519.PublicKey:
	default:
		return cosignKey{}, fmt.Errorf("keys of type %T are not accepted", public)
	}
	return key, nil
}

// verifyCosign judges a signature that does not name its key: each key of the folder is tried.
func (k *Keys) verifyCosign(signature []byte, file signed) (*Verifier, error) {
	raw, err := parseCosign(signature)
	if err != nil {
		return nil, err
	}
	var keys []cosignKey
	digests := map[crypto.Hash]hash.Hash{}
	var writers []io.Writer
	failed := Errorf(NoKeys, "the folder contains no key")
	for _, key := range k.cosign {
		switch {
		case key.weak != "":
			failed = Errorf(WeakKey, "key %s is %s", key.id, key.weak)
			continue
		case key.hash == 0 && !file.isList:
			failed = Errorf(Malformed, "Ed25519 key %s signs whole files, not their hashes: that is for lists only", key.id)
			continue
		case key.hash != 0 && digests[key.hash] == nil:
			digests[key.hash] = key.hash.New()
			writers = append(writers, digests[key.hash])
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, failed
	}
	return &Verifier{io.MultiWriter(writers...), func() (Result, error) {
		for _, key := range keys {
			message := file.list
			if key.hash != 0 {
				message = digests[key.hash].Sum(nil)
			}
			if key.accepts(message, raw) {
				return Result{Scheme: Cosign, Signer: key.id}, nil
			}
		}
		return Result{}, Errorf(BadSignature, "no key of the folder signed this file")
	}}, nil
}

// accepts reports whether raw is a signature of message, which is a digest unless the key signs whole files.
func (key *cosignKey) accepts(message, raw []byte) bool {
	switch p := key.public.(type) {
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(p, message, raw)
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(p, key.hash, message, raw) == nil
	case ed25519.PublicKey:
		return ed25519.Verify(p, message, raw)
	}
	panic("signature: a cosign key of another type")
}

// sigstoreBundle has the fields of a bundle that decide. The digest and the log entries in it prove nothing here.
type sigstoreBundle struct {
	MediaType        string `json:"mediaType"`
	MessageSignature *struct {
		Signature []byte `json:"signature"`
	} `json:"messageSignature"`
}

// parseCosign returns the bytes of a signature in base64 or in a Sigstore bundle.
func parseCosign(b []byte) ([]byte, error) {
	text := bytes.TrimSpace(b)
	if bytes.HasPrefix(text, []byte("{")) {
		var bundle sigstoreBundle
		if err := json.Unmarshal(text, &bundle); err != nil {
			return nil, Errorf(Malformed, "the Sigstore bundle is damaged")
		}
		switch bundle.MediaType {
		case "application/vnd.dev.sigstore.bundle.v0.3+json", "application/vnd.dev.sigstore.bundle+json;version=0.3":
		default:
			return nil, Errorf(Malformed, "the file is not a Sigstore bundle of version 0.3")
		}
		if bundle.MessageSignature == nil || len(bundle.MessageSignature.Signature) == 0 {
			return nil, Errorf(Malformed, "the Sigstore bundle contains no signature of a file")
		}
		return bundle.MessageSignature.Signature, nil
	}
	raw, err := base64.StdEncoding.DecodeString(string(text))
	if err != nil || len(raw) == 0 {
		return nil, Errorf(Malformed, "the file is neither a signature in base64 nor a Sigstore bundle")
	}
	return raw, nil
}

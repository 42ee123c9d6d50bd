package signature_test

import (
	"bytes"
	"crypto"
	"encoding/base64"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp/packet"
	openpgp "github.com/ProtonMail/go-crypto/openpgp/v2"

	"github.com/seed-26586806/backing-image-manager/fetch/signature"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

var combinations = flag.Int("signature.combinations", 8, "random combinations for each scheme in TestAgreesWith…")

const dayLength = 24 * time.Hour

// start is the day 0 of TestAgreesWithTheRulesOfOpenPGP.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// combination is a key, and a signature by it.
type combination struct {
	keyMade, keyLife int // days after start, and days; 0: no end
	revoked          bool
	reason           packet.ReasonForRevocation
	ecdsa            bool
	onlyCertifies    bool
	signed, sigLife  int // days
	hash             crypto.Hash
	textMode         bool
	known, changed   bool
	now              int // day
}

// expected returns every rule that the combination breaks, stated independently of the implementation.
func (c combination) expected() (broken []signature.Reason, warns bool) {
	add := func(r signature.Reason, holds bool) {
		if holds {
			broken = append(broken, r)
		}
	}
	add(signature.UnknownKey, !c.known || c.onlyCertifies)
	add(signature.BadSignature, c.changed)
	add(signature.KeyRevoked, c.revoked)
	add(signature.FromFuture, c.signed > c.now)
	add(signature.OlderThanKey, c.signed < c.keyMade)
	add(signature.SigExpired, c.sigLife > 0 && c.signed+c.sigLife <= c.now)
	add(signature.KeyExpired, c.keyLife > 0 && c.keyMade+c.keyLife <= c.signed)
	add(signature.WeakHash, c.hash == crypto.SHA1)
	return broken, c.keyLife > 0 && c.keyMade+c.keyLife <= c.now
}

func randomCombination(r *rand.Rand) combination {
	oneIn := func(n int) bool { return r.IntN(n) == 0 }
	c := combination{keyMade: r.IntN(20), signed: 10 + r.IntN(40), now: 20 + r.IntN(60), known: !oneIn(8), changed: oneIn(8), ecdsa: oneIn(3),
		textMode: oneIn(4), revoked: oneIn(6), onlyCertifies: oneIn(12),
		hash:   []crypto.Hash{crypto.SHA256, crypto.SHA384, crypto.SHA512, crypto.SHA1}[min(3, r.IntN(5))],
		reason: []packet.ReasonForRevocation{packet.NoReason, packet.KeySuperseded, packet.KeyCompromised, packet.KeyRetired}[r.IntN(4)]}
	if oneIn(2) {
		c.keyLife = 5 + r.IntN(40)
	}
	if oneIn(4) {
		c.sigLife = 1 + r.IntN(40)
	}
	return c
}

// The answer is that of the rules for every combination of key, time, revocation, hash and change. gpgv is no reference: it
// accepts expired, revoked and weak keys.
func TestAgreesWithTheRulesOfOpenPGP(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	list := []byte("5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03  a.qcow2\n")
	accepted := 0
	for i := range *combinations {
		c := randomCombination(r)
		key, sig := c.sign(t, list)
		if !c.known {
			key, _ = c.sign(t, list) // another key
		}
		keys, err := signature.NewKeys(signature.OpenPGP, []signature.KeyFile{{Name: "key", Bytes: key}})
		if err != nil {
			t.Fatal(err)
		}
		data := list
		if c.changed {
			data = append([]byte("4"), list[1:]...)
		}
		result, err := keys.VerifyList(data, sig, "SHA256SUMS", at(c.now))
		broken, warns := c.expected()
		var e *signature.Error
		switch {
		case err == nil && len(broken) > 0, err != nil && (!errors.As(err, &e) || !slices.Contains(broken, e.Reason)):
			t.Errorf("combination %d %+v: %+v, %v; broken rules: %v", i, c, result, err, broken)
		case err == nil && warns != (result.Warning == signature.KeyExpiredSince):
			t.Errorf("combination %d %+v: warning %q", i, c, result.Warning)
		case err == nil:
			accepted++
		}
	}
	if accepted == 0 || accepted == *combinations {
		t.Errorf("%d of %d combinations are accepted", accepted, *combinations)
	}
}

// at is the noon of a day, so that no limit is on the second.
func at(day int) time.Time { return start.Add(time.Duration(day)*dayLength + dayLength/2) }

// sign makes a key and a signature of the list. The times of a key are at midnight.
func (c combination) sign(t *testing.T, list []byte) (key, sig []byte) {
	t.Helper()
	made := start.Add(time.Duration(c.keyMade) * dayLength)
	noSalt := false
	config := &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA, NonDeterministicSignaturesViaNotation: &noSalt,
		Time: func() time.Time { return made }, KeyLifetimeSecs: uint32(c.keyLife) * 86400}
	if c.ecdsa {
		config.Algorithm, config.Curve = packet.PubKeyAlgoECDSA, packet.CurveNistP256
	}
	e, err := openpgp.NewEntity("Vendor", "", "vendor@example.com", config)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range e.Identities {
		for _, s := range id.SelfCertifications {
			s.Packet.FlagSign = !c.onlyCertifies
			if err := s.Packet.SignUserId(id.UserId.Id, e.PrimaryKey, e.PrivateKey, config); err != nil {
				t.Fatal(err)
			}
		}
	}
	if c.revoked {
		if err := e.Revoke(c.reason, "", config); err != nil {
			t.Fatal(err)
		}
	}
	s := &packet.Signature{Version: e.PrimaryKey.Version, PubKeyAlgo: e.PrimaryKey.PubKeyAlgo, Hash: c.hash,
		CreationTime: start.Add(time.Duration(c.signed) * dayLength).Add(time.Hour), IssuerKeyId: &e.PrimaryKey.KeyId,
		IssuerFingerprint: e.PrimaryKey.Fingerprint}
	if c.textMode {
		s.SigType = packet.SigTypeText
	}
	if c.sigLife > 0 {
		seconds := uint32(c.sigLife) * 86400
		s.SigLifetimeSecs = &seconds
	}
	h := c.hash.New()
	if c.textMode {
		openpgp.NewCanonicalTextHash(h).Write(list)
	} else {
		h.Write(list)
	}
	if err := s.Sign(h, e.PrivateKey, config); err != nil {
		t.Fatal(err)
	}
	var keyBytes, sigBytes bytes.Buffer
	if err := errors.Join(e.Serialize(&keyBytes), s.Serialize(&sigBytes)); err != nil {
		t.Fatal(err)
	}
	return keyBytes.Bytes(), sigBytes.Bytes()
}

// program is another implementation of a scheme.
type program struct {
	scheme  signature.Scheme
	makeKey func(public, secret string) []string
	sign    func(r *rand.Rand, secret, file, sig string) []string
	verify  func(public, file, sig string) []string
}

func TestAgreesWithMinisign(t *testing.T) {
	agree(t, "minisign", program{
		scheme:  signature.Minisign,
		makeKey: func(public, secret string) []string { return []string{"-G", "-W", "-p", public, "-s", secret} },
		sign: func(r *rand.Rand, secret, file, sig string) []string {
			args := []string{"-S", "-s", secret, "-m", file, "-x", sig}
			if r.IntN(3) == 0 {
				args = append(args, "-l")
			}
			if r.IntN(3) == 0 {
				args = append(args, "-t", "another comment")
			}
			return args
		},
		verify: func(public, file, sig string) []string { return []string{"-V", "-p", public, "-m", file, "-x", sig} },
	})
}

func TestAgreesWithSignify(t *testing.T) {
	agree(t, "signify-openbsd", program{
		scheme:  signature.Signify,
		makeKey: func(public, secret string) []string { return []string{"-G", "-n", "-p", public, "-s", secret} },
		sign: func(_ *rand.Rand, secret, file, sig string) []string {
			return []string{"-S", "-s", secret, "-m", file, "-x", sig}
		},
		verify: func(public, file, sig string) []string { return []string{"-V", "-p", public, "-m", file, "-x", sig} },
	})
}

func TestAgreesWithOpenSSL(t *testing.T) {
	agree(t, "openssl", program{
		scheme: signature.Cosign,
		makeKey: func(_, secret string) []string {
			return []string{"ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", secret}
		},
		sign: func(_ *rand.Rand, secret, file, sig string) []string {
			return []string{"dgst", "-sha256", "-sign", secret, "-out", sig, file}
		},
		verify: func(public, file, sig string) []string {
			return []string{"dgst", "-sha256", "-verify", public, "-signature", sig, file}
		},
	})
}

// agree signs and verifies with the program, changes the list, the signature or the key, and compares the answers.
func agree(t *testing.T, name string, p program) {
	need.Programs(t, name)
	dir := t.TempDir()
	run := func(args ...string) error { return need.Command(t, name, args...).Run() }
	const keys = 3
	public := func(i int) string { return filepath.Join(dir, string(rune('a'+i))+".pub") }
	secret := func(i int) string { return filepath.Join(dir, string(rune('a'+i))+".sec") }
	for i := range keys {
		if err := run(p.makeKey(public(i), secret(i))...); err != nil {
			t.Fatal(err)
		}
		if p.scheme == signature.Cosign {
			if err := run("ec", "-in", secret(i), "-pubout", "-out", public(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := rand.New(rand.NewPCG(5, 6))
	list, sig := filepath.Join(dir, "SHA256SUMS"), filepath.Join(dir, "list.sig")
	accepted := 0
	for i := range *combinations {
		data := make([]byte, 1+r.IntN(500))
		for j := range data {
			data[j] = byte(' ' + r.IntN(90))
		}
		signer, verifier := r.IntN(keys), r.IntN(keys)
		if r.IntN(2) == 0 {
			verifier = signer
		}
		write(t, list, data)
		if err := run(p.sign(r, secret(signer), list, sig)...); err != nil {
			t.Fatal(err)
		}
		signatureBytes, err := os.ReadFile(sig)
		if err != nil {
			t.Fatal(err)
		}
		switch r.IntN(4) {
		case 0:
			data[r.IntN(len(data))] ^= 1
			write(t, list, data)
		case 1: // of the last line: all schemes encode something signed there
			at := len(signatureBytes) - 10
			signatureBytes[at] = 'A' + (signatureBytes[at]-'A'+1)%26
			write(t, sig, signatureBytes)
		}
		runErr := run(p.verify(public(verifier), list, sig)...)
		var exit *exec.ExitError
		if runErr != nil && !errors.As(runErr, &exit) {
			t.Fatal(runErr)
		}
		keyBytes, err := os.ReadFile(public(verifier))
		if err != nil {
			t.Fatal(err)
		}
		k, err := signature.NewKeys(p.scheme, []signature.KeyFile{{Name: "key", Bytes: keyBytes}})
		if err != nil {
			t.Fatal(err)
		}
		if p.scheme == signature.Cosign {
			signatureBytes = []byte(base64.StdEncoding.EncodeToString(signatureBytes))
		}
		result, err := k.VerifyList(data, signatureBytes, "SHA256SUMS", time.Now())
		if (err == nil) != (runErr == nil) {
			t.Errorf("combination %d: %+v, %v; %s: %v", i, result, err, name, runErr)
		}
		if err == nil {
			accepted++
		}
	}
	if accepted == 0 || accepted == *combinations {
		t.Errorf("%d of %d combinations are accepted", accepted, *combinations)
	}
}

func write(t *testing.T, file string, b []byte) {
	t.Helper()
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

package signature_test

import (
	"bytes"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/seed-26586806/backing-image-manager/fetch/signature"
)

var mutantsFlag = flag.Int("signature.mutants", 1000, "mutated signatures, lists and keys in TestMutants")

// subject is a signed file that is accepted, with its parts.
type subject struct {
	signedCase
	data, sig, key []byte
	result         signature.Result
	text           []byte
}

// No mutant is accepted for other bytes, by another signer or with another time. A mutant may be accepted only if the change
// is outside of what is signed, such as in a comment; then the result is that of the original.
func TestMutants(t *testing.T) {
	var subjects []subject
	for _, c := range readCases(t) {
		if c.OK == nil || !*c.OK || len(c.Keys) != 1 {
			continue
		}
		s := subject{signedCase: c, data: c.read(t, c.Data), sig: c.read(t, c.Signature)}
		files, err := filepath.Glob(filepath.Join(signedDir, c.Keys[0], "*"))
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		if s.key, err = os.ReadFile(files[0]); err != nil {
			t.Fatal(err)
		}
		if s.text, s.result, err = s.judgeWith(s.key, s.data, s.sig); err != nil {
			t.Fatal(err)
		}
		subjects = append(subjects, s)
	}
	r := rand.New(rand.NewPCG(1, 2))
	accepted := 0
	for i := range *mutantsFlag {
		s := subjects[r.IntN(len(subjects))]
		data, sig, key := s.data, s.sig, s.key
		switch part := r.IntN(3); {
		case part == 0:
			key = mutate(r, key)
		case part == 1 && data != nil:
			data = mutate(r, data)
		default:
			sig = mutate(r, sig)
		}
		text, result, err := s.judgeWith(key, data, sig)
		if err != nil {
			continue
		}
		accepted++
		if result.Signer != s.result.Signer || result.Time != s.result.Time || !bytes.Equal(trimLines(text), trimLines(s.text)) {
			t.Errorf("mutant %d of %s: accepted as %+v, text %q", i, s.Case, result, text)
		}
		if !bytes.Equal(data, s.data) && !bytes.Equal(trimLines(data), trimLines(s.data)) {
			t.Errorf("mutant %d of %s: changed bytes are accepted", i, s.Case)
		}
	}
	t.Logf("%d mutants, %d of them changed nothing that is signed", *mutantsFlag, accepted)
}

func (s *subject) judgeWith(key, data, sig []byte) ([]byte, signature.Result, error) {
	keys, err := signature.NewKeys(s.Scheme, []signature.KeyFile{{Name: "key", Bytes: key}})
	if err != nil {
		return nil, signature.Result{}, err
	}
	return s.judge(keys, data, sig)
}

// mutate changes, removes, inserts or repeats bytes.
func mutate(r *rand.Rand, b []byte) []byte {
	if len(b) == 0 {
		return []byte{byte(r.Uint32())}
	}
	m := bytes.Clone(b)
	at := r.IntN(len(m))
	switch r.IntN(5) {
	case 0:
		m[at] ^= 1 << r.IntN(8)
	case 1:
		m[at] = byte(r.Uint32())
	case 2:
		end := min(len(m), at+1+r.IntN(8))
		m = append(m[:at], m[end:]...)
	case 3:
		m = append(m[:at], append([]byte{byte(r.Uint32())}, m[at:]...)...)
	case 4:
		end := min(len(m), at+1+r.IntN(100))
		m = append(bytes.Clone(m[:end]), m[at:]...)
	}
	return m
}

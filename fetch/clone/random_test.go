package clone

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

var rounds = flag.Int("clone.rounds", race.Fewer(3, 3), "number of random disks to encrypt and decrypt")

// TestRandomDisksRoundTrip encrypts and decrypts random disks, with interruptions at random offsets,
// and compares the result with the original.
func TestRandomDisksRoundTrip(t *testing.T) {
	for seed := range *rounds {
		random := rand.New(rand.NewPCG(uint64(seed), 4))
		r := newFixture(t)
		secret := map[string]string{
			fileValue: fmt.Sprint("passphrase ", seed), fileIterations: "1000", filePBKDF: "pbkdf2",
			fileSize: []string{"256", "512"}[random.IntN(2)], fileHash: []string{"sha256", "sha512", "sha1"}[random.IntN(3)],
		}
		r.writeSecret(t, "vault", secret)
		plain := randomDisk(random)
		source := plain
		if random.IntN(2) == 0 {
			source = toQCOW2(t, plain)
		}
		r.addImage(t, sourceID, source)
		r.interrupt(t, r.request(t, sourceID, Encrypt), random.Int64N(int64(len(plain))+HeaderSize))
		r.resume(t, r.request(t, sourceID, Encrypt), -1)
		encrypted := ident.ID{Name: "encrypted", UUID: "00c0ffee"}
		if err := os.Rename(filepath.Dir(r.path(cloneID)), filepath.Dir(r.path(encrypted))); err != nil {
			t.Fatal(err)
		}
		r.interrupt(t, r.request(t, encrypted, Decrypt), random.Int64N(int64(len(plain))))
		r.resume(t, r.request(t, encrypted, Decrypt), -1)
		if !bytes.Equal(r.bytes(t, cloneID), plain) {
			t.Errorf("seed %d: the %d bytes differ after the round trip", seed, len(plain))
		}
	}
}

// randomDisk returns up to 6 MiB of random bytes and zeros.
func randomDisk(random *rand.Rand) []byte {
	b := make([]byte, 512*(1+random.IntN(6<<11)))
	for range random.IntN(20) {
		from := random.IntN(len(b))
		for i := range b[from:min(len(b), from+random.IntN(1<<20))] {
			b[from+i] = byte(random.Uint32())
		}
	}
	return b
}

func toQCOW2(t *testing.T, plain []byte) []byte {
	t.Helper()
	dir := t.TempDir()
	raw, qcow2 := filepath.Join(dir, "raw"), filepath.Join(dir, "qcow2")
	if err := os.WriteFile(raw, plain, 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "", "qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", raw, qcow2)
	b, err := os.ReadFile(qcow2)
	if err != nil {
		t.Fatal(err)
	}
	return append(b, make([]byte, (512-len(b)%512)%512)...)
}

package luks

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// cryptsetup runs the program.
func cryptsetup(t testing.TB, args ...string) {
	t.Helper()
	if out, err := need.Command(t, "cryptsetup", args...).CombinedOutput(); err != nil {
		t.Fatalf("cryptsetup %v: %v\n%s", args, err, out)
	}
}

func write(t testing.TB, name string, b []byte) string {
	t.Helper()
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestCryptsetupAgrees encrypts a file with cryptsetup, which needs no device for it. This package
// must decrypt the payload of cryptsetup, and cryptsetup must decrypt the payload of this package.
func TestCryptsetupAgrees(t *testing.T) {
	race.Skip(t)
	for keySize, sectorSize := range map[int]int{256: 512, 512: 4096} {
		t.Run(fmt.Sprint(keySize, sectorSize), func(t *testing.T) {
			dir := t.TempDir()
			plain := make([]byte, 3<<20)
			rand.Read(plain[:1<<20]) // the rest are zeros, which are encrypted too
			key := make([]byte, keySize/8)
			rand.Read(key)
			keyFile := write(t, filepath.Join(dir, "key"), key)
			passphrase := write(t, filepath.Join(dir, "passphrase"), []byte("open\n"))
			// cryptsetup needs space for the header: it reserves twice the header size at the end.
			image := write(t, filepath.Join(dir, "image"), append(bytes.Clone(plain), make([]byte, 2*MaxOffset)...))
			fast := []string{"--disable-locks", "--force-offline-reencrypt", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"}
			cryptsetup(t, append(fast, "-q", "reencrypt", "--encrypt", "--type", "luks2", "--cipher", "aes-xts-plain64",
				"--key-size", fmt.Sprint(keySize), "--sector-size", fmt.Sprint(sectorSize), "--volume-key-file", keyFile,
				"--reduce-device-size", "32M", image, "-d", passphrase)...)

			b := readFile(t, image)
			h, err := Read(bytes.NewReader(b), int64(len(b)))
			if err != nil {
				t.Fatal(err)
			}
			if h.SectorSize != sectorSize || h.KeySize != keySize/8 {
				t.Fatalf("header is %+v", h)
			}
			if _, err := h.Open(make([]byte, h.KeySize)); !errors.Is(err, errWrongKey) {
				t.Errorf("open with another key: %v", err)
			}
			p, err := h.Open(key)
			if err != nil {
				t.Fatal(err)
			}
			payload := b[h.Offset : h.Offset+int64(len(plain))]
			p.Decrypt(payload, 0)
			if !bytes.Equal(payload, plain) {
				t.Fatal("the decrypted payload of cryptsetup is wrong")
			}

			rand.Read(payload[2<<20:])
			plain = bytes.Clone(payload)
			p.Encrypt(payload, 0)
			write(t, image, b[:h.Offset+int64(len(plain))])
			cryptsetup(t, append(fast, "-q", "reencrypt", "--decrypt", "--header", filepath.Join(dir, "header"), image, "-d", passphrase)...)
			if got := readFile(t, image); !bytes.Equal(got[:len(plain)], plain) {
				t.Error("cryptsetup decrypts the payload wrongly")
			}
		})
	}
}

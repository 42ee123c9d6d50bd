package clone

import (
	"bytes"
	"context"
	"crypto/aes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/crypto/xts"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

func TestIgnoreCopiesBytes(t *testing.T) {
	r := newFixture(t)
	source := r.addImage(t, sourceID, randomBytes(5<<20+512))
	c, err := r.clone(t, context.Background(), sourceID, cloneID, Ignore, "")
	if err != nil {
		t.Fatal(err)
	}
	if c.SHA512 != source.SHA512 || c.ManifestDigest != source.ManifestDigest {
		t.Errorf("the clone is %+v, want the bytes of %+v", c, source)
	}
}

func TestEncryptAndDecrypt(t *testing.T) {
	need.Programs(t, "cryptsetup")
	for name, files := range map[string]map[string]string{
		"longhorn's": {fileIterations: "4", fileMemory: "64"},
		"wide":       {fileIterations: "4", fileMemory: "64", fileHash: "sha512\n", fileSize: "512\n", filePBKDF: "argon2id"},
		"pbkdf2":     {fileIterations: "1000", filePBKDF: "pbkdf2", fileMemory: "64", fileProvider: "secret"},
	} {
		t.Run(name, func(t *testing.T) {
			sizes := []int{9<<20 + 512}
			if name == "longhorn's" {
				sizes = append(sizes, 512, 1<<20-512)
			}
			for _, size := range sizes {
				r := newFixture(t)
				files[fileValue] = "with \x00 and \xff\n\n"
				r.writeSecret(t, "vault", files)
				source := r.addImage(t, sourceID, randomBytes(size))
				encrypted, err := r.clone(t, context.Background(), sourceID, cloneID, Encrypt, "vault")
				if err != nil {
					t.Fatal(err)
				}
				if encrypted.Size != int64(size)+16<<20 || encrypted.Format != model.Raw {
					t.Errorf("the encrypted image is %+v", encrypted)
				}
				if encrypted.RealSize < int64(size)+16<<20 {
					t.Errorf("%d of %d bytes are allocated: holes reveal where the data is", encrypted.RealSize, encrypted.Size)
				}
				again := ident.ID{Name: "again", UUID: "00c0ffee"}
				decrypted, err := r.clone(t, context.Background(), cloneID, again, Decrypt, "vault")
				if err != nil {
					t.Fatal(err)
				}
				if decrypted.SHA512 != source.SHA512 || decrypted.Size != source.Size {
					t.Errorf("the decrypted image is %+v, want %+v", decrypted, source)
				}
				if size > 8<<20 && decrypted.RealSize > int64(size)*3/4 {
					t.Errorf("%d of %d bytes are allocated: zeros were written", decrypted.RealSize, size)
				}
			}
		})
	}
}

// TestCryptsetupOpensEncryptedClone checks the header with cryptsetup, and decrypts the
// payload independently with the key that cryptsetup prints.
func TestCryptsetupOpensEncryptedClone(t *testing.T) {
	need.Programs(t, "cryptsetup")
	r := newFixture(t)
	plain := randomBytes(3<<20 + 1536)
	r.addImage(t, sourceID, plain)
	if _, err := r.clone(t, context.Background(), sourceID, cloneID, Encrypt, "vault"); err != nil {
		t.Fatal(err)
	}
	image := r.path(cloneID)
	passphrase := filepath.Join(r.secrets, "vault", fileValue)
	run(t, "", "cryptsetup", "open", "--test-passphrase", "--key-file", passphrase, image)
	var header struct {
		Segments map[string]struct {
			Type, Offset, Size, Encryption string
			SectorSize                     int    `json:"sector_size"`
			Tweak                          string `json:"iv_tweak"`
		}
		Keyslots map[string]struct {
			KeySize int `json:"key_size"`
			KDF     struct {
				Type         string
				Time, Memory int
			}
		}
	}
	if err := json.Unmarshal([]byte(run(t, "", "cryptsetup", "luksDump", "--dump-json-metadata", image)), &header); err != nil {
		t.Fatal(err)
	}
	if s := header.Segments["0"]; s.Type != "crypt" || s.Offset != "16777216" || s.Size != "dynamic" || s.Encryption != "aes-xts-plain64" || s.SectorSize != 512 || s.Tweak != "0" {
		t.Errorf("the segment is %+v", s)
	}
	if k := header.Keyslots["0"]; len(header.Keyslots) != 1 || k.KeySize != 32 || k.KDF.Type != "argon2id" || k.KDF.Time != 4 || k.KDF.Memory != 64 {
		t.Errorf("the key slots are %+v", header.Keyslots)
	}
	keyFile := filepath.Join(t.TempDir(), "key")
	run(t, "", "cryptsetup", "-q", "luksDump", "--dump-volume-key", "--volume-key-file", keyFile, "--key-file", passphrase, image)
	key, err := os.ReadFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	cipher, err := xts.NewCipher(aes.NewCipher, key)
	if err != nil {
		t.Fatal(err)
	}
	b := r.bytes(t, cloneID)[16<<20:]
	for n := 0; n < len(b)/512; n++ {
		cipher.Decrypt(b[n*512:(n+1)*512], b[n*512:(n+1)*512], uint64(n))
	}
	if !bytes.Equal(b, plain) {
		t.Error("an independent decryption of the payload returns wrong bytes")
	}
}

// TestDecryptDiskOfCryptsetup decrypts a disk that cryptsetup encrypted without this program.
func TestDecryptDiskOfCryptsetup(t *testing.T) {
	r := newFixture(t)
	plain := randomBytes(4 << 20)
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, append(bytes.Clone(plain), make([]byte, 32<<20)...), 0o600); err != nil {
		t.Fatal(err)
	}
	passphrase := filepath.Join(r.secrets, "vault", fileValue)
	run(t, "", "cryptsetup", "-q", "reencrypt", "--encrypt", "--type", "luks2", "--force-offline-reencrypt", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000",
		"--cipher", "aes-xts-plain64", "--key-size", "512", "--sector-size", "4096", "--reduce-device-size", "32M", "--key-file", passphrase, image)
	b, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	r.addImage(t, sourceID, b[:16<<20+len(plain)])
	if _, err := r.clone(t, context.Background(), sourceID, cloneID, Decrypt, "vault"); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(r.bytes(t, cloneID), plain) {
		t.Error("the decrypted bytes differ from those that cryptsetup encrypted")
	}
}

func TestEncryptQCOW2AsRaw(t *testing.T) {
	need.Programs(t, "cryptsetup")
	r := newFixture(t)
	plain := randomBytes(5 << 20)
	if c := r.addImage(t, sourceID, toQCOW2(t, plain)); c.Format != model.QCOW2 {
		t.Fatalf("the source is %+v", c)
	}
	c, err := r.clone(t, context.Background(), sourceID, cloneID, Encrypt, "vault")
	if err != nil {
		t.Fatal(err)
	}
	if c.Format != model.Raw || c.Size != 21<<20 {
		t.Errorf("the encrypted image is %+v", c)
	}
	again := ident.ID{Name: "again", UUID: "00c0ffee"}
	if _, err := r.clone(t, context.Background(), cloneID, again, Decrypt, "vault"); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(r.bytes(t, again), plain) {
		t.Error("the decrypted disk differs from the disk in the qcow2 image")
	}
}

func TestInvalidRequests(t *testing.T) {
	need.Programs(t, "cryptsetup")
	r := newFixture(t)
	plain := randomBytes(17 << 20)
	r.addImage(t, sourceID, plain)
	encrypted := ident.ID{Name: "encrypted", UUID: "00000001"}
	if _, err := r.clone(t, context.Background(), sourceID, encrypted, Encrypt, "vault"); err != nil {
		t.Fatal(err)
	}
	small := ident.ID{Name: "small", UUID: "00000002"}
	r.addImage(t, small, randomBytes(1<<20))
	cut := ident.ID{Name: "cut", UUID: "00000003"}
	r.addImage(t, cut, r.bytes(t, encrypted)[:8<<20])
	empty := ident.ID{Name: "empty", UUID: "00000004"}
	r.addImage(t, empty, r.bytes(t, encrypted)[:16<<20])
	old := ident.ID{Name: "old", UUID: "00000005"}
	luks1 := bytes.Clone(plain)
	copy(luks1, "LUKS\xba\xbe\x00\x01")
	r.addImage(t, old, toQCOW2(t, luks1)) // a raw LUKS1 disk is not accepted as an image
	r.writeSecret(t, "other", map[string]string{fileValue: "correct horse"})
	r.writeSecret(t, "empty", map[string]string{fileValue: ""})
	r.writeSecret(t, "provider", map[string]string{fileValue: "x", fileProvider: "vault"})
	r.writeSecret(t, "cipher", map[string]string{fileValue: "x", fileCipher: "aes-cbc-essiv:sha256"})
	r.writeSecret(t, "size", map[string]string{fileValue: "x", fileSize: "128"})
	r.writeSecret(t, "hash", map[string]string{fileValue: "x", fileHash: "--type=luks1"})
	r.writeSecret(t, "pbkdf", map[string]string{fileValue: "x", filePBKDF: "none"})
	r.writeSecret(t, "iterations", map[string]string{fileValue: "x", fileIterations: "many"})
	r.writeSecret(t, "unknown", map[string]string{fileValue: "x", "CRYPTO_KEY_CYPHER": "x"})
	tests := []struct {
		from   ident.ID
		how    Encryption
		secret string
		class  fetch.Class
		want   string
	}{
		{encrypted, Encrypt, "vault", fetch.BadSource, "already encrypted, with LUKS2"},
		{old, Encrypt, "vault", fetch.BadSource, "already encrypted, with LUKS1"},
		{sourceID, Decrypt, "vault", fetch.BadSource, "is not encrypted"},
		{small, Decrypt, "vault", fetch.BadSource, "the header of an encrypted disk already has"},
		{cut, Decrypt, "vault", fetch.BadSource, "but the disk has 8388608 bytes"},
		{empty, Decrypt, "vault", fetch.BadSource, "the 0 bytes after its header"},
		{encrypted, Decrypt, "other", fetch.BadConfig, "the passphrase in secret \"other\" is wrong"},
		{encrypted, Decrypt, "missing", fetch.BadConfig, "no such folder"},
		{encrypted, Decrypt, "../vault", fetch.BadConfig, "name of one folder"},
		{encrypted, Decrypt, "empty", fetch.BadConfig, "missing or empty"},
		{sourceID, Encrypt, "provider", fetch.BadConfig, "key provider that is not supported"},
		{sourceID, Encrypt, "cipher", fetch.BadConfig, "cipher that is not supported"},
		{sourceID, Encrypt, "size", fetch.BadConfig, "256 or 512"},
		{sourceID, Encrypt, "hash", fetch.BadConfig, "a hash that is not supported: use one of sha1, sha224, sha256, sha384, sha512"},
		{sourceID, Encrypt, "pbkdf", fetch.BadConfig, "argon2i, argon2id or pbkdf2"},
		{sourceID, Encrypt, "iterations", fetch.BadConfig, "does not contain a number"},
		{sourceID, Encrypt, "unknown", fetch.BadConfig, "CRYPTO_KEY_CYPHER"},
	}
	for _, test := range tests {
		t.Run(fmt.Sprint(test.from.Name, test.how, test.secret), func(t *testing.T) {
			c, err := r.clone(t, context.Background(), test.from, cloneID, test.how, test.secret)
			e, ok := errors.AsType[*fetch.Error](err)
			if !ok || e.Class != test.class || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v of class %v (the copy is %v), want class %s and %q", err, e, c, test.class, test.want)
			}
			if info, err := os.Stat(filepath.Join(filepath.Dir(r.path(cloneID)), "backing.part")); err == nil && info.Size() > 0 {
				t.Errorf("a partial file of %d bytes remains", info.Size())
			}
		})
	}
}

func TestMissingCryptsetup(t *testing.T) {
	_, err := findProgram("/nowhere:" + t.TempDir() + ":")
	if e, ok := errors.AsType[*fetch.Error](err); !ok || e.Class != fetch.BadConfig || !strings.Contains(err.Error(), "cryptsetup-bin") {
		t.Errorf("error is %v", err)
	}
}

// TestDamagedSourceIsNotEncrypted checks that damage of the source is detected. An encrypted or
// decrypted clone has a new checksum, which would hide it.
func TestDamagedSourceIsNotEncrypted(t *testing.T) {
	need.Programs(t, "cryptsetup")
	r := newFixture(t)
	r.addImage(t, sourceID, randomBytes(3<<20))
	encrypted := ident.ID{Name: "encrypted", UUID: "00000001"}
	if _, err := r.clone(t, context.Background(), sourceID, encrypted, Encrypt, "vault"); err != nil {
		t.Fatal(err)
	}
	for from, how := range map[ident.ID]Encryption{sourceID: Encrypt, encrypted: Decrypt} {
		q := r.request(t, from, how)
		f, err := os.OpenFile(r.path(from), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		b, at := make([]byte, 1), q.Copy.Size-1000
		if _, err := f.ReadAt(b, at); err != nil {
			t.Fatal(err)
		}
		b[0]++
		if _, err := f.WriteAt(b, at); err != nil {
			t.Fatal(err)
		}
		f.Close()
		p, err := r.disk.OpenPart(context.Background(), cloneID, disk.PartOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := Fill(context.Background(), p, q, &fetch.Progress{}); !errors.Is(err, disk.ErrDamaged) {
			t.Errorf("%s: error is %v", how, err)
		}
		if err := p.Discard(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPipeInSecretDoesNotBlock: a read from a pipe would block forever, even during a shutdown.
func TestPipeInSecretDoesNotBlock(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "key"), 0o755), syscall.Mkfifo(filepath.Join(dir, "key", fileValue), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := readSecret(dir, "key"); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
		t.Errorf("got %v", err)
	}
}

package clone

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/luks"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// secret is a secret of Longhorn. It is a folder below the secrets directory with one file per key,
// as Kubernetes mounts it.
type secret struct {
	passphrase []byte // CRYPTO_KEY_VALUE, unchanged

	// The other fields are used only for new headers.
	hash       string // CRYPTO_KEY_HASH
	keyBits    int    // CRYPTO_KEY_SIZE
	pbkdf      string // CRYPTO_PBKDF
	iterations int64  // 0: cryptsetup measures how many are right for the machine
	memory     int64  // KiB; 0: cryptsetup chooses it from the memory of the machine
}

const (
	fileValue      = "CRYPTO_KEY_VALUE"
	fileProvider   = "CRYPTO_KEY_PROVIDER"
	fileCipher     = "CRYPTO_KEY_CIPHER"
	fileHash       = "CRYPTO_KEY_HASH"
	fileSize       = "CRYPTO_KEY_SIZE"
	filePBKDF      = "CRYPTO_PBKDF"
	fileIterations = "CRYPTO_PBKDF_FORCE_ITERATIONS"
	fileMemory     = "CRYPTO_PBKDF_MEMORY"

	cipher = "aes-xts-plain64"
)

var secretFiles = []string{fileValue, fileProvider, fileCipher, fileHash, fileSize, filePBKDF, fileIterations, fileMemory}

// readSecret reads the secret again for each job, so that the next attempt uses a corrected secret.
// Its errors never contain the content of a file.
func readSecret(dir, name string) (*secret, error) {
	if dir == "" {
		return nil, fetch.Errorf(fetch.BadConfig, "secret %q is declared, but no secrets directory is given: name it with --secrets-dir", name)
	}
	var unknown []string
	files, err := fetch.ReadSecret(dir, name, func(file string) bool {
		if known := slices.Contains(secretFiles, file); known || !strings.HasPrefix(file, "CRYPTO_") {
			return known // other files may belong to other programs
		}
		unknown = append(unknown, file)
		return false
	})
	if err == nil && len(unknown) > 0 {
		err = fmt.Errorf("file %q is not supported: use %s", unknown[0], strings.Join(secretFiles, ", "))
	}
	var s *secret
	if err == nil {
		s, err = parseSecret(files)
	}
	if err != nil {
		return nil, fetch.Errorf(fetch.BadConfig, "secret %q: %w", name, err)
	}
	return s, nil
}

// parseSecret parses the files, with Longhorn's defaults.
func parseSecret(files map[string][]byte) (*secret, error) {
	text := func(file, otherwise string) string {
		if t := strings.TrimSpace(string(files[file])); t != "" {
			return t
		}
		return otherwise
	}
	s := &secret{passphrase: files[fileValue], hash: text(fileHash, "sha256"), pbkdf: text(filePBKDF, "argon2i")}
	switch {
	case len(s.passphrase) == 0:
		return nil, fmt.Errorf("file %q is missing or empty: it must contain the passphrase", fileValue)
	case text(fileProvider, "secret") != "secret":
		return nil, fmt.Errorf("file %q contains a key provider that is not supported: use \"secret\"", fileProvider)
	case text(fileCipher, cipher) != cipher:
		return nil, fmt.Errorf("file %q contains a cipher that is not supported: use %s", fileCipher, cipher)
	case !slices.Contains(luks.Hashes(), s.hash):
		return nil, fmt.Errorf("file %q contains a hash that is not supported: use one of %s", fileHash, strings.Join(luks.Hashes(), ", "))
	case s.pbkdf != "argon2i" && s.pbkdf != "argon2id" && s.pbkdf != "pbkdf2":
		return nil, fmt.Errorf("file %q must contain argon2i, argon2id or pbkdf2", filePBKDF)
	}
	switch text(fileSize, "256") {
	case "256":
		s.keyBits = 256
	case "512":
		s.keyBits = 512
	default:
		return nil, fmt.Errorf("file %q must contain 256 or 512: a key for XTS consists of two keys", fileSize)
	}
	for file, number := range map[string]*int64{fileIterations: &s.iterations, fileMemory: &s.memory} {
		var err error
		if *number, err = strconv.ParseInt(text(file, "0"), 10, 64); err != nil || *number < 0 {
			return nil, fmt.Errorf("file %q does not contain a number: correct or remove it", file)
		}
	}
	return s, nil
}

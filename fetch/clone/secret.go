package clone

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/seed-26586806/backing-image-manager/disk/luks"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// secret is what a folder below the secrets directory holds: a secret of Longhorn's as
// Kubernetes mounts it, each key a file.
type secret struct {
	passphrase []byte // CRYPTO_KEY_VALUE, byte for byte

	// For new headers only.
	hash       string // CRYPTO_KEY_HASH
	keyBits    int    // CRYPTO_KEY_SIZE
	pbkdf      string // CRYPTO_PBKDF
	iterations int64  // CRYPTO_PBKDF_FORCE_ITERATIONS; 0: cryptsetup measures
	memory     int64  // CRYPTO_PBKDF_MEMORY in KiB; 0: cryptsetup looks at the machine
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

// maxSecret bounds each file, as Kubernetes bounds a secret.
const maxSecret = 1 << 20

func fail(class fetch.Class, format string, args ...any) error {
	return &fetch.Error{Class: class, Err: fmt.Errorf(format, args...)}
}

// readSecret reads a folder anew, so that a secret that was mended counts from the next
// try on. Its errors never quote what a file holds.
func readSecret(dir, name string) (*secret, error) {
	if dir == "" {
		return nil, fail(fetch.BadConfig, "secret %q is declared, but no secrets directory is given", name)
	}
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, `/\`) {
		return nil, fail(fetch.BadConfig, "secret %q: write the name of one folder", name)
	}
	files, err := readFiles(dir, name)
	if err != nil {
		return nil, fail(fetch.BadConfig, "secret %q: %w", name, err)
	}
	s, err := parseSecret(files)
	if err != nil {
		return nil, fail(fetch.BadConfig, "secret %q: %w", name, err)
	}
	return s, nil
}

// readFiles reads the files that matter. A mounted secret has them as symbolic links
// to a hidden folder beside them.
func readFiles(dir, name string) (map[string][]byte, error) {
	secrets, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open secrets directory: %w", err)
	}
	defer secrets.Close()
	folder, err := secrets.OpenRoot(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("there is no such folder in the secrets directory")
	}
	if err != nil {
		return nil, fmt.Errorf("open folder: %w", err)
	}
	defer folder.Close()
	entries, err := fs.ReadDir(folder.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("list folder: %w", err)
	}
	files := map[string][]byte{}
	for _, entry := range entries {
		file := entry.Name()
		if strings.HasPrefix(file, "CRYPTO_") && !slices.Contains(secretFiles, file) {
			return nil, fmt.Errorf("file %q is not known: use %s", file, strings.Join(secretFiles, ", "))
		}
		if !slices.Contains(secretFiles, file) {
			continue // a secret may serve others too
		}
		if files[file], err = readFile(folder, file); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func readFile(folder *os.Root, name string) ([]byte, error) {
	f, err := folder.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe may be there
	if err != nil {
		return nil, fmt.Errorf("open file: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%q is not a file", name)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	if len(b) > maxSecret {
		return nil, fmt.Errorf("file %q is larger than %d bytes", name, maxSecret)
	}
	return b, nil
}

// parseSecret has Longhorn's defaults.
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
		return nil, fmt.Errorf("file %q is missing or empty: it has to hold the passphrase", fileValue)
	case text(fileProvider, "secret") != "secret":
		return nil, fmt.Errorf("file %q names another provider of keys than \"secret\", which alone is supported", fileProvider)
	case text(fileCipher, cipher) != cipher:
		return nil, fmt.Errorf("file %q names another cipher than %s, which alone is supported", fileCipher, cipher)
	case !luks.SupportsHash(s.hash):
		return nil, fmt.Errorf("file %q names a hash that is not supported: use sha256 or sha512", fileHash)
	case s.pbkdf != "argon2i" && s.pbkdf != "argon2id" && s.pbkdf != "pbkdf2":
		return nil, fmt.Errorf("file %q has to say argon2i, argon2id or pbkdf2", filePBKDF)
	}
	switch text(fileSize, "256") {
	case "256":
		s.keyBits = 256
	case "512":
		s.keyBits = 512
	default:
		return nil, fmt.Errorf("file %q has to say 256 or 512: a key for XTS is two keys in one", fileSize)
	}
	for file, number := range map[string]*int64{fileIterations: &s.iterations, fileMemory: &s.memory} {
		var err error
		if *number, err = strconv.ParseInt(text(file, "0"), 10, 64); err != nil || *number < 0 {
			return nil, fmt.Errorf("file %q does not hold a number", file)
		}
	}
	return s, nil
}

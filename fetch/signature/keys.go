package signature

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/seed-26586806/backing-image-manager/internal/smallfile"
)

const (
	// MaxSize is the maximum size of a signature in bytes.
	MaxSize = 1 << 20
	// MaxList is the maximum size of a list in bytes. The list of all releases of Ubuntu has about 5 MiB.
	MaxList = 16 << 20
	// MaxKeyFile is the maximum size of a file with keys in bytes. The keys of all releases of a distribution have
	// less than 100 KiB.
	MaxKeyFile = 4 << 20
	// maxKeyFiles is the maximum number of files in a folder.
	maxKeyFiles = 200
)

// Keys are the keys of one folder for one scheme. Keys is safe for concurrent use.
type Keys struct {
	scheme   Scheme
	warnings []string

	openPGP  []openPGPKey
	minisign []minisignKey
	signify  []signifyKey
	cosign   []cosignKey
}

// Warnings returns one line for each file that should not be in the folder but does not prevent its use, such as a
// secret key.
func (k *Keys) Warnings() []string { return k.warnings }

// ReadKeys reads all files of the folder dir, without its subfolders and without names that begin with a dot. It returns
// an *Error with BadKeyFile if a file is not a public key of the scheme, and with NoKeys if there is none, so that a
// damaged folder never verifies with fewer keys than it should have.
func ReadKeys(dir string, scheme Scheme) (*Keys, error) {
	files, err := KeyFiles(dir)
	if err != nil {
		return nil, err
	}
	k, err := NewKeys(scheme, files)
	if err != nil {
		return nil, err
	}
	if len(k.openPGP)+len(k.minisign)+len(k.signify)+len(k.cosign) == 0 {
		return nil, Errorf(NoKeys, "folder %s contains no %s key: put the public key of the signer there", dir, scheme)
	}
	return k, nil
}

// NewKeys parses files that KeyFiles has read. Unlike ReadKeys, it accepts files without any key.
func NewKeys(scheme Scheme, files []KeyFile) (*Keys, error) {
	k := &Keys{scheme: scheme}
	for _, f := range files {
		if err := k.add(f.Name, f.Bytes); err != nil {
			return nil, err
		}
	}
	return k, nil
}

func (k *Keys) add(name string, b []byte) error {
	if bytes.HasPrefix(bytes.TrimSpace(b), []byte("<")) {
		return Errorf(BadKeyFile, "%s is a web page, not a key: get the file itself", name)
	}
	switch k.scheme {
	case OpenPGP:
		return k.addOpenPGP(name, b)
	case Minisign:
		return k.addMinisign(name, b)
	case Signify:
		return k.addSignify(name, b)
	case Cosign:
		return k.addCosign(name, b)
	}
	panic("signature: unknown scheme " + string(k.scheme))
}

func (k *Keys) warnSecret(name string) {
	k.warnings = append(k.warnings, Errorf("", "%s is a secret key: remove it, only public keys belong here", name).Text)
}

// KeyFile is a file of a folder with keys.
type KeyFile struct {
	Name  string // without the folder
	Bytes []byte
}

// KeyFiles reads the files of the folder dir in the order of their names, without subfolders and names that begin with a
// dot. Errors are an *Error with BadKeyFile or NoKeys.
func KeyFiles(dir string) ([]KeyFile, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, Errorf(NoKeys, "folder %s does not exist: create it and put the keys there", dir)
	}
	if err != nil {
		return nil, Errorf(BadKeyFile, "%v", err)
	}
	var files []KeyFile
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		info, err := os.Stat(path) // the files of a mounted Secret are symlinks
		if err != nil {
			return nil, Errorf(BadKeyFile, "%v", err)
		}
		if info.IsDir() {
			continue
		}
		if !info.Mode().IsRegular() {
			return nil, Errorf(BadKeyFile, "%s is not a regular file: remove it from the folder", path)
		}
		if len(files) == maxKeyFiles {
			return nil, Errorf(BadKeyFile, "folder %s contains more than %d files: keep only the keys there", dir, maxKeyFiles)
		}
		b, err := smallfile.ReadAt(path, MaxKeyFile)
		if err != nil {
			return nil, Errorf(BadKeyFile, "%v", err)
		}
		files = append(files, KeyFile{Name: e.Name(), Bytes: b})
	}
	return files, nil
}

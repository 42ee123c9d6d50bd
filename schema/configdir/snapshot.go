package configdir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// ErrChanging is returned when the directory changed while it was read, so that the
// content that was read may be a mix of two states. The caller should read it again.
var ErrChanging = errors.New("the directory is changing")

// changingError is ErrChanging with the file that changed.
type changingError struct{ path string }

func (e *changingError) Error() string { return fmt.Sprintf("%v: %s", ErrChanging, e.path) }

func (e *changingError) Unwrap() error { return ErrChanging }

// File is one file of a config directory as it was at one moment.
type File struct {
	Path string // relative to the directory, with slashes
	Data []byte // nil when Err is set
	Err  error  // why it could not be read; its text does not repeat Path
}

// Snapshot is the content of a config directory at one moment: its files
// *.yaml, *.yml, *.json and *.cue. Whatever hides files, such as a folder
// without read permission or a symlink that leaves the directory, is a File with Err.
type Snapshot struct {
	Files []File // sorted by Path

	// Busy is true while git writes to the checkout that the directory
	// belongs to: the checkout has an index.lock. A git process that was killed leaves
	// the lock behind.
	Busy bool

	// Revision is the commit of that checkout, in hex. It is "" when there is no checkout
	// or the commit is unknown. Uncommitted changes do not count.
	Revision string

	// Checkout is where that checkout is. It is zero if there is none.
	Checkout Checkout
}

// Checkout is the checkout of a git repository that a config directory belongs to. Paths are absolute and without symlinks.
type Checkout struct {
	GitDir string // the git directory, which names the commit that is checked out
	Root   string // the folder with the files of that commit
	Folder string // the config directory, relative to Root, with slashes; "." is Root
}

// Digest identifies paths and contents, and nothing else: two directories
// with the same files have the same digest, however the files got there.
func (s Snapshot) Digest() ident.Digest {
	h := ident.SHA256.New()
	part := func(b []byte) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}
	for _, f := range s.Files {
		part([]byte(f.Path))
		if f.Err != nil {
			part([]byte("error"))
			part([]byte(f.Err.Error()))
			continue
		}
		part([]byte("data"))
		part(f.Data)
	}
	return ident.SHA256.Digest(h)
}

// Read reads the config directory dir as it is at one moment. It skips names that
// begin with a dot. It follows symlinks within the directory, and reads each file and
// folder once, however many symlinks lead to it. It discards the result if the names or the files
// changed meanwhile, so that a swap of a symlink never mixes two generations.
//
// A file that cannot be read is an error in its File. Read fails if the directory is
// missing, unreadable or too large, and with ErrChanging if it changed during each of a
// few attempts. After an error, the Snapshot has only Busy. An empty directory is not an error.
func Read(dir string) (s Snapshot, err error) {
	const attempts = 3
	for range attempts {
		s, err = readOnce(dir)
		// A symlink on the way to the directory may be swapped while it is followed.
		if !errors.Is(err, ErrChanging) && !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return s, err
}

func readOnce(dir string) (s Snapshot, _ error) {
	t, err := openTree(dir)
	if err != nil {
		return s, err
	}
	defer t.root.Close() // only read from: no error matters
	s.Busy = t.git.locked()
	files, err := t.readFiles()
	if err != nil {
		return s, fmt.Errorf("read %s: %w", dir, err)
	}
	after, err := openTree(dir)
	// Git may have started after the first check, so check at both ends of the read.
	s.Busy = s.Busy || t.git.locked()
	if err != nil {
		return s, err
	}
	defer after.root.Close() // only read from: no error matters
	if err := t.change(after); err != nil {
		return s, fmt.Errorf("read %s: %w", dir, err)
	}
	s.Files, s.Revision, s.Checkout = files, t.git.revision(), t.git.at(t.real)
	return s, nil
}

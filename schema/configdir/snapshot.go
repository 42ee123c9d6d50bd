package configdir

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// ErrChanging is returned when the directory changed during each of a few reads.
var ErrChanging = errors.New("the directory is changing")

// File is one file of a config directory as it was read.
type File struct {
	Path string // relative to the directory, with slashes
	Data []byte // nil when Err is set
	Err  error  // why it could not be read; its text does not repeat Path
}

// Snapshot is the content of a config directory as it was read: its files
// *.yaml, *.yml, *.json and *.cue. Whatever hides files, such as a folder
// without read permission or a symlink that leaves the directory, is a File with Err.
type Snapshot struct {
	Files []File // sorted by Path

	// Busy is true while git writes to the checkout that the directory
	// belongs to: the checkout has an index.lock. A git process that was killed leaves
	// the lock behind: a Debouncer ignores it after some time.
	Busy bool

	// Revision is the commit of that checkout, in hex. It is "" when there is no checkout
	// or the commit is unknown. Uncommitted changes do not count.
	Revision string

	// Checkout is the place of that checkout. It is zero without a checkout.
	Checkout Checkout
}

// Checkout is the checkout of a git repository that a config directory belongs to. Paths are absolute and without symlinks.
type Checkout struct {
	GitDir string // the git directory, which names the commit that is checked out
	Root   string // the folder with the files of that commit
	Folder string // the config directory, relative to Root, with slashes; "." is Root
}

// Digest identifies exactly the paths and the contents: two directories
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

// Read reads the config directory dir. It skips names that begin with a dot. It follows symlinks within the directory, and
// reads each file and folder once, however many symlinks lead to it. If the directory changes meanwhile, the result may mix
// two states. Content is known to have existed at one moment only if two reads return the same (ReadTwice, Debouncer).
//
// A file that cannot be read is an error in its File. Read fails if the directory is missing, unreadable or too large, or if
// a name in it disappears while it is read. After an error, only the field Busy is valid. An empty directory is not an error.
func Read(dir string) (s Snapshot, err error) {
	t, err := openTree(dir)
	if err != nil {
		return s, fmt.Errorf("read config directory: %w", err)
	}
	defer t.root.Close() // only read from: no error matters
	s.Busy = t.git.locked()
	if s.Files, err = t.readFiles(); err != nil {
		return s, fmt.Errorf("read config directory: %w", err)
	}
	s.Revision, s.Checkout = t.git.revision(), t.git.at(t.real)
	s.Busy = s.Busy || t.git.locked() // git may have started after the first check
	return s, nil
}

// ReadTwice reads the config directory dir until two consecutive reads have the same content. It returns ErrChanging if
// a few reads do not suffice.
func ReadTwice(dir string) (Snapshot, error) {
	const attempts = 3
	s, err := Read(dir)
	for range attempts {
		before, failed := s, err
		// A read may fail while a symlink on the way to the directory is swapped.
		if s, err = Read(dir); failed != nil || err != nil {
			continue
		}
		if before.Digest() == s.Digest() {
			return s, nil
		}
	}
	if err == nil {
		err = fmt.Errorf("read %s: %w", dir, ErrChanging)
	}
	return Snapshot{Busy: s.Busy}, err
}

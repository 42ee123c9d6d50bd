package configdir

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// ErrChanging says that the directory changed while it was read, so that
// what was read may be a mix. Reading it again is all that helps.
var ErrChanging = errors.New("the directory is changing")

// File is one file of a config directory as it was at one moment.
type File struct {
	Path string // relative to the directory, with slashes
	Data []byte // nil when Err is set
	Err  error  // why it could not be read; its text does not repeat Path
}

// Snapshot is the content of a config directory at one moment: its files
// *.yaml, *.yml, *.json and *.cue, and what hides some of them (a folder that
// may not be read, a link that leads out of the directory) as Files with Err.
type Snapshot struct {
	Files []File // sorted by Path

	// Whole says that all of it came through one swap of a link: the
	// directory is a link itself, as git-sync has it, or all its files are
	// behind ..data, as in a ConfigMap. A swap comes when writing is done, so
	// content that arrived with one is complete. Only the swap says so: what
	// changes later in the same Generation was changed in place.
	Whole      bool
	Generation string // of a Whole snapshot: another one after each swap

	// Busy says that git is at work on the checkout that the directory
	// belongs to (it holds index.lock). A git that was killed leaves it so.
	Busy bool

	// Revision is the commit of that checkout, in hex, "" where there is none or it
	// cannot be told. What was changed since in the checkout is not looked for.
	Revision string
}

// Digest identifies paths and contents, and nothing else: two directories
// of the same files, however they got there, have the same.
func (s Snapshot) Digest() disk.Digest {
	h := disk.SHA256.New()
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
	return disk.SHA256.Sum(h)
}

// Equal reports whether both hold the same paths with the same contents.
func (s Snapshot) Equal(t Snapshot) bool { return s.Digest() == t.Digest() }

// Read reads the config directory dir as it is at one moment. Names that
// begin with a dot are skipped; links are followed within the directory,
// each file and folder being read once however many links lead to it. Every
// link, dir itself included, is resolved once, and the look is thrown away
// if one of them changed meanwhile: a swap never mixes two generations.
//
// A file that cannot be read is an error of that File. A directory that is
// missing, unreadable or beyond all bounds is an error, and so is one that
// changed under each of a few looks (ErrChanging). An empty one is not.
func Read(dir string) (Snapshot, error) {
	const looks = 3
	var err error
	for range looks {
		var s Snapshot
		if s, err = look(dir); !errors.Is(err, ErrChanging) {
			return s, err
		}
	}
	return Snapshot{}, err
}

func look(dir string) (s Snapshot, err error) {
	t, err := openTree(dir)
	if err != nil {
		return s, err
	}
	defer t.root.Close() // only read from: nothing to lose
	s.Busy = t.busy()
	if err := t.walk(); err != nil {
		return s, fmt.Errorf("read %s: %w", dir, err)
	}
	if s.Files, err = t.readFiles(); err != nil {
		return s, fmt.Errorf("read %s: %w", dir, err)
	}
	if !t.unchanged() {
		return s, fmt.Errorf("read %s: %w", dir, ErrChanging)
	}
	s.Busy = s.Busy || t.busy()
	if t.git != "" {
		s.Revision = checkoutOf(t.git).revision()
	}
	s.Generation = t.generation()
	s.Whole = s.Generation != ""
	return s, nil
}

// Folders returns the folders that ReadDir reads from, as absolute paths
// without links, and the files that git replaces in the checkout that dir belongs to
// when it has done something there, for those who want to be told of changes in them.
func Folders(dir string) (folders, git []string, err error) {
	t, err := openTree(dir)
	if err != nil {
		return nil, nil, err
	}
	defer t.root.Close() // only read from: nothing to lose
	if err := t.walk(); err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", dir, err)
	}
	if t.git != "" {
		git = checkoutOf(t.git).marks()
	}
	return t.absoluteFolders(), git, nil
}

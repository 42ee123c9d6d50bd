package repository

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// ErrDiffers means that the files of a config directory differ from the files of the commit. While git changes the
// checkout, they may differ for a moment.
var ErrDiffers = errors.New("differs from the commit")

// Limits of a tree.
const (
	maxEntries = 200_000 // files and folders that are read
	maxDepth   = 64      // levels of folders
)

// Compare returns nil if the files of a snapshot are exactly the configuration files of a commit below a folder of its tree:
// the same names with the same bytes. The folder has slashes; "." is the whole tree. Compare ignores symlinks and submodules,
// so a file that the snapshot has through a symlink is an error. A file that git converts in the checkout (line ends,
// filters) is an error, too. The error wraps ErrDiffers, or says why the commit cannot be read.
func (r Repository) Compare(ctx context.Context, commit, folder string, files []configdir.File) error {
	want := map[string]string{}
	err := r.read(ctx, func(o *objects) error {
		b, err := o.get(commit, "commit", maxCommit)
		if err != nil {
			return err
		}
		trees := headers(b, "tree")
		if len(trees) != 1 {
			return fmt.Errorf("commit %s has %d trees", commit, len(trees))
		}
		t := &walk{objects: o, files: want}
		root, err := t.find(trees[0], folder)
		if err != nil {
			return err
		}
		return t.add(root, "", 0)
	})
	if err != nil {
		return err
	}
	return compare(commit, want, files)
}

func compare(commit string, want map[string]string, files []configdir.File) error {
	for _, f := range files {
		if f.Err != nil {
			return fmt.Errorf("%s: %w", f.Path, f.Err)
		}
		id, ok := want[f.Path]
		if !ok {
			return fmt.Errorf("%s %w %s: the commit does not have this file", f.Path, ErrDiffers, commit)
		}
		h, err := newHash(id)
		if err != nil {
			return err
		}
		if name(h, "blob", f.Data) != id {
			return fmt.Errorf("%s %w %s: it has other bytes", f.Path, ErrDiffers, commit)
		}
		delete(want, f.Path)
	}
	if len(want) > 0 {
		var missing []string
		for path := range want {
			missing = append(missing, path)
		}
		return fmt.Errorf("%s %w %s: the config directory does not have this file", slices.Min(missing), ErrDiffers, commit)
	}
	return nil
}

// walk collects the configuration files of a tree.
type walk struct {
	*objects
	files   map[string]string // the names of the blobs by path
	entries int
}

// find returns the tree of a folder below a tree.
func (w *walk) find(tree, folder string) (string, error) {
	if folder == "." {
		return tree, nil
	}
	for _, step := range strings.Split(folder, "/") {
		entries, err := w.list(tree)
		if err != nil {
			return "", err
		}
		i := slices.IndexFunc(entries, func(e treeEntry) bool { return e.name == step })
		if i < 0 || entries[i].mode != modeTree {
			return "", fmt.Errorf("folder %s %w: the commit does not have it", folder, ErrDiffers)
		}
		tree = entries[i].id
	}
	return tree, nil
}

// add adds the configuration files below a tree. The argument at is the folder of the tree. It skips what configdir skips.
func (w *walk) add(tree, at string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("folder %s is more than %d levels deep", at, maxDepth)
	}
	entries, err := w.list(tree)
	if err != nil {
		return err
	}
	for _, e := range entries {
		to := path.Join(at, e.name)
		switch {
		case strings.HasPrefix(e.name, "."):
		case e.mode == modeTree:
			if err := w.add(e.id, to, depth+1); err != nil {
				return err
			}
		case (e.mode == modeFile || e.mode == modeProgram || e.mode == modeGroupFile) && configdir.IsConfig(e.name):
			w.files[to] = e.id
		}
	}
	return nil
}

// Modes of the files and folders of a tree. Other entries are symlinks and submodules.
const (
	modeTree      = "40000"
	modeFile      = "100644"
	modeProgram   = "100755"
	modeGroupFile = "100664" // of early versions of git
)

// treeEntry is a file or a folder in a tree.
type treeEntry struct{ mode, name, id string }

// list returns the entries of a tree.
func (w *walk) list(tree string) ([]treeEntry, error) {
	b, err := w.get(tree, "tree", maxTree)
	if err != nil {
		return nil, err
	}
	entries, err := parseTree(b, len(tree)/2)
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", tree, err)
	}
	if w.entries += len(entries); w.entries > maxEntries {
		return nil, fmt.Errorf("the commit has more than %d files and folders", maxEntries)
	}
	return entries, nil
}

var errMalformed = errors.New("is malformed")

// parseTree parses a tree. The object name in each entry has n bytes.
func parseTree(b []byte, n int) ([]treeEntry, error) {
	var entries []treeEntry
	seen := map[string]bool{}
	for len(b) > 0 {
		head, rest, ok := bytes.Cut(b, []byte{0})
		mode, name, ok2 := strings.Cut(string(head), " ")
		if !ok || !ok2 || len(rest) < n || name == "" || strings.Contains(name, "/") || seen[name] {
			return nil, errMalformed
		}
		seen[name] = true
		entries = append(entries, treeEntry{mode, name, hex.EncodeToString(rest[:n])})
		b = rest[n:]
	}
	return entries, nil
}

package configdir

import (
	"bufio"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// checkout has the folders of the git directory of a checkout. nil: the config directory is in no checkout.
//
// Anybody may have written the files of a config directory, and names such as .git, HEAD and
// commondir are valid keys of a ConfigMap. So this package accepts only the layouts that git itself
// creates, and reads only files of the git directory: see openCheckout.
type checkout struct {
	common string // contains the branches
	own    string // the git directory, which contains HEAD and the index, below common: ".", or for a worktree "worktrees/<name>"
	root   string // the folder with .git
}

// openCheckout returns the checkout that contains a folder, or nil. The argument real is the absolute
// path of the folder without symlinks. openCheckout never fails: a checkout that cannot be read has no
// revision, and no decision depends on the revision.
func openCheckout(real string) *checkout {
	for dir := real; ; dir = filepath.Dir(dir) {
		if dot, err := os.Lstat(filepath.Join(dir, ".git")); err == nil {
			return checkoutAt(dir, dot, real)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// checkoutAt returns the checkout with the files in the folder dir. The argument dot describes its .git.
//
//   - In a volume of Kubernetes, .git is a key of a ConfigMap. Git never creates it there.
//   - A .git folder is the git directory itself. Git writes commondir only for a worktree, whose
//     git directory is never a .git folder.
//   - In a worktree or a submodule, git creates .git as a file or a symlink that names the git
//     directory. The git directory must be outside the checkout and outside the config directory,
//     so that somebody who can write the files of the checkout cannot write the git directory.
func checkoutAt(dir string, dot fs.FileInfo, real string) *checkout {
	own := filepath.Join(dir, ".git")
	switch {
	case inVolume(dir):
		return nil
	case dot.IsDir():
		if isRepository(own) && !exists(own, "commondir") {
			return &checkout{own, ".", dir}
		}
		return nil
	case dot.Mode().IsRegular():
		if own = pathIn(own, "gitdir: "); own == "" {
			return nil // not a file of git: the Debouncer decides without a lock of git
		}
	}
	git, err := filepath.EvalSymlinks(own)
	if err != nil || within(git, real) {
		return nil
	}
	if isRepository(git) && !exists(git, "commondir") {
		return &checkout{git, ".", dir}
	}
	if common := filepath.Dir(filepath.Dir(git)); isWorktree(git, common) {
		return &checkout{common, filepath.Join("worktrees", filepath.Base(git)), dir}
	}
	return nil
}

// inVolume reports whether the folder, or one around it, is a volume that the kubelet writes.
func inVolume(dir string) bool {
	for ; ; dir = filepath.Dir(dir) {
		if exists(dir, swapLink) {
			return true
		}
		if dir == filepath.Dir(dir) {
			return false
		}
	}
}

// pathIn returns the path that a file of git names after a prefix, or "".
func pathIn(file, prefix string) string {
	line, err := firstLine(os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0))
	target, ok := strings.CutPrefix(line, prefix)
	if err != nil || !ok {
		return ""
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(file), target)
	}
	return target
}

// isRepository reports whether the folder has what git creates in every repository.
func isRepository(dir string) bool {
	return isFolder(dir, "objects") && isFile(dir, "config") && isFile(dir, "HEAD")
}

// isWorktree reports whether the folder git is the git directory of a worktree of the repository
// common. Git creates such a directory in the folder "worktrees" of the repository. Its file commondir
// names the repository, and its file gitdir names the worktree.
func isWorktree(git, common string) bool {
	return filepath.Base(filepath.Dir(git)) == "worktrees" && isRepository(common) && isFile(git, "HEAD") && isFile(git, "gitdir") &&
		filepath.Clean(pathIn(filepath.Join(git, "commondir"), "")) == common
}

func exists(dir, name string) bool {
	_, err := os.Lstat(filepath.Join(dir, name))
	return err == nil
}

func isFolder(dir, name string) bool {
	fi, err := os.Stat(filepath.Join(dir, name))
	return err == nil && fi.IsDir()
}

func isFile(dir, name string) bool {
	fi, err := os.Stat(filepath.Join(dir, name))
	return err == nil && fi.Mode().IsRegular()
}

// within reports whether the clean absolute path is the folder or below it.
func within(path, folder string) bool {
	rel, err := filepath.Rel(folder, path)
	return err == nil && filepath.IsLocal(rel)
}

// at returns the Checkout of a config directory. The argument real is its absolute path without symlinks.
func (c *checkout) at(real string) Checkout {
	if c == nil {
		return Checkout{}
	}
	folder, err := filepath.Rel(c.root, real)
	if err != nil {
		return Checkout{} // this does not happen, because both paths are absolute
	}
	return Checkout{GitDir: filepath.Join(c.common, c.own), Root: c.root, Folder: filepath.ToSlash(folder)}
}

// locked reports whether git is writing to the checkout. Git creates index.lock before it writes the
// first file, and renames index.lock after the last file.
func (c *checkout) locked() bool {
	return c != nil && exists(filepath.Join(c.common, c.own), "index.lock")
}

// Size limits of the files that are read below a git directory. Git writes no larger files there.
const (
	maxRef    = 4096
	maxPacked = 64 << 20
)

var commitPattern = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// revision returns the commit that is checked out. It returns "" if there is no commit yet or the
// commit cannot be read. Uncommitted changes do not change the revision.
func (c *checkout) revision() string {
	if c == nil {
		return ""
	}
	const maxRefs = 5 // the maximum length of a chain of symbolic refs, as in git
	at, err := firstLine(openIn(c.common, path.Join(c.own, "HEAD")))
	for range maxRefs {
		if err != nil {
			return ""
		}
		if commitPattern.MatchString(at) {
			return at
		}
		ref, ok := symbolicRef(at)
		if !ok {
			return ""
		}
		// Git removes the file of a ref only after it has packed the ref.
		if at, err = firstLine(openIn(c.common, ref)); err != nil {
			at, err = packedRef(c.common, ref)
		}
	}
	return ""
}

// watchFiles returns the files that git replaces at the end of an operation: its lock, and the files
// that name the commit that is checked out.
func (c *checkout) watchFiles() []string {
	if c == nil {
		return nil
	}
	own := filepath.Join(c.common, c.own)
	files := []string{filepath.Join(own, "index.lock"), filepath.Join(own, "HEAD")}
	if head, err := firstLine(openIn(c.common, path.Join(c.own, "HEAD"))); err == nil {
		if ref, ok := symbolicRef(head); ok {
			files = append(files, filepath.Join(c.common, ref))
		}
	}
	return files
}

// packedRef returns the commit of a ref that git has packed into one file with other refs.
func packedRef(common, ref string) (commit string, err error) {
	f, err := openIn(common, "packed-refs")
	err = readRegular(f, err, maxPacked, func(r io.Reader) error {
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			if sum, name, ok := strings.Cut(lines.Text(), " "); ok && name == ref {
				commit = sum
				return nil
			}
		}
		return cmp.Or(lines.Err(), fs.ErrNotExist)
	})
	return commit, err
}

// symbolicRef returns the ref that the text of a symbolic ref names, and whether it names one. Git
// accepts no name with "..".
func symbolicRef(text string) (ref string, ok bool) {
	ref, ok = strings.CutPrefix(text, "ref: ")
	return ref, ok && strings.HasPrefix(ref, "refs/") && path.Clean(ref) == ref && !strings.Contains(ref, "..")
}

// openIn opens a file below a folder for reading. It follows no symlink out of the folder, and never blocks on a FIFO.
func openIn(dir, name string) (*os.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close() // only read from: no error matters
	return root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// firstLine returns the first line of a small file, and closes the file. The arguments are the results
// of opening the file. An empty line is an error.
func firstLine(f *os.File, err error) (line string, _ error) {
	err = readRegular(f, err, maxRef, func(r io.Reader) error {
		b, err := io.ReadAll(r)
		line, _, _ = strings.Cut(string(b), "\n")
		if line = strings.TrimSpace(line); line == "" {
			err = cmp.Or(err, io.ErrUnexpectedEOF)
		}
		return err
	})
	return line, err
}

var errNotRefFile = errors.New("not a file that git writes: it has another type, or is too large")

// readRegular reads a regular file of at most limit bytes, and closes it. The arguments f and err are the results of opening it.
func readRegular(f *os.File, err error, limit int64, read func(io.Reader) error) error {
	if err != nil {
		return err
	}
	defer f.Close() // only read from: no error matters
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if fi.Mode()&fs.ModeType != 0 || fi.Size() > limit {
		return errNotRefFile
	}
	return read(io.LimitReader(f, limit))
}

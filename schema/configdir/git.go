package configdir

import (
	"bufio"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// locked reports whether git is writing to the checkout. Git creates index.lock
// before it writes the first file, and renames it after the last.
func (c *checkout) locked() bool {
	if c == nil {
		return false
	}
	_, err := os.Lstat(filepath.Join(c.git, "index.lock"))
	return err == nil
}

// gitDir returns the git directory of the checkout that the folder at the
// absolute path real belongs to: a .git in it or above it, or the target of a .git
// file (of a worktree or submodule). It returns false when there is none.
func gitDir(real string) (string, bool) {
	for dir := real; ; dir = filepath.Dir(dir) {
		dot := filepath.Join(dir, ".git")
		if fi, err := os.Stat(dot); err == nil && fi.IsDir() {
			return dot, true
		} else if err == nil && fi.Mode().IsRegular() && fi.Size() < 2*maxPath {
			return gitFileTarget(dir, dot)
		}
		if dir == filepath.Dir(dir) {
			return "", false
		}
	}
}

func gitFileTarget(dir, dot string) (string, bool) {
	b, err := os.ReadFile(dot)
	target, ok := strings.CutPrefix(strings.TrimSpace(string(b)), "gitdir: ")
	if err != nil || !ok {
		return "", false // not a file of git; without the lock, the Debouncer decides alone
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(dir, target)
	}
	return target, true
}

// checkout is a git directory, seen from one checkout. nil is a folder without a checkout.
type checkout struct {
	git    string // contains HEAD and the index
	common string // contains the branches; differs from git only for a worktree
}

// Limits of what is read below a git directory. Git writes no larger files there.
const (
	maxRef    = 4096
	maxPacked = 64 << 20
)

var commitPattern = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// openCheckout returns the checkout that the folder at the absolute path real belongs to,
// nil if there is none. It never fails: an unreadable checkout has no revision, and no
// decision depends on the revision.
func openCheckout(real string) *checkout {
	git, ok := gitDir(real)
	if !ok {
		return nil
	}
	c := &checkout{git: git, common: git}
	if target, err := firstLine(filepath.Join(git, "commondir")); err == nil {
		if c.common = target; !filepath.IsAbs(target) {
			c.common = filepath.Join(git, target)
		}
	}
	return c
}

// head returns the content of HEAD: a commit, or the name of a ref.
func (c *checkout) head() (string, error) { return firstLine(filepath.Join(c.git, "HEAD")) }

// revision returns the commit that is checked out. It returns "" if there is none yet or it
// cannot be read. Uncommitted changes do not count.
func (c *checkout) revision() string {
	if c == nil {
		return ""
	}
	const maxRefs = 5 // that name another ref; git has the same limit
	at, err := c.head()
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
		if at, err = firstLine(c.refFile(ref)); err != nil {
			at, err = c.packedRef(ref)
		}
	}
	return ""
}

// refFile returns the file of a ref that is not packed. Some refs belong to the worktree
// and not to the repository.
func (c *checkout) refFile(ref string) string {
	for _, own := range []string{"refs/bisect/", "refs/worktree/", "refs/rewritten/"} {
		if strings.HasPrefix(ref, own) {
			return filepath.Join(c.git, ref)
		}
	}
	return filepath.Join(c.common, ref)
}

// packedRef returns the commit of a ref that git has packed into one file with other refs.
// Git removes the file of a ref only after it has packed the ref, so a caller that reads the
// file first finds the ref in one of the two.
func (c *checkout) packedRef(ref string) (commit string, err error) {
	err = readRegular(filepath.Join(c.common, "packed-refs"), maxPacked, func(r io.Reader) error {
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

// watchFiles returns the files that git replaces when it ends an operation: its lock, and
// those that name the commit that is checked out.
func (c *checkout) watchFiles() []string {
	if c == nil {
		return nil
	}
	files := []string{filepath.Join(c.git, "index.lock"), filepath.Join(c.git, "HEAD")}
	if head, err := c.head(); err == nil {
		if ref, ok := symbolicRef(head); ok {
			files = append(files, c.refFile(ref))
		}
	}
	return files
}

// symbolicRef returns the ref that the content of a symbolic ref names.
func symbolicRef(text string) (ref string, ok bool) {
	ref, ok = strings.CutPrefix(text, "ref: ")
	return ref, ok && strings.HasPrefix(ref, "refs/") && filepath.IsLocal(ref)
}

// firstLine returns the first line of a small file. An empty line is an error.
func firstLine(path string) (line string, err error) {
	err = readRegular(path, maxRef, func(r io.Reader) error {
		b, err := io.ReadAll(r)
		line, _, _ = strings.Cut(string(b), "\n")
		if line = strings.TrimSpace(line); line == "" {
			err = cmp.Or(err, io.ErrUnexpectedEOF)
		}
		return err
	})
	return line, err
}

var errNotRefFile = errors.New("not a regular file of that size")

// readRegular reads a regular file of at most limit bytes. It never blocks on a FIFO.
func readRegular(path string, limit int64, read func(io.Reader) error) error {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
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

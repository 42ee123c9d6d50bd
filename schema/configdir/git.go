package configdir

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// busy reports whether git is writing to the checkout. It makes index.lock
// before it touches the first file, and renames it after the last.
func (t *tree) busy() bool {
	if t.git == "" {
		return false
	}
	_, err := os.Lstat(filepath.Join(t.git, "index.lock"))
	return err == nil
}

// gitDir finds the git directory of the checkout that the folder at the
// absolute path real is in: a .git there or above, or where a .git file (of
// a worktree or submodule) points to. It is "" when there is none.
func gitDir(real string) string {
	for dir := real; ; dir = filepath.Dir(dir) {
		dot := filepath.Join(dir, ".git")
		if fi, err := os.Stat(dot); err == nil && fi.IsDir() {
			return dot
		} else if err == nil && fi.Mode().IsRegular() && fi.Size() < 2*maxPlace {
			return gitFile(dir, dot)
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
	}
}

func gitFile(dir, dot string) string {
	b, err := os.ReadFile(dot)
	to, ok := strings.CutPrefix(strings.TrimSpace(string(b)), "gitdir: ")
	if err != nil || !ok {
		return "" // not git's; the lock is a courtesy, stillness decides
	}
	if !filepath.IsAbs(to) {
		to = filepath.Join(dir, to)
	}
	return to
}

// checkout is a git directory as its checkout sees it.
type checkout struct {
	git    string // with HEAD and the index
	common string // with the branches; the same, but for a worktree
}

// Bounds of what is read below a git directory. Files beyond them are not git's.
const (
	maxRef    = 4096
	maxPacked = 64 << 20
)

var commitPattern = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// checkoutOf never fails: what cannot be read has no revision, and nothing is decided by
// one.
func checkoutOf(git string) checkout {
	c := checkout{git: git, common: git}
	if to := firstLine(filepath.Join(git, "commondir")); to != "" {
		if c.common = to; !filepath.IsAbs(to) {
			c.common = filepath.Join(git, to)
		}
	}
	return c
}

// head is what HEAD says: a commit, or which ref has it.
func (c checkout) head() string { return firstLine(filepath.Join(c.git, "HEAD")) }

// revision returns the commit that is checked out, "" if there is none yet or it cannot
// be told. What was changed in the checkout since is not looked for.
func (c checkout) revision() string {
	const most = 5 // refs that name another one, as git has it
	at := c.head()
	for range most {
		if commitPattern.MatchString(at) {
			return at
		}
		ref := refOf(at)
		if ref == "" {
			return ""
		}
		if at = firstLine(c.place(ref)); at == "" {
			at = c.packed(ref)
		}
	}
	return ""
}

// place is where a ref is a file by itself. Some belong to the worktree alone.
func (c checkout) place(ref string) string {
	for _, own := range []string{"refs/bisect/", "refs/worktree/", "refs/rewritten/"} {
		if strings.HasPrefix(ref, own) {
			return filepath.Join(c.git, ref)
		}
	}
	return filepath.Join(c.common, ref)
}

// packed looks a ref up among those that git has packed into one file. It takes the file
// of a ref away only after that.
func (c checkout) packed(ref string) (commit string) {
	_ = readPlain(filepath.Join(c.common, "packed-refs"), maxPacked, func(r io.Reader) error {
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			if sum, name, ok := strings.Cut(lines.Text(), " "); ok && name == ref {
				commit = sum
				break
			}
		}
		return lines.Err()
	})
	return commit
}

// marks are the files that git replaces when it has done something: its lock, and what
// says which commit is checked out.
func (c checkout) marks() []string {
	files := []string{filepath.Join(c.git, "index.lock"), filepath.Join(c.git, "HEAD")}
	if ref := refOf(c.head()); ref != "" {
		files = append(files, c.place(ref))
	}
	return files
}

// refOf returns the ref in the text of a ref that names another one.
func refOf(text string) string {
	ref, ok := strings.CutPrefix(text, "ref: ")
	if !ok || !strings.HasPrefix(ref, "refs/") || !filepath.IsLocal(ref) {
		return ""
	}
	return ref
}

// firstLine is the first line of a small file, "" if it cannot be read.
func firstLine(path string) (line string) {
	_ = readPlain(path, maxRef, func(r io.Reader) error {
		b, err := io.ReadAll(r)
		line, _, _ = strings.Cut(string(b), "\n")
		line = strings.TrimSpace(line)
		return err
	})
	return line
}

var errNotPlain = errors.New("not a plain file of that size")

// readPlain reads a regular file of at most so many bytes, and never waits for a FIFO.
func readPlain(path string, most int64, read func(io.Reader) error) error {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close() // only read from: nothing to lose
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if fi.Mode()&fs.ModeType != 0 || fi.Size() > most {
		return errNotPlain
	}
	return read(io.LimitReader(f, most))
}

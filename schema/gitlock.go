package schema

import (
	"os"
	"path/filepath"
	"strings"
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

package repository

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/pjbgf/sha1cd"

	"github.com/seed-26586806/backing-image-manager/internal/head"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Repository is the git directory of a repository or of a worktree.
type Repository struct{ gitDir string }

// Open returns the repository with a git directory. It does not read the directory yet.
func Open(gitDir string) Repository { return Repository{gitDir} }

const (
	maxCommit = 1 << 20  // bytes of a commit
	maxTree   = 16 << 20 // bytes of a tree
	// maxTime limits one call.
	maxTime = time.Minute
)

// ErrMissing means that the repository does not have an object, as after a shallow clone.
var ErrMissing = errors.New("the repository does not have it")

// Commit returns the bytes of a commit, as "git cat-file commit" prints them.
func (r Repository) Commit(ctx context.Context, id string) (object []byte, err error) {
	err = r.read(ctx, func(o *objects) error {
		object, err = o.get(id, "commit", maxCommit)
		return err
	})
	return object, err
}

// EachParent calls f(id, parent) for each parent that the repository has. A shallow clone lacks some parents. The argument
// object has the bytes of the commit.
func (r Repository) EachParent(ctx context.Context, object []byte, f func(id string, parent []byte) error) error {
	return r.read(ctx, func(o *objects) error {
		for _, id := range headers(object, "parent") {
			parent, err := o.get(id, "commit", maxCommit)
			if errors.Is(err, ErrMissing) {
				continue
			}
			if err == nil {
				err = f(id, parent)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// read runs git while f reads objects.
func (r Repository) read(ctx context.Context, f func(*objects) error) error {
	ctx, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	path, err := exec.LookPath("git")
	if err != nil {
		return errors.New("the program git is not installed: install it, because signed commits need it")
	}
	cmd := exec.CommandContext(ctx, path, "--git-dir="+r.gitDir, "--no-replace-objects", "cat-file", "--batch")
	// Git gets no other variables of the environment. It must not fetch the objects that a partial clone lacks, because
	// the configuration of the repository decides from where and by which program.
	cmd.Env = []string{"LC_ALL=C", "HOME=/nonexistent", "XDG_CONFIG_HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_ATTR_NOSYSTEM=1", "GIT_NO_LAZY_FETCH=1", "GIT_ALLOW_PROTOCOL=none", "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0"}
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	var stderr head.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run git: %w", err)
	}
	err = f(&objects{in: in, out: bufio.NewReader(out)})
	in.Close() // git ends
	if err != nil {
		cancel() // git may still be sending a large object
	}
	if ended := cmd.Wait(); ended != nil && stderr.String() != "" && !errors.Is(err, ErrMissing) {
		return fmt.Errorf("git cat-file: %s", document.Printable(strings.TrimSpace(stderr.String())))
	}
	return err
}

// objects reads objects from a running git.
type objects struct {
	in  io.Writer
	out *bufio.Reader
}

// get returns the object with the name id. An object of another kind or of more than limit bytes is an error.
func (o *objects) get(id, kind string, limit int64) ([]byte, error) {
	h, err := newHash(id)
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(o.in, id+"\n"); err != nil {
		return nil, fmt.Errorf("ask git for %s: %w", id, err)
	}
	line, err := o.out.ReadSlice('\n') // at most as long as the buffer
	if err != nil {
		return nil, fmt.Errorf("read %s from git: %w", id, noEOF(err))
	}
	fields := strings.Fields(string(line))
	switch {
	case len(fields) == 2 && fields[1] == "missing":
		return nil, fmt.Errorf("%s %s: %w", kind, id, ErrMissing)
	case len(fields) != 3 || fields[0] != id || fields[1] != kind:
		return nil, fmt.Errorf("%s is not a %s", id, kind)
	}
	size, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil || size < 0 || size > limit {
		return nil, fmt.Errorf("%s %s is larger than %d bytes", kind, id, limit)
	}
	b := make([]byte, size+1)
	if _, err := io.ReadFull(o.out, b); err != nil {
		return nil, fmt.Errorf("read %s from git: %w", id, noEOF(err))
	}
	b = b[:size] // a line break follows
	if name(h, kind, b) != id {
		return nil, fmt.Errorf("the repository is damaged: the bytes of %s %s are those of another object", kind, id)
	}
	return b, nil
}

// newHash returns the hash function for the names of the objects of a repository, by the length of the name id. For bytes that
// a known method made for a collision of SHA-1, sha1cd returns another value than SHA-1.
func newHash(id string) (hash.Hash, error) {
	switch len(id) {
	case 2 * sha1cd.Size:
		return sha1cd.New(), nil
	case 2 * sha256.Size:
		return sha256.New(), nil
	}
	return nil, fmt.Errorf("%q is not the name of an object", id)
}

// name returns the name of an object. The hash h must be new.
func name(h hash.Hash, kind string, b []byte) string {
	fmt.Fprintf(h, "%s %d\x00", kind, len(b))
	h.Write(b)
	return hex.EncodeToString(h.Sum(nil))
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// maxHistory limits how many commits IsDescendant reads.
const maxHistory = 200_000

// IsDescendant reports whether a commit is another commit or one of its descendants. The other commit has the name in the
// argument of, or bytes for which isOther returns true. ErrMissing means that the repository lacks history that would decide.
func (r Repository) IsDescendant(ctx context.Context, commit, of string, isOther func(object []byte) bool) (bool, error) {
	found := false
	err := r.read(ctx, func(o *objects) error {
		seen, next, missing := map[string]bool{commit: true}, []string{commit}, error(nil)
		for len(next) > 0 && !found {
			id := next[0]
			next = next[1:]
			if found = id == of; found {
				break
			}
			b, err := o.get(id, "commit", maxCommit)
			if errors.Is(err, ErrMissing) {
				missing = err
				continue
			}
			if err != nil {
				return err
			}
			found = isOther(b)
			for _, parent := range headers(b, "parent") {
				if !seen[parent] {
					seen[parent] = true
					next = append(next, parent)
				}
			}
			if len(seen) > maxHistory {
				return fmt.Errorf("the history of %s has more than %d commits", commit, maxHistory)
			}
		}
		if !found {
			return missing
		}
		return nil
	})
	return found, err
}

// headers returns the values of all headers with a name in a commit.
func headers(commit []byte, name string) (values []string) {
	for line := range bytes.Lines(commit) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		if len(line) == 0 {
			break // the message follows
		}
		if value, ok := bytes.CutPrefix(line, []byte(name+" ")); ok {
			values = append(values, string(value))
		}
	}
	return values
}

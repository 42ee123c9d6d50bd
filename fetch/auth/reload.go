package auth

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/smallfile"
)

const (
	reloadInterval = 2 * time.Second        // minimum interval between two reads of the files
	writeTime      = 500 * time.Millisecond // how long a program may need to write a file that it has emptied
	maxFileSize    = 1 << 20                // enough for the certificates of 500 authorities
)

// errNothingTrusted: a file with tokens or authorities is empty or missing. The parsed value trusts nobody.
var errNothingTrusted = errors.New("it is empty")

// reloader stores a value that it parses from small files. It parses them again when they change. If
// the files become invalid, it keeps the last valid value. But if the file with the tokens or
// authorities is emptied or removed, the value trusts nobody: this is how a person revokes credentials.
type reloader[T any] struct {
	what  string   // name of the value, for messages
	paths []string // "": the file is not given
	parse func(contents [][]byte) (T, error)
	log   *slog.Logger

	mu      sync.Mutex
	readAt  time.Time
	content []byte // fingerprint of the last content, valid or not
	value   T
}

// newReloader reads the files for the first time. An invalid file is then an error. Later an invalid
// file is only logged as a warning, once for each change.
func newReloader[T any](log *slog.Logger, what string, parse func([][]byte) (T, error), paths ...string) (*reloader[T], error) {
	r := &reloader[T]{what: what, paths: paths, parse: parse, log: log, readAt: time.Now()}
	var err error
	if r.value, r.content, err = r.read(); err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return r, nil
}

// current returns the value. It reads the files again if reloadInterval has passed.
func (r *reloader[T]) current() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.readAt) < reloadInterval {
		return r.value
	}
	value, found, err := r.read()
	if errors.Is(err, errNothingTrusted) && !bytes.Equal(found, r.content) {
		time.Sleep(writeTime) // a program may be writing the file now
		value, found, err = r.read()
	}
	r.readAt = time.Now()
	if bytes.Equal(found, r.content) {
		return r.value
	}
	r.content = found
	switch {
	case err == nil:
		r.value = value
		r.log.Info("reloaded "+r.what, "files", strings.Join(r.paths, ", "))
	case errors.Is(err, errNothingTrusted):
		r.value = value
		r.log.Error("accepting no "+r.what+" any more", "error", err)
	default:
		r.log.Warn("using the last valid "+r.what+": the changed files are invalid", "error", err)
	}
	return r.value
}

// read reads and parses the files. found is their fingerprint.
func (r *reloader[T]) read() (value T, found []byte, err error) {
	contents, err := readFiles(r.paths)
	found = fingerprint(contents, err)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return value, found, err
	}
	value, failed := r.parse(contents)
	if err != nil && errors.Is(failed, errNothingTrusted) {
		return value, found, fmt.Errorf("%w (%w)", err, failed)
	}
	return value, found, cmp.Or(err, failed)
}

// readFiles returns the contents of files. A missing file is an error, and is empty in the contents.
func readFiles(paths []string) (contents [][]byte, err error) {
	contents = make([][]byte, len(paths))
	for i, path := range paths {
		if path == "" {
			continue
		}
		data, failed := smallfile.ReadAt(path, maxFileSize)
		if errors.Is(failed, syscall.EISDIR) {
			failed = fmt.Errorf("%s is a folder, but must be a file", path)
		}
		if failed != nil && !errors.Is(failed, fs.ErrNotExist) {
			return nil, failed
		}
		contents[i], err = data, cmp.Or(err, failed)
	}
	return contents, err
}

// fingerprint returns bytes that change when the contents or the error change. They contain secrets
// and must not be printed.
func fingerprint(contents [][]byte, err error) []byte {
	if err != nil {
		return []byte(err.Error())
	}
	return bytes.Join(contents, []byte{0})
}

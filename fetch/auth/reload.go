package auth

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	reloadInterval = 2 * time.Second // minimum interval between two reads of the files
	maxFileSize    = 1 << 20         // enough for the certificates of 500 authorities
)

// reloader stores a value that it parses from small files. It parses them again when they change. If
// the files become invalid, it keeps the value.
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
	contents, err := readFiles(paths)
	r.content = fingerprint(contents, err)
	if err == nil {
		r.value, err = parse(contents)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return r, nil
}

// current returns the value of the last valid content of the files.
func (r *reloader[T]) current() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.readAt) < reloadInterval {
		return r.value
	}
	r.readAt = time.Now()
	contents, err := readFiles(r.paths)
	found := fingerprint(contents, err)
	if bytes.Equal(found, r.content) {
		return r.value
	}
	r.content = found
	if err == nil {
		var value T
		if value, err = r.parse(contents); err == nil {
			r.value = value
			r.log.Info("reloaded "+r.what, "files", strings.Join(r.paths, ", "))
			return r.value
		}
	}
	r.log.Warn("using the last valid "+r.what+": the changed files are invalid", "error", err)
	return r.value
}

func readFiles(paths []string) ([][]byte, error) {
	contents := make([][]byte, len(paths))
	for i, path := range paths {
		if path == "" {
			continue
		}
		var err error
		if contents[i], err = readFile(path); err != nil {
			return nil, err
		}
	}
	return contents, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	switch {
	case errors.Is(err, syscall.EISDIR):
		return nil, fmt.Errorf("%s is a folder, but must be a file", path)
	case err != nil:
		return nil, err // the error contains the file name
	case len(data) > maxFileSize:
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxFileSize)
	}
	return data, nil
}

// fingerprint returns bytes that change when the contents or the error change. They contain secrets
// and must not be printed.
func fingerprint(contents [][]byte, err error) []byte {
	if err != nil {
		return []byte(err.Error())
	}
	return bytes.Join(contents, []byte{0})
}

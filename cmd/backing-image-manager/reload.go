package main

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
	reloadTime = 2 * time.Second // files are not looked at more often
	maxSecret  = 1 << 20         // a file with the certificates of 500 authorities
)

// reloaded is what small files say, and what they say then when they change: secrets
// are replaced while a daemon runs. Files that cannot be used change nothing.
type reloaded[T any] struct {
	what  string
	paths []string // "" is a file that is not given
	parse func(contents [][]byte) (T, error)
	log   *slog.Logger

	mu     sync.Mutex
	looked time.Time
	tried  []byte // what was found then, be it of use or not
	value  T
}

// newReloaded reads the files for the first time, when mistakes in them are errors.
// Later they are warnings in the log, each once.
func newReloaded[T any](log *slog.Logger, what string, parse func([][]byte) (T, error), paths ...string) (*reloaded[T], error) {
	r := &reloaded[T]{what: what, paths: paths, parse: parse, log: log, looked: time.Now()}
	contents, err := readSecrets(paths)
	r.tried = fingerprint(contents, err)
	if err == nil {
		r.value, err = parse(contents)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return r, nil
}

// now returns what the files said last that could be used.
func (r *reloaded[T]) now() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.looked) < reloadTime {
		return r.value
	}
	r.looked = time.Now()
	contents, err := readSecrets(r.paths)
	found := fingerprint(contents, err)
	if bytes.Equal(found, r.tried) {
		return r.value
	}
	r.tried = found
	if err == nil {
		var value T
		if value, err = r.parse(contents); err == nil {
			r.value = value
			r.log.Info("replaced "+r.what, "files", strings.Join(r.paths, ", "))
			return r.value
		}
	}
	r.log.Warn("the "+r.what+" in use stays in force: the new one cannot be used", "error", err)
	return r.value
}

func readSecrets(paths []string) ([][]byte, error) {
	contents := make([][]byte, len(paths))
	for i, path := range paths {
		if path == "" {
			continue
		}
		var err error
		if contents[i], err = readSecret(path); err != nil {
			return nil, err
		}
	}
	return contents, nil
}

func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	switch {
	case errors.Is(err, syscall.EISDIR):
		return nil, fmt.Errorf("%s is a folder: name the file in it", path)
	case err != nil:
		return nil, err // it names the file
	case len(data) > maxSecret:
		return nil, fmt.Errorf("%s is too large: it has more than %d bytes", path, maxSecret)
	}
	return data, nil
}

// fingerprint tells contents apart. It is never shown: it holds secrets.
func fingerprint(contents [][]byte, err error) []byte {
	if err != nil {
		return []byte(err.Error())
	}
	return bytes.Join(contents, []byte{0})
}

// Package smallfile reads whole files that are small, unless a person or a program made a mistake.
package smallfile

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/dustin/go-humanize"
)

// ReadAt reads the file at a path. The error for a file with more than limit bytes is an *fs.PathError, too.
func ReadAt(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return Read(f, limit)
}

// Read reads a file that was just opened, and closes it. See ReadAt.
func Read(f *os.File, limit int64) ([]byte, error) {
	defer f.Close() // it was only read
	tooLarge := &fs.PathError{Op: "read", Path: f.Name(), Err: fmt.Errorf("it has more than %s", humanize.IBytes(uint64(limit)))}
	if info, err := f.Stat(); err != nil || info.Size() > limit {
		return nil, cmp.Or[error](err, tooLarge)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1)) // the file may grow, and a pipe has the size 0
	if int64(len(data)) > limit {
		return nil, tooLarge
	}
	return data, err
}

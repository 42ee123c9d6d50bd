package status

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/dustin/go-humanize"
)

// maxSavedFile is the size limit of a saved status or plan, which is read into memory.
const maxSavedFile = 256 << 20

// ReadSavedFile decodes a JSON file that this program saved, such as a status or a plan,
// into v. A file that cannot be read is an *fs.PathError.
func ReadSavedFile(file string, v any) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	tooLarge := &fs.PathError{Op: "read", Path: file, Err: fmt.Errorf("it has more than %s", humanize.IBytes(maxSavedFile))}
	if fi, err := f.Stat(); err != nil || fi.Size() > maxSavedFile {
		return cmp.Or[error](err, tooLarge)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSavedFile+1)) // a device has the size 0
	switch {
	case err != nil:
		return err
	case len(text) > maxSavedFile:
		return tooLarge
	}
	err = json.Unmarshal(text, v)
	if _, ok := errors.AsType[*json.SyntaxError](err); ok { // the user named a file of another kind
		return fmt.Errorf("it is not JSON: %w", err)
	}
	return err
}

// AddFile adds the status in a file. A file that cannot be read is an *fs.PathError.
func (s *SavedCluster) AddFile(file string) error {
	var one Status
	err := ReadSavedFile(file, &one)
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return err
	}
	if err == nil {
		err = s.add(one)
	}
	if err != nil {
		return fmt.Errorf("not a status as status -o json prints it: %w", err)
	}
	return nil
}

package smallfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadAt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if _, err := ReadAt(path, 4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	for content, fits := range map[string]bool{"": true, "abc": true, "abcd": true, "abcde": false} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		data, err := ReadAt(path, 4)
		if fits && (err != nil || string(data) != content) {
			t.Errorf("%q: got %q, %v", content, data, err)
		}
		var at *fs.PathError
		if !fits && (!errors.As(err, &at) || at.Path != path || !strings.Contains(err.Error(), "it has more than 4 B")) {
			t.Errorf("%q: got error %v", content, err)
		}
	}
}

// TestReadPipe reads a pipe, whose size is not known before its end.
func TestReadPipe(t *testing.T) {
	for content, fits := range map[string]bool{"abcd": true, "abcde": false} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.WriteString(content)
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		if data, err := Read(r, 4); fits != (err == nil) || fits && string(data) != content {
			t.Errorf("%q: got %q, %v", content, data, err)
		}
	}
}

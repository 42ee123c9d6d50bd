package clone

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestPipeAsSecret has nobody wait for what comes out of a pipe: no end of the process
// would end that.
func TestPipeAsSecret(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "key"), 0o755), syscall.Mkfifo(filepath.Join(dir, "key", fileValue), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := readSecret(dir, "key"); err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Errorf("got %v", err)
	}
}

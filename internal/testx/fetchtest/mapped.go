package fetchtest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Mapped creates a file with the given content, and returns its path and its mapped memory. The file
// is mapped until the test ends, as by a program that writes to it. Its first and its last page are
// already dirty, so that a write to them does not change the modification time of the file.
func Mapped(t testing.TB, content []byte) (path string, memory []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "mapped")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	memory, err = unix.Mmap(int(f.Fd()), 0, len(content), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(memory); err != nil {
			t.Error(err)
		}
	})
	memory[0], memory[len(memory)-1] = ^content[0], ^content[len(content)-1]
	long := time.Now().Add(-time.Hour) // old enough for a change of the time to be visible
	if err := os.Chtimes(path, long, long); err != nil {
		t.Fatal(err)
	}
	return path, memory
}

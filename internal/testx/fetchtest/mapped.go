package fetchtest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Mapped returns the path of a file with these bytes, and its memory. Until the test ends, the
// file is mapped as by a program that writes to it. Its first and its last page are dirty already,
// so that a write to them does not change the modification time of the file.
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
	long := time.Now().Add(-time.Hour) // the time of a file goes by the clock's ticks
	if err := os.Chtimes(path, long, long); err != nil {
		t.Fatal(err)
	}
	return path, memory
}

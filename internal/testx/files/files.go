// Package files changes files and folders in tests. If a change fails, the test ends.
package files

import (
	"os"
	"path/filepath"
	"testing"
)

// Put writes a file, and creates its parent folders. elem are the elements of its path.
func Put(t testing.TB, data string, elem ...string) {
	t.Helper()
	name := filepath.Join(elem...)
	check(t, os.MkdirAll(filepath.Dir(name), 0o755))
	check(t, os.WriteFile(name, []byte(data), 0o644))
}

// Remove removes a file, or a folder with all its content.
func Remove(t testing.TB, elem ...string) {
	t.Helper()
	check(t, os.RemoveAll(filepath.Join(elem...)))
}

// Rename renames a file or a folder.
func Rename(t testing.TB, from, to string) {
	t.Helper()
	check(t, os.Rename(from, to))
}

// SwapLink creates a symlink, or atomically replaces its target.
func SwapLink(t testing.TB, target, link string) {
	t.Helper()
	check(t, os.Symlink(target, link+"_tmp"))
	Rename(t, link+"_tmp", link)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

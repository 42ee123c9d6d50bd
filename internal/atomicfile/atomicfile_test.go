package atomicfile

import (
	"os"
	"path/filepath"
	"testing"
)

// folder returns a folder with the file "file", which has the content "old".
func folder(t *testing.T) (*os.Root, string) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root, dir
}

// want asserts the content of "file", and that no other file is in the folder.
func want(t *testing.T, dir, content string) {
	t.Helper()
	if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(got) != content {
		t.Errorf("the file has %q, %v, want %q", got, err, content)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v, %v", entries, err)
	}
}

func TestWriteReplacesTheFile(t *testing.T) {
	root, dir := folder(t)
	if err := Write(root, "file", "file.tmp", []byte("new")); err != nil {
		t.Fatal(err)
	}
	want(t, dir, "new")
	name := filepath.Join(dir, "file")
	if err := WriteAt(name, []byte("newer"), 0o666); err != nil {
		t.Fatal(err)
	}
	want(t, dir, "newer")
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("the mode is %v, %v", info.Mode(), err)
	}
}

// What has the temporary name is removed, and not written: it may lead to any file.
func TestTemporaryNameIsNotFollowed(t *testing.T) {
	root, dir := folder(t)
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, link := range []func(string, string) error{os.Symlink, os.Link} {
		if err := link(other, filepath.Join(dir, "file.tmp")); err != nil {
			t.Fatal(err)
		}
		if err := Write(root, "file", "file.tmp", []byte("new")); err != nil {
			t.Fatal(err)
		}
		want(t, dir, "new")
		if got, err := os.ReadFile(other); err != nil || string(got) != "other" {
			t.Errorf("the other file has %q, %v", got, err)
		}
	}
}

func TestFileKeepsItsContentUntilCommit(t *testing.T) {
	root, dir := folder(t)
	f, err := Create(root, "file", "file.tmp")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("new"); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(got) != "old" {
		t.Errorf("before Commit the file has %q, %v", got, err)
	}
	if err := f.Discard(); err != nil {
		t.Fatal(err)
	}
	want(t, dir, "old")
	if f, err = CreateAt(filepath.Join(dir, "file"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("new"); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(); err != nil {
		t.Fatal(err)
	}
	want(t, dir, "new")
}

func TestErrorLeavesNoTemporaryFile(t *testing.T) {
	root, dir := folder(t)
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(root, "folder", "folder.tmp", []byte("new")); err == nil {
		t.Error("a folder was replaced by a file")
	}
	if err := WriteAt(filepath.Join(dir, "folder"), []byte("new"), 0o600); err == nil {
		t.Error("a folder was replaced by a file")
	}
	if err := os.Remove(filepath.Join(dir, "folder")); err != nil {
		t.Fatal(err)
	}
	want(t, dir, "old")
	if err := WriteAt(filepath.Join(dir, "none", "file"), nil, 0o600); err == nil {
		t.Error("a file was written into a folder that does not exist")
	}
}

package backup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// wantError fails the test unless err has the class and contains all words.
func wantError(t testing.TB, err error, class fetch.Class, words ...string) {
	t.Helper()
	e, ok := err.(*fetch.Error)
	if !ok || e.Class != class {
		t.Errorf("got error %v, want one of class %v", err, class)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not contain %q: %v", w, err)
		}
	}
}

// filesBelow returns the paths of all files and links below dir.
func filesBelow(t testing.TB, dir string) []string {
	t.Helper()
	files := []string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			path, err = filepath.Rel(dir, path)
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestFolderRemovesStaleTemporaryFiles creates temporary files of a killed process of this program,
// of a running process, and of Longhorn. Only the first ones may be removed.
func TestFolderRemovesStaleTemporaryFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := folderStore(t, dir)
	mustPut(t, s, "blocks/ab/one.blk", nil)
	for _, name := range []string{"dead.blk.tmp.017", "lives.blk.tmp.018", "longhorn.blk.tmp.1719"} {
		if err := os.WriteFile(filepath.Join(dir, "blocks/ab", name), []byte("half"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	lives, err := os.Open(filepath.Join(dir, "blocks/ab/lives.blk.tmp.018"))
	if err != nil {
		t.Fatal(err)
	}
	defer lives.Close()
	if err := syscall.Flock(int(lives.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, "blocks/ab/two.blk", nil)
	if got, want := mustList(t, s, "blocks/ab"), []string{"one.blk 0", "two.blk 0"}; !slices.Equal(got, want) {
		t.Errorf("the list is %q, want %q", got, want)
	}
	want := []string{"blocks/ab/lives.blk.tmp.018", "blocks/ab/longhorn.blk.tmp.1719", "blocks/ab/one.blk", "blocks/ab/two.blk"}
	if got := filesBelow(t, dir); !slices.Equal(got, want) {
		t.Errorf("files left: %q, want %q", got, want)
	}
}

// TestFolderRefusesPathsOutside uses links and keys that refer to files outside the target, and keys
// that name no regular file.
func TestFolderRefusesPathsOutside(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	s := folderStore(t, dir)
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("outside"), 0o644); err != nil {
		t.Fatal(err)
	}
	up := "../" + filepath.Base(outside)
	for name, to := range map[string]string{"absolute": outside, "up": up, "in": "real", "file": secret} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	mustPut(t, s, "real/a", []byte("a"))
	mustHave(t, s, "in/a", []byte("a"))
	for _, key := range []string{"absolute/secret", "up/secret", up + "/secret", "file", secret} {
		_, err := s.Open(t.Context(), key)
		wantError(t, err, fetch.BadConfig, "escapes", dir)
		if key != "file" { // deleting the link itself is allowed
			wantError(t, s.Put(t.Context(), key, nil), fetch.BadConfig, "escapes")
			wantError(t, s.Delete(t.Context(), key), fetch.BadConfig, "escapes")
		}
	}
	_, err := s.List(t.Context(), "up")
	wantError(t, err, fetch.BadConfig, "escapes")
	mustPut(t, s, "file", []byte("replaces the link"))
	mustHave(t, s, "file", []byte("replaces the link"))
	if got, err := os.ReadFile(secret); string(got) != "outside" {
		t.Errorf("the file outside is %q, error %v", got, err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = s.Open(t.Context(), "fifo")
	wantError(t, err, fetch.BadSource, "not a regular file")
	wantError(t, s.Put(t.Context(), "file/below", nil), fetch.Refused, "file")
	if err := s.Delete(t.Context(), "in/a"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "in")); err != nil {
		t.Errorf("a link to an empty folder was removed: %v", err)
	}
}

// TestFolderDeletesEmptyParents checks that Delete removes at most ten empty parent folders, like
// Longhorn.
func TestFolderDeletesEmptyParents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := folderStore(t, dir)
	mustPut(t, s, "1/2/3/4/5/6/7/8/9/10/11/12/file", nil)
	if err := s.Delete(t.Context(), "1/2/3/4/5/6/7/8/9/10/11/12/file"); err != nil {
		t.Fatal(err)
	}
	if got := mustList(t, s, "1"); !slices.Equal(got, []string{"2/"}) || len(mustList(t, s, "1/2")) > 0 {
		t.Errorf("files left: %q and %q", got, mustList(t, s, "1/2"))
	}
}

// TestFolderIOErrors injects errors of the file system.
func TestFolderIOErrors(t *testing.T) {
	t.Parallel()
	f := faultfs.Mount(t)
	tests := []struct {
		kind  string
		errno syscall.Errno
		class fetch.Class
		word  string
	}{
		{"create", syscall.EROFS, fetch.Refused, "read-only"},
		{"create", syscall.EACCES, fetch.Refused, "permission"},
		{"write", syscall.ENOSPC, fetch.NoSpace, "no space"},
		{"sync", syscall.EDQUOT, fetch.NoSpace, "quota"},
		{"sync", syscall.EIO, fetch.Network, "input/output"},
		{"rename", syscall.EIO, fetch.Network, "input/output"},
	}
	for _, tt := range tests {
		v := f.NewVolume()
		s := folderStore(t, v.Path())
		mustPut(t, s, "a/b", []byte("before"))
		v.Plan(func(op faultfs.Op) error {
			if op.Kind == tt.kind && strings.Contains(op.Path, ".tmp.") {
				return tt.errno
			}
			return nil
		})
		wantError(t, s.Put(t.Context(), "a/b", []byte("after")), tt.class, tt.word, v.Path()+"/a/b")
		v.Plan(nil)
		mustHave(t, s, "a/b", []byte("before"))
		if got := filesBelow(t, v.Path()); !slices.Equal(got, []string{"a/b"}) {
			t.Errorf("%s fails with %v, files left: %q", tt.kind, tt.errno, got)
		}
	}
	v := f.NewVolume()
	s := folderStore(t, v.Path())
	mustPut(t, s, "a/b", []byte("there"))
	v.Plan(func(op faultfs.Op) error {
		if op.Kind == "read" {
			return syscall.EIO
		}
		return nil
	})
	r, err := s.Open(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, err = io.ReadAll(r)
	wantError(t, err, fetch.Network, "input/output", "a/b")
}

// TestFolderPowerCut simulates a power failure at every write of a sequence. A finished operation
// must be durable, an unfinished operation must have its effect completely or not at all, and the
// next Put must remove all temporary files.
func TestFolderPowerCut(t *testing.T) {
	race.Skip(t)
	t.Parallel()
	f := faultfs.Mount(t)
	const a, b = "blocks/ab/a.blk", "blocks/cd/b.blk"
	old, next := bytes.Repeat([]byte("old "), 5000), bytes.Repeat([]byte("next"), 6000)
	type content map[string][]byte
	steps := []struct {
		do    func(s Store) error
		after content
	}{
		{func(s Store) error { return s.Put(t.Context(), a, old) }, content{a: old}},
		{func(s Store) error { return s.Put(t.Context(), b, next) }, content{a: old, b: next}},
		{func(s Store) error { return s.Put(t.Context(), a, next) }, content{a: next, b: next}},
		{func(s Store) error { return s.Delete(t.Context(), b) }, content{a: next}},
	}
	agrees := func(s Store, want content) error {
		for _, key := range []string{a, b} {
			r, err := s.Open(t.Context(), key)
			if errors.Is(err, fs.ErrNotExist) && want[key] == nil {
				continue
			}
			if err != nil {
				return err
			}
			got, err := io.ReadAll(r)
			if err = errors.Join(err, r.Close()); err != nil || want[key] == nil || !bytes.Equal(got, want[key]) {
				return fmt.Errorf("%s has %d bytes, error %v", key, len(got), err)
			}
		}
		return nil
	}
	for at, ended := 1, false; !ended; at++ {
		v := f.NewVolume()
		s := folderStore(t, v.Path())
		v.Plan(func(op faultfs.Op) error {
			if op.ChangeNumber == at {
				return faultfs.ErrStop
			}
			return nil
		})
		may := []content{{}}
		ended = true
		for _, step := range steps {
			may = append(may, step.after)
			if err := step.do(s); err != nil {
				ended = false
				break
			}
			may = []content{step.after}
		}
		for seed := range uint64(4) {
			after := v.Survive(seed)
			found := folderStore(t, after.Path())
			errs := make([]error, len(may))
			for i, m := range may {
				errs[i] = agrees(found, m)
			}
			if !slices.Contains(errs, nil) {
				t.Errorf("cut at change %d, seed %d: %v", at, seed, errors.Join(errs...))
			}
			mustPut(t, found, a, next)
			mustPut(t, found, b, next)
			if got := filesBelow(t, after.Path()); !slices.Equal(got, []string{a, b}) {
				t.Errorf("cut at change %d, seed %d, files left: %q", at, seed, got)
			}
		}
	}
}

package configdir

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// writeTree creates files below dir: "a/b.yaml" with its content, "l -> target" as a symlink.
func writeTree(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		at, to, isLink := strings.Cut(name, " -> ")
		at = filepath.Join(dir, at)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if isLink {
			err = os.Symlink(to, at)
		} else {
			err = os.WriteFile(at, []byte(files[name]), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// format formats a snapshot: one "path=data" or "path!error" for each file.
func format(s Snapshot) string {
	var out []string
	for _, f := range s.Files {
		if f.Err != nil {
			out = append(out, f.Path+"!"+f.Err.Error())
		} else {
			out = append(out, f.Path+"="+string(f.Data))
		}
	}
	return strings.Join(out, " ")
}

func mustRead(t testing.TB, dir string) Snapshot {
	t.Helper()
	s, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRead(t *testing.T) {
	outside := t.TempDir()
	writeTree(t, outside, map[string]string{"x.yaml": "secret", "sub/y.yaml": "secret"})
	tests := []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"nothing", nil, ""},
		{"file types", map[string]string{"a.yaml": "1", "b.yml": "2", "c.json": "3", "d.cue": "4", "E.YAML": "5", "F.Yml": "6", "README.md": "", "e": ""},
			"E.YAML=5 F.Yml=6 a.yaml=1 b.yml=2 c.json=3 d.cue=4"},
		{"sorted by the whole path", map[string]string{"b/a.yaml": "1", "b.yaml": "2", "a/z/q.yaml": "3", "b-c.yaml": "4"},
			"a/z/q.yaml=3 b-c.yaml=4 b.yaml=2 b/a.yaml=1"},
		{"hidden", map[string]string{".git/config.yaml": "", ".x.yaml": "", "..2026/a.yaml": "", "a.yaml": "1"}, "a.yaml=1"},
		{"left-overs of editors", map[string]string{"x.yaml~": "", "#x.yaml#": "", ".x.yaml.swp": "", "4913": "", "x.cue~": "", "x.yaml": "1"},
			"x.yaml=1"},
		{"link to a file", map[string]string{"a.yaml -> .hidden/x": "", ".hidden/x": "1"}, "a.yaml=1"},
		{"link to a folder", map[string]string{"now -> .v1/conf": "", ".v1/conf/sub/a.yaml": "1"}, "now/sub/a.yaml=1"},
		{"link through links", map[string]string{"now -> .l": "", ".l -> ./.v1/../.v2": "", ".v1/a.yaml": "1", ".v2/a.yaml": "2"}, "now/a.yaml=2"},
		{"links to files that are read without them", map[string]string{"a -> b": "", "a.yaml -> b/x.yaml": "", "b/x.yaml": "1"}, "b/x.yaml=1"},
		{"links in a circle", map[string]string{"a.yaml -> b.yaml": "", "b.yaml -> a.yaml": "", "up -> .": "", "sub/up -> ..": "", "sub/c.yaml": "1"},
			"a.yaml!" + errLoop.Error() + " b.yaml!" + errLoop.Error() + " sub/c.yaml=1"},
		{"links that leave the directory", map[string]string{"a.yaml -> " + outside + "/x.yaml": "", "sub -> " + outside + "/sub": "", "README -> " + outside + "/x.yaml": "",
			"b.yaml -> ../../../../../../../../etc/hostname": "", "c.yaml": "1"},
			"a.yaml!" + errLeaves.Error() + " b.yaml!" + errLeaves.Error() + " c.yaml=1 sub!" + errLeaves.Error()},
		{"links through a link that leaves the directory", map[string]string{"a.yaml -> l/x.yaml": "", "l -> " + outside: ""},
			"a.yaml!" + errLeaves.Error() + " l!" + errLeaves.Error()},
		{"broken links", map[string]string{"a.yaml -> b": "", "c -> d": ""}, "a.yaml!follow link: cannot be read: no such file or directory"},
		{"several ConfigMaps", map[string]string{"one/..data -> ..1": "", "one/..1/a.yaml": "1", "one/a.yaml -> ..data/a.yaml": "",
			"two/..data -> ..1": "", "two/..1/a.yaml": "2"}, "one/a.yaml=1 two/a.yaml=2"},
		{"a ConfigMap whose ..data is broken", map[string]string{"..data -> ..1": "", "a.yaml": "1"},
			"..data!follow link: cannot be read: no such file or directory a.yaml=1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			writeTree(t, dir, tt.files)
			s := mustRead(t, dir)
			if got := format(s); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if s.Busy {
				t.Error("a plain directory is busy")
			}
			if s.Digest() != mustRead(t, dir).Digest() {
				t.Error("the digest of a second read differs")
			}
		})
	}
}

func TestReadFailsWithoutADirectory(t *testing.T) {
	dir := t.TempDir()
	writeTree(t, dir, map[string]string{"file": "", "loop -> loop": "", "gone -> nothing": ""})
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"missing", "file", "loop", "gone", "fifo"} {
		if s, err := Read(filepath.Join(dir, name)); err == nil || errors.Is(err, ErrChanging) {
			t.Errorf("%s: got %v, %v; want an error", name, s, err)
		}
	}
}

func TestReadRejectsHostileFiles(t *testing.T) {
	dir := t.TempDir()
	writeTree(t, dir, map[string]string{"big.yaml": "", "edge.yaml": "", "good.yaml": "1", "dir.yaml/x.yaml": "2"})
	for name, size := range map[string]int64{"big.yaml": 1 << 30, "edge.yaml": MaxFile} {
		if err := os.Truncate(filepath.Join(dir, name), size); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	writeTree(t, dir, map[string]string{"linked.yaml -> fifo.yaml": ""})
	got := map[string]string{}
	for _, f := range mustRead(t, dir).Files {
		if f.Err != nil {
			got[f.Path] = f.Err.Error()
		} else {
			got[f.Path] = fmt.Sprint(len(f.Data))
		}
	}
	want := map[string]string{
		"big.yaml":        "larger than 8 MiB (1073741824 bytes): not a configuration file",
		"edge.yaml":       fmt.Sprint(MaxFile),
		"fifo.yaml":       "not a regular file",
		"good.yaml":       "1",
		"dir.yaml/x.yaml": "1",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestReadReportsUnreadableFiles(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root reads everything")
	}
	dir := t.TempDir()
	writeTree(t, dir, map[string]string{"a.yaml": "", "sub/b.yaml": "", "c.yaml": "1"})
	for _, name := range []string{"a.yaml", "sub"} {
		if err := os.Chmod(filepath.Join(dir, name), 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { os.Chmod(filepath.Join(dir, "sub"), 0o700) })
	const denied = "!cannot be read: permission denied"
	if got, want := format(mustRead(t, dir)), "a.yaml"+denied+" c.yaml=1 sub"+denied; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if err := os.Chmod(dir, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %v, want a permission error", err)
	}
	os.Chmod(dir, 0o700)
}

// Files that are too large together: the largest ones are errors, and all others are read.
func TestReadLimitsTheTotalSize(t *testing.T) {
	dir := t.TempDir()
	writeTree(t, dir, map[string]string{"a.yaml": "1", "z.yaml": "1"})
	for i := range maxBytes/MaxFile + 2 {
		name := filepath.Join(dir, fmt.Sprintf("m%d.yaml", i))
		writeTree(t, dir, map[string]string{filepath.Base(name): ""})
		if err := os.Truncate(name, MaxFile-int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	var leftOut []string
	for _, f := range mustRead(t, dir).Files {
		if f.Err != nil && strings.Contains(f.Err.Error(), "more than 32 MiB together") {
			leftOut = append(leftOut, f.Path)
		}
	}
	if got := strings.Join(leftOut, " "); got != "m0.yaml m1.yaml" {
		t.Errorf("left out are %q, want the two largest", got)
	}
}

// A repository of a few MB can have symlinks and folders whose resolution takes an hour, at each read.
func TestReadLimitsPaths(t *testing.T) {
	deep := strings.Repeat("a/", maxLevels)
	long := strings.Repeat("a/../", 800)
	files := map[string]string{
		"ok.yaml": "ok", deep + "ok.yaml": "deep", "to.yaml -> " + deep + "ok.yaml": "",
		deep + "a/x.yaml": "", "long.yaml -> " + long + "ok.yaml": "",
	}
	dir := t.TempDir()
	writeTree(t, dir, files)
	want := deep + "a!" + errLevels.Error() + " " + deep + "ok.yaml=deep long.yaml!cannot be read: file name too long ok.yaml=ok"
	if got := format(mustRead(t, dir)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	tree, err := openTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.root.Close()
	tree.until = tree.until.Add(-linkTime)
	must(t, tree.follow(found{path: "to.yaml", location: "to.yaml"}))
	if last := tree.found[len(tree.found)-1]; last.err != errLinkTime {
		t.Errorf("after the time for symlinks: %+v", last)
	}
}

// TestDigestCoversPathsAndContents: equal paths and contents have equal digests, others have
// not.
func TestDigestCoversPathsAndContents(t *testing.T) {
	same := []map[string]string{
		{"a.yaml": "1", "b.yaml": "2"},
		{"a.yaml": "1", "b.yaml": "2", "ignored": "x"},
		{"a.yaml -> ..data/a.yaml": "", "b.yaml -> ..data/b.yaml": "", "..data -> ..1": "", "..1/a.yaml": "1", "..1/b.yaml": "2"},
	}
	other := []map[string]string{
		{"a.yaml": "1", "b.yaml": "3"},
		{"a.yaml": "1", "c.yaml": "2"},
		{"a.yaml": "1b.yaml2"},
		{"a.yaml": "1", "b.yaml": "2", "c.yaml": ""},
		{"a.yaml": "1", "b.yaml -> nothing": ""},
	}
	first := t.TempDir()
	writeTree(t, first, same[0])
	want := mustRead(t, first).Digest()
	for i, files := range slices.Concat(same, other) {
		dir := t.TempDir()
		writeTree(t, dir, files)
		if equal := mustRead(t, dir).Digest() == want; equal != (i < len(same)) {
			t.Errorf("%v: equal to the first: %v", files, equal)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	files := map[string]string{}
	for i := range 1000 {
		files[fmt.Sprintf("%02d/%04d.yaml", i%20, i)] = strings.Repeat("images: {}\n", 60)
	}
	dir := b.TempDir()
	writeTree(b, dir, files)
	for b.Loop() {
		if s, err := Read(dir); err != nil || len(s.Files) != 1000 {
			b.Fatal(len(s.Files), err)
		}
	}
}

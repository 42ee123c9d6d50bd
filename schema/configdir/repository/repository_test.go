package repository

import (
	"bytes"
	"compress/zlib"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// checkout is a checkout of the installed git.
type checkout struct {
	t   *testing.T
	dir string
}

func newCheckout(t *testing.T, args ...string) checkout {
	t.Helper()
	need.Programs(t, "git")
	c := checkout{t, t.TempDir()}
	c.git(append([]string{"init", "-q", "-b", "main"}, args...)...)
	return c
}

func (c checkout) git(args ...string) string {
	c.t.Helper()
	cmd := exec.Command("git", append([]string{"-C", c.dir, "-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (c checkout) write(path, data string) {
	c.t.Helper()
	path = filepath.Join(c.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		c.t.Fatal(err)
	}
}

// commit commits everything, and returns the commit.
func (c checkout) commit(message string) string {
	c.t.Helper()
	c.git("add", "-A")
	c.git("commit", "-q", "--allow-empty", "-m", message)
	return c.git("rev-parse", "HEAD")
}

func (c checkout) repository() Repository { return Open(filepath.Join(c.dir, ".git")) }

// compare compares the folder of the checkout with a commit.
func (c checkout) compare(commit, folder string) error {
	c.t.Helper()
	s, err := configdir.Read(filepath.Join(c.dir, folder))
	if err != nil {
		c.t.Fatal(err)
	}
	return c.repository().Compare(c.t.Context(), commit, folder, s.Files)
}

// populate writes files of all sorts.
func (c checkout) populate() {
	c.write("conf/a.yaml", "images: {}\n")
	c.write("conf/sub/deep/b.json", "{}")
	c.write("conf/sub/c.cue", "x: 1\n")
	c.write("conf/empty.yml", "")
	c.write("conf/README.md", "text\n")
	c.write("conf/.hidden.yaml", "x: 1\n")
	c.write("conf/.hidden/d.yaml", "x: 1\n")
	c.write("outside.yaml", "x: 1\n")
}

func TestCompare(t *testing.T) {
	for _, format := range []string{"sha1", "sha256"} {
		for name, change := range map[string]func(checkout){
			"":                        func(checkout) {},
			"a file that is not read": func(c checkout) { c.write("conf/README.md", "changed") },
			"a hidden file":           func(c checkout) { c.write("conf/.hidden.yaml", "changed") },
			"a file outside":          func(c checkout) { c.write("outside.yaml", "changed") },
			"all objects in a pack":   func(c checkout) { c.git("gc", "-q", "--prune=now") },
			"conf/a.yaml":             func(c checkout) { c.write("conf/a.yaml", "images: {x: y}\n") },
			"conf/new.yaml":           func(c checkout) { c.write("conf/new.yaml", "") },
			"conf/sub/c.cue":          func(c checkout) { os.Remove(filepath.Join(c.dir, "conf/sub/c.cue")) },
			"conf/empty.yml":          func(c checkout) { c.write("conf/empty.yml", " ") },
			"conf/sub/deep/b.json":    func(c checkout) { os.RemoveAll(filepath.Join(c.dir, "conf/sub/deep")) },
			"conf/link/d.yaml":        func(c checkout) { os.Symlink(".hidden", filepath.Join(c.dir, "conf/link")) },
		} {
			c := newCheckout(t, "--object-format="+format)
			c.populate()
			commit := c.commit("one")
			change(c)
			err := c.compare(commit, "conf")
			switch {
			case !strings.HasPrefix(name, "conf/"):
				if err != nil {
					t.Errorf("%s, %s: %v", format, name, err)
				}
			case !errors.Is(err, ErrDiffers):
				t.Errorf("%s, %s: %v", format, name, err)
			case !strings.Contains(err.Error(), strings.TrimPrefix(name, "conf/")):
				t.Errorf("%s, %s: the error does not name the file: %v", format, name, err)
			}
		}
	}
}

func TestCompareFoldersAndOtherCheckouts(t *testing.T) {
	c := newCheckout(t)
	c.populate()
	one := c.commit("one")
	if err := c.compare(one, "."); err != nil {
		t.Errorf("the whole tree: %v", err)
	}
	s := []configdir.File{{Path: "a.yaml", Data: []byte("images: {}\n")}}
	for _, folder := range []string{"other", "conf/a.yaml", "conf/sub/none"} {
		if err := c.repository().Compare(t.Context(), one, folder, s); !errors.Is(err, ErrDiffers) {
			t.Errorf("folder %s: %v", folder, err)
		}
	}
	c.write("conf/a.yaml", "images: {two: {}}\n")
	two := c.commit("two")
	if err := c.compare(one, "conf"); !errors.Is(err, ErrDiffers) {
		t.Errorf("the files of the second commit are those of the first: %v", err)
	}
	tree := filepath.Join(t.TempDir(), "tree")
	c.git("worktree", "add", "-q", "--detach", tree, one)
	read, err := configdir.Read(filepath.Join(tree, "conf"))
	if err != nil {
		t.Fatal(err)
	}
	worktree := Open(filepath.Join(c.dir, ".git/worktrees/tree"))
	if err := worktree.Compare(t.Context(), one, "conf", read.Files); err != nil {
		t.Errorf("a worktree: %v", err)
	}
	// A replacement of a commit, and one of a blob, are ignored.
	c.git("replace", one, two)
	if err := worktree.Compare(t.Context(), one, "conf", read.Files); err != nil {
		t.Errorf("with a replacement: %v", err)
	}
	for _, id := range []string{strings.Repeat("a", 40), "", "HEAD", two[:12], c.git("rev-parse", two+"^{tree}")} {
		if err := c.repository().Compare(t.Context(), id, "conf", read.Files); err == nil {
			t.Errorf("%q is a commit", id)
		}
	}
}

// TestSymlinksOfACommitAreNoFiles checks that a symlink brings no file that nobody compared.
func TestSymlinksOfACommitAreNoFiles(t *testing.T) {
	c := newCheckout(t)
	c.write("conf/a.yaml", "images: {}\n")
	c.write("conf/.data/b.yaml", "images: {}\n")
	if err := os.Symlink(".data/b.yaml", filepath.Join(c.dir, "conf/b.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := c.compare(c.commit("one"), "conf"); !errors.Is(err, ErrDiffers) {
		t.Errorf("got %v", err)
	}
}

func isNone([]byte) bool { return false }

func TestIsDescendant(t *testing.T) {
	c := newCheckout(t)
	one := c.commit("one")
	two := c.commit("two")
	c.git("checkout", "-q", "-b", "side", one)
	side := c.commit("side")
	c.git("checkout", "-q", "main")
	c.git("merge", "-q", "-m", "merge", "side")
	merge := c.git("rev-parse", "HEAD")
	for _, tt := range []struct {
		commit, of string
		want       bool
	}{
		{one, one, true}, {two, one, true}, {one, two, false}, {side, two, false}, {two, side, false},
		{merge, one, true}, {merge, two, true}, {merge, side, true}, {two, merge, false}, {merge, strings.Repeat("a", 40), false},
	} {
		if got, err := c.repository().IsDescendant(t.Context(), tt.commit, tt.of, isNone); got != tt.want || err != nil {
			t.Errorf("%.7s of %.7s: got %v, %v", tt.commit, tt.of, got, err)
		}
	}
	// A shallow clone does not know.
	clone := checkout{t, filepath.Join(t.TempDir(), "clone")}
	c.git("clone", "-q", "--depth=1", "file://"+c.dir, clone.dir)
	if got, err := clone.repository().IsDescendant(t.Context(), merge, one, isNone); got || !errors.Is(err, ErrMissing) {
		t.Errorf("in a shallow clone: got %v, %v", got, err)
	}
	if got, err := clone.repository().IsDescendant(t.Context(), merge, merge, isNone); !got || err != nil {
		t.Errorf("in a shallow clone, the same commit: got %v, %v", got, err)
	}
}

func TestIsDescendantByContent(t *testing.T) {
	c := newCheckout(t)
	c.commit("one")
	c.commit("two")
	three := c.commit("three")
	for message, want := range map[string]bool{"one": true, "two": true, "three": true, "four": false} {
		is := func(object []byte) bool { return strings.HasSuffix(string(object), "\n\n"+message+"\n") }
		if got, err := c.repository().IsDescendant(t.Context(), three, strings.Repeat("a", 40), is); got != want || err != nil {
			t.Errorf("three of %s: got %v, %v", message, got, err)
		}
	}
}

func TestEachParent(t *testing.T) {
	c := newCheckout(t)
	one := c.commit("one")
	c.git("checkout", "-q", "-b", "side")
	side := c.commit("side")
	c.git("checkout", "-q", "main")
	two := c.commit("two")
	c.git("merge", "-q", "-m", "merge", "side")
	merge := c.git("rev-parse", "HEAD")
	parents := func(r Repository, commit string) (ids []string, err error) {
		t.Helper()
		object, err := r.Commit(t.Context(), commit)
		if err != nil {
			t.Fatal(err)
		}
		err = r.EachParent(t.Context(), object, func(id string, parent []byte) error {
			if want := c.git("cat-file", "commit", id); want != strings.TrimSpace(string(parent)) {
				t.Errorf("parent %s is %q, want %q", id, parent, want)
			}
			ids = append(ids, id)
			return nil
		})
		return ids, err
	}
	for commit, want := range map[string][]string{one: nil, side: {one}, merge: {two, side}} {
		if got, err := parents(c.repository(), commit); !slices.Equal(got, want) || err != nil {
			t.Errorf("parents of %.7s: got %v, %v, want %v", commit, got, err, want)
		}
	}
	clone := checkout{t, filepath.Join(t.TempDir(), "clone")}
	c.git("clone", "-q", "--depth=1", "file://"+c.dir, clone.dir)
	if got, err := parents(clone.repository(), merge); len(got) > 0 || err != nil {
		t.Errorf("in a shallow clone: got %v, %v", got, err)
	}
}

// The first 320 bytes of the two files of https://shattered.io have this SHA-1.
func TestCollisionsAreNoNames(t *testing.T) {
	const sha1 = "f92d74e3874587aaf443d1db961d4e26dde13e9c"
	text, err := os.ReadFile("testdata/shattered.hex")
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	h, err := newHash(sha1)
	if err != nil {
		t.Fatal(err)
	}
	h.Write(b)
	if got := hex.EncodeToString(h.Sum(nil)); got == sha1 {
		t.Error("bytes with a known collision have the name that they collide with")
	}
}

// TestDamagedObjectsAreErrors replaces the bytes of each loose object.
func TestDamagedObjectsAreErrors(t *testing.T) {
	c := newCheckout(t)
	c.populate()
	commit := c.commit("one")
	names := map[string]string{"commit": commit, "tree": c.git("rev-parse", commit+"^{tree}"), "folder": c.git("rev-parse", commit+":conf")}
	for what, id := range names {
		path := filepath.Join(c.dir, ".git/objects", id[:2], id[2:])
		old, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		z, err := zlib.NewReader(bytes.NewReader(old))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		b = bytes.Replace(b, []byte("one"), []byte("ONE"), 1)
		b = bytes.Replace(b, []byte("a.yaml"), []byte("A.yaml"), 1)
		b = bytes.Replace(b, []byte("outside.yaml"), []byte("OUTSIDE.yaml"), 1)
		var forged bytes.Buffer
		w := zlib.NewWriter(&forged)
		w.Write(b)
		w.Close()
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, forged.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := c.compare(commit, "conf"); err == nil {
			t.Errorf("a forged %s is accepted", what)
		}
		if err := os.WriteFile(path, old, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.compare(commit, "conf"); err != nil {
		t.Errorf("with the old objects: %v", err)
	}
}

// TestRepositoryRunsNothing checks that the configuration of a repository runs no program, although objects are missing
// that git would fetch.
func TestRepositoryRunsNothing(t *testing.T) {
	c := newCheckout(t)
	c.populate()
	commit := c.commit("one")
	ran := filepath.Join(t.TempDir(), "ran")
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho \"$0 $*\" >>"+ran+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{
		"core.fsmonitor": program, "core.hooksPath": filepath.Dir(program), "core.sshCommand": program, "core.gitProxy": program,
		"core.pager": program, "core.editor": program, "core.askPass": program, "core.alternateRefsCommand": program, "pager.cat-file": program,
		"gpg.program": program, "gpg.ssh.program": program, "log.showSignature": "true", "credential.helper": program, "alias.cat-file": "!" + program,
		"filter.x.smudge": program, "filter.x.clean": program, "filter.x.process": program, "diff.external": program, "diff.x.textconv": program,
		"extensions.partialClone": "origin", "core.repositoryFormatVersion": "1", "remote.origin.url": "ext::" + program + " %S",
		"remote.origin.promisor": "true", "remote.origin.uploadpack": program, "remote.origin.vcs": "x", "protocol.ext.allow": "always", "protocol.allow": "always",
		"uploadpack.packObjectsHook": program, "trace2.eventTarget": ran,
	} {
		c.git("config", key, value)
	}
	c.write(".git/info/attributes", "* filter=x diff=x\n")
	id := cutTree(c, commit)
	if err := c.compare(commit, "conf"); !errors.Is(err, ErrMissing) {
		t.Errorf("without the tree %s: %v", id, err)
	}
	if b, err := os.ReadFile(ran); err == nil {
		t.Errorf("git ran: %s", b)
	}
}

// cutTree removes the tree of the folder conf.
func cutTree(c checkout, commit string) string {
	c.t.Helper()
	id := c.git("rev-parse", commit+":conf")
	if err := os.Remove(filepath.Join(c.dir, ".git/objects", id[:2], id[2:])); err != nil {
		c.t.Fatal(err)
	}
	return id
}

func FuzzParseTree(f *testing.F) {
	entry := func(mode, name string) string { return mode + " " + name + "\x00" + strings.Repeat("i", 20) }
	f.Add([]byte(entry("100644", "a.yaml")+entry("40000", "conf")), 20)
	f.Add([]byte(entry("100644", "a/b")), 20)
	f.Add([]byte("100644 a.yaml\x00short"), 20)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		if n != 20 && n != 32 {
			return
		}
		entries, err := parseTree(b, n)
		if err != nil {
			return
		}
		var again bytes.Buffer
		var names []string
		for _, e := range entries {
			raw, err := fmt.Sscanf(e.id, "%x", new([]byte))
			if raw != 1 || err != nil || len(e.id) != 2*n {
				t.Fatalf("id %q: %v", e.id, err)
			}
			var id []byte
			fmt.Sscanf(e.id, "%x", &id)
			again.WriteString(e.mode + " " + e.name + "\x00")
			again.Write(id)
			names = append(names, e.name)
		}
		slices.Sort(names)
		if !bytes.Equal(again.Bytes(), b) || len(slices.Compact(names)) != len(entries) {
			t.Errorf("%q is parsed as %v", b, entries)
		}
	})
}

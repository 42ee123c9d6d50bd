package configdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// configMap is a volume with the layout of the kubelet's AtomicWriter.
type configMap struct {
	dir   string
	count int
	old   map[string]string
}

// steps returns the steps of publishing files, in the kubelet's order. "swap" is the
// step that makes the new generation visible.
func (c *configMap) steps(t testing.TB, files map[string]string) (names []string, do map[string]func()) {
	c.count++
	now := fmt.Sprintf("..2026_11_20_09_00_00.%09d", c.count)
	before, _ := os.Readlink(filepath.Join(c.dir, "..data"))
	at := func(name string) string { return filepath.Join(c.dir, name) }
	old := c.old
	c.old = files
	return []string{"mkdir", "payload", "link", "swap", "new names", "stale names", "remove"}, map[string]func(){
		"mkdir":   func() { must(t, os.Mkdir(at(now), 0o755)) },
		"payload": func() { writeTree(t, at(now), files) },
		"link":    func() { must(t, os.Symlink(now, at("..data_tmp"))) },
		"swap":    func() { must(t, os.Rename(at("..data_tmp"), at("..data"))) },
		"new names": func() {
			for name := range files {
				if _, had := old[name]; !had {
					must(t, os.Symlink("..data/"+name, at(name)))
				}
			}
		},
		"stale names": func() {
			for name := range old {
				if _, has := files[name]; !has {
					must(t, os.Remove(at(name)))
				}
			}
		},
		"remove": func() {
			if before != "" {
				must(t, os.RemoveAll(at(before)))
			}
		},
	}
}

func (c *configMap) publish(t testing.TB, files map[string]string) {
	names, do := c.steps(t, files)
	for _, name := range names {
		do[name]()
	}
}

// TestReadConfigMapAfterEachStep reads after each step of publications that
// change, add and remove files: up to the swap it gets the old generation, and
// afterwards the new one.
func TestReadConfigMapAfterEachStep(t *testing.T) {
	c := &configMap{dir: t.TempDir()}
	generations := []map[string]string{
		{"a.yaml": "1", "b.yaml": "1"},
		{"a.yaml": "2", "b.yaml": "2"},
		{"b.yaml": "3", "c.yaml": "3"},
		{"d.yaml": "4"},
	}
	wants := []string{"a.yaml=1 b.yaml=1", "a.yaml=2 b.yaml=2", "b.yaml=3 c.yaml=3", "d.yaml=4"}
	c.publish(t, generations[0])
	for i, files := range generations[1:] {
		want := wants[i]
		names, do := c.steps(t, files)
		for _, name := range names {
			do[name]()
			if name == "swap" {
				want = wants[i+1]
			}
			s := mustRead(t, c.dir)
			if got := format(s); got != want {
				t.Errorf("publication %d after %q: got %s; want %s", i+1, name, got, want)
			}
		}
	}
	writeTree(t, c.dir, map[string]string{"plain.yaml": "p"})
	if s := mustRead(t, c.dir); format(s) != "d.yaml=4 plain.yaml=p" {
		t.Errorf("with a file beside ..data: got %s", format(s))
	}
}

// TestReadTwiceNeverMixesGenerations reads while generations are published as fast as
// possible: each result is one whole generation.
func TestReadTwiceNeverMixesGenerations(t *testing.T) {
	generation := func(n int) map[string]string {
		files := map[string]string{}
		for i := range 20 {
			files[fmt.Sprintf("%02d.yaml", i)] = fmt.Sprint(n)
		}
		return files
	}
	c := &configMap{dir: t.TempDir()}
	g := &gitSync{dir: t.TempDir()}
	for name, swap := range map[string]struct {
		dir     string
		publish func(testing.TB, map[string]string)
	}{"ConfigMap": {c.dir, c.publish}, "git-sync": {g.link(), g.publish}} {
		t.Run(name, func(t *testing.T) {
			swap.publish(t, generation(0))
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				assertNoMix(t, swap.dir, 20, stop)
			}()
			for n := range 150 {
				swap.publish(t, generation(n+1))
			}
			close(stop)
			<-stopped
			if got, want := string(mustRead(t, swap.dir).Files[0].Data), "150"; got != want {
				t.Errorf("at the end: got generation %s, want %s", got, want)
			}
		})
	}
}

// assertNoMix reads dir, whose files must all have the same content, until stop.
func assertNoMix(t *testing.T, dir string, files int, stop <-chan struct{}) {
	reads, whole := 0, 0
	defer func() { t.Logf("%d reads, %d of one generation", reads, whole) }()
	for ; ; reads++ {
		select {
		case <-stop:
			return
		default:
		}
		s, err := ReadTwice(dir)
		if errors.Is(err, ErrChanging) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil || len(s.Files) != files {
			t.Errorf("got %d files, %v: %s", len(s.Files), err, format(s))
			return
		}
		for _, f := range s.Files {
			if f.Err != nil || string(f.Data) != string(s.Files[0].Data) {
				t.Errorf("got a mix: %s", format(s))
				return
			}
		}
		whole++
	}
}

// gitSync publishes like git-sync: it creates a worktree for each
// commit, swaps a symlink, and removes the old worktree.
type gitSync struct {
	dir   string
	count int
}

func (g *gitSync) link() string { return filepath.Join(g.dir, "current") }

func (g *gitSync) publish(t testing.TB, files map[string]string) {
	g.count++
	before, _ := os.Readlink(g.link())
	tree := fmt.Sprintf(".worktrees/%040d", g.count)
	writeTree(t, filepath.Join(g.dir, tree), files)
	must(t, os.Symlink(tree, g.link()+".tmp"))
	must(t, os.Rename(g.link()+".tmp", g.link()))
	if before != "" {
		must(t, os.RemoveAll(filepath.Join(g.dir, before)))
	}
}

func TestBusyWhileGitHoldsItsLock(t *testing.T) {
	need.Programs(t, "git")
	repo, tree := t.TempDir(), filepath.Join(t.TempDir(), "tree")
	git := func(args ...string) {
		cmd := exec.Command("git", append([]string{"-C", repo, "-c", "user.name=t", "-c", "user.email=t@t"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	git("init", "-q")
	writeTree(t, repo, map[string]string{"conf/a.yaml": "1"})
	git("add", ".")
	git("commit", "-qm", "one")
	git("worktree", "add", "-q", tree)
	for dir, lock := range map[string]string{
		filepath.Join(repo, "conf"): filepath.Join(repo, ".git/index.lock"),
		tree:                        filepath.Join(repo, ".git/worktrees/tree/index.lock"),
	} {
		if mustRead(t, dir).Busy {
			t.Errorf("%s: busy without a lock", dir)
		}
		must(t, os.WriteFile(lock, nil, 0o644))
		if !mustRead(t, dir).Busy {
			t.Errorf("%s: not busy with a lock at %s", dir, lock)
		}
		must(t, os.Remove(lock))
	}
}

func TestReadFolders(t *testing.T) {
	dir := t.TempDir()
	writeTree(t, dir, map[string]string{"a.yaml": "", "sub/deep/x": "", "l -> .hidden/l": "", ".hidden/l/b.yaml": "",
		"c.yaml -> .else/c": "", ".else/c": "", "d.yaml -> /etc/hostname": "", ".unread/d.yaml": "", ".git/HEAD": "", ".git/config": "", ".git/objects/x": ""})
	must(t, os.Symlink(dir, dir+".link"))
	t.Cleanup(func() { os.Remove(dir + ".link") })
	folders, git, err := readFolders(dir + ".link")
	must(t, err)
	var want []string
	for _, name := range []string{"", ".else", ".hidden/l", "sub", "sub/deep"} {
		want = append(want, filepath.Join(dir, name))
	}
	if fmt.Sprint(folders) != fmt.Sprint(want) || fmt.Sprint(git) != fmt.Sprintf("[%[1]s/index.lock %[1]s/HEAD]", filepath.Join(dir, ".git")) {
		t.Errorf("got %v and %v, want %v", folders, git, want)
	}
}

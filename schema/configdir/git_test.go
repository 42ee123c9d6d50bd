package configdir

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// repo is a checkout of the installed git.
type repo struct {
	t   *testing.T
	dir string
}

func newRepo(t *testing.T, args ...string) repo {
	t.Helper()
	need.Programs(t, "git")
	r := repo{t, t.TempDir()}
	r.git(append([]string{"init", "-q", "-b", "main"}, args...)...)
	r.commit("1")
	return r
}

// git runs git in the checkout, without the configuration of the user, and returns its output.
func (r repo) git(args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", append([]string{"-C", r.dir, "-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r repo) commit(data string) {
	r.t.Helper()
	writeTree(r.t, r.dir, map[string]string{"conf/a.yaml": data})
	r.git("add", ".")
	r.git("commit", "-qm", data)
}

// assertRevision asserts that Read and git agree on the revision of dir, a folder of the checkout.
func (r repo) assertRevision(what, dir string) {
	r.t.Helper()
	want := repo{r.t, dir}.git("rev-parse", "HEAD")
	if got := mustRead(r.t, dir).Revision; got != want {
		r.t.Errorf("%s: got revision %q, git says %q", what, got, want)
	}
}

func TestRevisionOfACheckout(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"--object-format=sha256"}} {
		r := newRepo(t, args...)
		conf := filepath.Join(r.dir, "conf")
		r.assertRevision("a branch", conf)
		r.commit("2")
		r.assertRevision("another commit", conf)
		r.git("checkout", "-qb", "team/edge")
		r.commit("3")
		r.assertRevision("a branch with a slash", conf)
		r.git("pack-refs", "--all")
		if _, err := os.Stat(filepath.Join(r.dir, ".git/refs/heads/team/edge")); err == nil {
			t.Error("the ref is not packed")
		}
		r.assertRevision("a packed ref", conf)
		r.commit("4")
		r.assertRevision("a packed ref with a newer file", conf)
		r.git("symbolic-ref", "refs/heads/alias", "refs/heads/main")
		r.git("checkout", "-q", "alias")
		r.assertRevision("a symbolic ref", conf)
		r.git("checkout", "-q", "--detach", "team/edge~1")
		r.assertRevision("a detached head", conf)
		r.git("gc", "-q")
		r.assertRevision("after gc", conf)
	}
}

func TestRevisionOfWorktreesAndSubmodules(t *testing.T) {
	t.Parallel()
	r := newRepo(t)
	tree := filepath.Join(t.TempDir(), "tree")
	r.git("worktree", "add", "-q", "-b", "other", tree)
	repo{t, tree}.commit("2")
	r.assertRevision("a worktree", filepath.Join(tree, "conf"))
	r.assertRevision("the checkout of the same repository", r.dir)
	r.git("pack-refs", "--all")
	r.assertRevision("a worktree with a packed ref", tree)
	outer := newRepo(t)
	outer.git("submodule", "add", "-q", r.dir, "sub")
	outer.assertRevision("a submodule", filepath.Join(outer.dir, "sub/conf"))
	outer.assertRevision("the checkout around the submodule", outer.dir)
	bare := repo{t, t.TempDir()}
	bare.git("clone", "-q", "--bare", r.dir, ".")
	of := filepath.Join(t.TempDir(), "bare")
	bare.git("worktree", "add", "-q", of, "main")
	bare.assertRevision("a worktree of a bare clone", of)
}

// TestRevisionOfGitSync imitates git-sync: a detached worktree for each commit,
// with a relative gitdir, behind a symlink.
func TestRevisionOfGitSync(t *testing.T) {
	t.Parallel()
	upstream, root := newRepo(t), repo{t, t.TempDir()}
	root.git("clone", "-q", "--no-checkout", upstream.dir, ".")
	link := filepath.Join(root.dir, "current")
	for _, next := range []string{"2", "3"} {
		commit := upstream.git("rev-parse", "HEAD")
		root.git("fetch", "-q", "origin", commit)
		tree := filepath.Join(".worktrees", commit)
		root.git("worktree", "add", "-q", "--force", "--detach", "--no-checkout", tree, commit)
		must(t, os.WriteFile(filepath.Join(root.dir, tree, ".git"), []byte("gitdir: ../../.git/worktrees/"+commit+"\n"), 0o644))
		repo{t, filepath.Join(root.dir, tree)}.git("reset", "-q", "--hard", commit)
		must(t, os.Symlink(tree, link+".tmp"))
		must(t, os.Rename(link+".tmp", link))
		for _, dir := range []string{link, filepath.Join(link, "conf")} {
			if got := mustRead(t, dir).Revision; got != commit {
				t.Errorf("%s: got revision %q, want %q", dir, got, commit)
			}
		}
		upstream.commit(next)
	}
}

// TestNoRevisionIsNoError: a directory without a readable checkout has no revision, and its
// files are read.
func TestNoRevisionIsNoError(t *testing.T) {
	t.Parallel()
	const commit = "0123456789012345678901234567890123456789"
	big := strings.Repeat(" ", maxRef) + commit
	for name, files := range map[string]map[string]string{
		"no checkout":           nil,
		"empty":                 {".git/config": ""},
		"no commit yet":         {".git/HEAD": "ref: refs/heads/main\n"},
		"reftable":              {".git/HEAD": "ref: refs/heads/.invalid\n", ".git/reftable/tables.list": ""},
		"garbage":               {".git/HEAD": "\x00\x01\x02"},
		"too large":             {".git/HEAD": big},
		"out of the repository": {".git/HEAD": "ref: refs/../../secret\n", "secret": commit},
		"not a ref":             {".git/HEAD": "ref: config\n", ".git/config": commit},
		"a cycle":               {".git/HEAD": "ref: refs/heads/a\n", ".git/refs/heads/a": "ref: refs/heads/b", ".git/refs/heads/b": "ref: refs/heads/a"},
		"packed garbage":        {".git/HEAD": "ref: refs/heads/a\n", ".git/packed-refs": "x refs/heads/a\n" + strings.Repeat("y", 1<<17)},
		"a broken gitdir":       {".git": "gitdir: /no/such/place\n"},
		"gitdir to a file":      {".git": "gitdir: a.yaml\n"},
		"an upper-case commit":  {".git/HEAD": strings.Repeat("A", 40)},
	} {
		dir := t.TempDir()
		writeTree(t, dir, map[string]string{"a.yaml": "1"})
		if len(files) > 0 && files[".git"] == "" {
			writeTree(t, dir, map[string]string{".git/config": "", ".git/HEAD": "", ".git/objects/x": ""})
		}
		writeTree(t, dir, files)
		if s := mustRead(t, dir); s.Revision != "" || format(s) != "a.yaml=1" {
			t.Errorf("%s: got revision %q and %s", name, s.Revision, format(s))
		}
		if _, _, err := readFolders(dir); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRevisionIsNoFileOutsideTheCheckout: whoever writes the files of a config directory chooses
// what its .git says. No such choice makes a file that is no ref of a git directory the revision.
func TestRevisionIsNoFileOutsideTheCheckout(t *testing.T) {
	t.Parallel()
	token := strings.Repeat("dfa339c6", 8)
	repository := func(at string) map[string]string {
		return map[string]string{at + "objects/x": "", at + "config": "", at + "HEAD": "ref: refs/heads/main\n"}
	}
	with := func(files map[string]string, more ...string) map[string]string {
		for i := 0; i < len(more); i += 2 {
			files[more[i]] = more[i+1]
		}
		return files
	}
	for name, files := range map[string]map[string]string{
		"commondir of keys":             {"conf/.git": "gitdir: .\n", "conf/HEAD": "ref: refs/../token\n", "conf/commondir": "SEC\n"},
		"commondir of keys, with clean": {"conf/.git": "gitdir: .\n", "conf/HEAD": "ref: refs/token\n", "conf/commondir": "SEC\n"},
		"behind ..data": {"conf/..data -> ..1": "", "conf/..1/.git": "gitdir: ..1\n", "conf/..1/HEAD": "ref: refs/token\n", "conf/..1/commondir": "SEC\n",
			"conf/.git -> ..data/.git": ""},
		"a key that names the secret":       {"conf/.git": "gitdir: SEC\n"},
		"a checkout in a volume":            with(repository("conf/.git/"), "conf/.git/HEAD", token, "conf/..data -> ..1", "", "conf/..1/x", ""),
		"a .git folder with commondir":      with(repository("conf/.git/"), "conf/.git/HEAD", "ref: refs/token\n", "conf/.git/commondir", "SEC\n"),
		"a ref that leads out":              with(repository("conf/.git/"), "conf/.git/HEAD", "ref: refs/../../../sec/token\n"),
		"a ref that is not clean":           with(repository("conf/.git/"), "conf/.git/HEAD", "ref: refs//token\n", "conf/.git/refs/token", token),
		"a ref that is a link out":          with(repository("conf/.git/"), "conf/.git/refs/heads/main -> SEC/token", ""),
		"packed-refs that is a link out":    with(repository("conf/.git/"), "conf/.git/packed-refs -> SEC/packed-refs", ""),
		"HEAD that is a link out":           {"conf/.git/objects/x": "", "conf/.git/config": "", "conf/.git/HEAD -> SEC/token": ""},
		"a .git that is a link":             {"conf/.git -> SEC": ""},
		"a repository among the files":      with(repository("conf/in/"), "conf/.git", "gitdir: in\n", "conf/in/HEAD", token),
		"a forged worktree among the files": with(repository("conf/in/"), "conf/.git", "gitdir: in/worktrees/w\n", "conf/in/worktrees/w/HEAD", token, "conf/in/worktrees/w/commondir", "../..", "conf/in/worktrees/w/gitdir", "x"),
		"a worktree of the secret":          with(repository("real/"), "conf/.git", "gitdir: ../real/worktrees/w\n", "real/worktrees/w/HEAD", "ref: refs/token", "real/worktrees/w/commondir", "SEC", "real/worktrees/w/gitdir", "x"),
		"no repository":                     {"conf/.git": "gitdir: ../sec\n"},
	} {
		root := t.TempDir()
		secret := filepath.Join(root, "sec")
		writeTree(t, root, map[string]string{"sec/token": token, "sec/HEAD": token, "sec/refs/token": token, "sec/packed-refs": token + " refs/heads/main\n", "conf/a.yaml": "1"})
		hostile := map[string]string{}
		for path, text := range files {
			hostile[strings.ReplaceAll(path, "SEC", secret)] = strings.ReplaceAll(text, "SEC", secret)
		}
		writeTree(t, root, hostile)
		if got := mustRead(t, filepath.Join(root, "conf")).Revision; got != "" {
			t.Errorf("%s: the revision is %q", name, got)
		}
		_, git, err := readFolders(filepath.Join(root, "conf"))
		for _, file := range git {
			if err != nil || strings.HasPrefix(file, secret) {
				t.Errorf("%s: watches %s, %v", name, file, err)
			}
		}
	}
}

// TestRevisionOfOtherGitDirectories: git also keeps its directory elsewhere, and other programs
// make it a symlink.
func TestRevisionOfOtherGitDirectories(t *testing.T) {
	t.Parallel()
	apart := filepath.Join(t.TempDir(), "apart.git")
	r := newRepo(t, "--separate-git-dir="+apart)
	r.assertRevision("a separate git directory", r.dir)
	r.assertRevision("a folder of it", filepath.Join(r.dir, "conf"))
	linked := newRepo(t)
	moved := filepath.Join(t.TempDir(), "moved.git")
	must(t, os.Rename(filepath.Join(linked.dir, ".git"), moved))
	must(t, os.Symlink(moved, filepath.Join(linked.dir, ".git")))
	linked.assertRevision("a linked git directory", linked.dir)
	tree := filepath.Join(t.TempDir(), "tree")
	r.git("worktree", "add", "-q", "--detach", tree)
	r.assertRevision("a worktree of it", filepath.Join(tree, "conf"))
	r.git("worktree", "move", tree, tree+"2")
	r.assertRevision("a worktree that was moved", tree+"2")
}

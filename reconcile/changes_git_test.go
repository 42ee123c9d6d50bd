package reconcile

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/files"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// repos are the commits of the upstream repository of a sequence.
type repos struct {
	commits  []string
	contents map[string]content // by commit
	branches []string
}

// git runs git, without the configuration of the user.
func (s *sequence) git(dir string, args ...string) string {
	s.t.Helper()
	out, err := s.gitCommand(dir, args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (s *sequence) gitCommand(dir string, args ...string) *exec.Cmd {
	cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@t", "-c", "gc.auto=0"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	return cmd
}

func (s *sequence) upstream() string { return filepath.Join(s.root, "upstream") }

func (s *sequence) startUpstream() {
	need.Programs(s.t, "git")
	s.repos.contents = map[string]content{}
	must(s.t, os.Mkdir(s.upstream(), 0o755))
	s.git(s.upstream(), "init", "-q", "-b", "main")
	s.commit()
}

// commit commits a fresh content upstream, and returns the commit.
func (s *sequence) commit() string {
	c := s.fresh()
	if len(s.repos.commits) > 0 {
		s.git(s.upstream(), "rm", "-q", "-r", ".")
	}
	s.write(c, s.upstream())
	s.git(s.upstream(), "add", ".")
	s.git(s.upstream(), "commit", "-q", "-m", "another one")
	id := s.git(s.upstream(), "rev-parse", "HEAD")
	s.repos.commits = append(s.repos.commits, id)
	s.repos.contents[id] = c
	return id
}

func startGitSync(s *sequence) {
	s.startUpstream()
	s.git(s.root, "clone", "-q", "--no-checkout", s.upstream(), "sync")
	s.conf = filepath.Join(s.root, "sync", "current")
	s.publishCommit(s.repos.commits[0])
}

func publishGitSync(s *sequence) { s.publishCommit(s.commit()) }

func rollBackGitSync(s *sequence) { s.publishCommit(pick(s.Rand, s.repos.commits...)) }

// publishCommit does the steps of git-sync: it fetches, adds a worktree with a relative gitdir,
// writes its files, swaps the link, and removes the old worktree.
func (s *sequence) publishCommit(id string) {
	sync, tree := filepath.Dir(s.conf), filepath.Join(".worktrees", id)
	old, _ := os.Readlink(s.conf)
	if old == tree {
		return
	}
	s.git(sync, "fetch", "-q", "origin", id)
	s.git(sync, "worktree", "add", "-q", "--force", "--detach", "--no-checkout", tree, id)
	files.Put(s.t, "gitdir: ../../.git/worktrees/"+id+"\n", sync, tree, ".git")
	s.git(filepath.Join(sync, tree), "reset", "-q", "--hard", id)
	files.SwapLink(s.t, tree, s.conf)
	s.now = s.repos.contents[id]
	if old != "" {
		files.Remove(s.t, sync, old)
		s.git(sync, "worktree", "prune")
	}
}

func startCheckout(s *sequence) {
	s.startUpstream()
	for i := range 3 {
		branch := fmt.Sprintf("team/%d", i)
		s.git(s.upstream(), "checkout", "-q", "-b", branch)
		s.commit()
		s.repos.branches = append(s.repos.branches, branch)
	}
	s.git(s.upstream(), "checkout", "-q", "main")
	s.git(s.root, "clone", "-q", s.upstream(), "conf")
	s.conf = filepath.Join(s.root, "conf")
	s.git(s.conf, "config", "receive.denyCurrentBranch", "updateInstead")
	s.git(s.conf, "config", "filter.gate.smudge", "test -p "+s.gate()+" && cat "+s.gate()+"; cat")
	files.Put(s.t, "only* filter=gate\n", s.conf, ".git/info/attributes")
	s.checkedOut()
}

// checkedOut records the content of the commit that is checked out.
func (s *sequence) checkedOut() {
	s.now = s.repos.contents[s.git(s.conf, "rev-parse", "HEAD")]
}

func switchBranch(s *sequence) {
	s.git(s.conf, "checkout", "-q", pick(s.Rand, s.repos.branches...))
	s.checkedOut()
}

func pull(s *sequence) {
	s.commit()
	s.git(s.conf, "checkout", "-q", "main")
	s.git(s.conf, "pull", "-q", "--ff-only")
	s.checkedOut()
}

func reset(s *sequence) {
	s.git(s.conf, "checkout", "-q", "--detach")
	s.git(s.conf, "fetch", "-q")
	s.git(s.conf, "reset", "-q", "--hard", pick(s.Rand, s.repos.commits...))
	s.checkedOut()
}

// stash edits a file with a rename, stashes the edit, restores it, and discards it.
func stash(s *sequence) {
	edited := maps.Clone(s.now)
	edited["base.yaml"] = fmt.Sprintf("nodes: {node1: {tags: [t%d]}}\n", s.changes)
	s.complete[s.digest(edited)] = edited
	files.Put(s.t, edited["base.yaml"], s.conf, ".base.yaml.tmp")
	files.Rename(s.t, filepath.Join(s.conf, ".base.yaml.tmp"), filepath.Join(s.conf, "base.yaml"))
	s.l.rounds(s.IntN(5))
	s.git(s.conf, "stash", "-q")
	s.l.rounds(s.IntN(5))
	s.git(s.conf, "stash", "pop", "-q")
	s.l.rounds(s.IntN(5))
	s.git(s.conf, "checkout", "-q", "-f")
}

// pushInto pushes to the checkout from elsewhere, and git updates its files.
func pushInto(s *sequence) {
	s.git(s.conf, "checkout", "-q", "main")
	s.commit()
	s.git(s.upstream(), "push", "-q", s.conf, "main")
	s.checkedOut()
}

func (s *sequence) gate() string { return filepath.Join(s.root, "gate") }

// slowCheckout makes git wait after some files of a checkout, checks that the loop applies nothing,
// and lets git continue.
func slowCheckout(s *sequence) {
	must(s.t, syscall.Mkfifo(s.gate(), 0o600))
	s.l.rounds(4) // the state before is applied then
	branch := pick(s.Rand, s.repos.branches...)
	before := len(s.log.all())
	done := make(chan error, 1)
	go func() {
		out, err := s.gitCommand(s.conf, "checkout", "-q", branch).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		done <- err
	}()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for opened := false; ; {
		select {
		case err := <-done:
			must(s.t, err)
			_ = os.Remove(s.gate()) // it still exists if git did not open it
			s.checkedOut()
			return
		case <-tick.C:
		}
		if opened {
			continue
		}
		gate, err := os.OpenFile(s.gate(), os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			continue // git has not opened it yet
		}
		opened = true
		s.l.rounds(6) // twice configdir.StableFor
		if applied := s.log.all(); len(applied) > before+1 || len(applied) > before && s.complete[applied[before].digest] == nil {
			s.t.Errorf("%d configurations were applied during a checkout", len(applied)-before)
		}
		must(s.t, os.Remove(s.gate()))
		must(s.t, gate.Close())
	}
}

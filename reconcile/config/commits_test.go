package config

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/configdir/repository"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// signedCheckout is a checkout whose commits an SSH key may sign.
type signedCheckout struct {
	t         *testing.T
	dir, keys string // the config directory is dir/conf
	author    string // private key
	date      string // of commits; "": now
}

func newSignedCheckout(t *testing.T) signedCheckout {
	t.Helper()
	need.Programs(t, "git", "ssh-keygen")
	c := signedCheckout{t: t, dir: t.TempDir(), keys: t.TempDir(), author: filepath.Join(t.TempDir(), "author")}
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", c.author).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	public, err := os.ReadFile(c.author + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.keys, "allowed_signers"), append([]byte("ann@example.com "), public...), 0o600); err != nil {
		t.Fatal(err)
	}
	c.git("init", "-q", "-b", "main")
	return c
}

func (c signedCheckout) git(args ...string) string {
	c.t.Helper()
	cmd := exec.Command("git", append([]string{"-C", c.dir, "-c", "user.name=t", "-c", "user.email=t@t", "-c", "gpg.format=ssh", "-c", "user.signingkey=" + c.author}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	if c.date != "" {
		cmd.Env = append(cmd.Env, "GIT_COMMITTER_DATE="+c.date)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (c signedCheckout) write(name, data string) {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		c.t.Fatal(err)
	}
}

// commit commits everything with a signature or without, and returns the commit.
func (c signedCheckout) commit(signed string) string {
	c.t.Helper()
	c.git("add", "-A")
	c.git("commit", "-q", "--allow-empty", signed, "-m", rand.Text())
	return c.git("rev-parse", "HEAD")
}

const (
	sign     = "-S"
	dontSign = "--no-gpg-sign"
)

func (c signedCheckout) read() configdir.Snapshot {
	c.t.Helper()
	s, err := configdir.Read(filepath.Join(c.dir, "conf"))
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

func TestSignedCommitsVerify(t *testing.T) {
	c := newSignedCheckout(t)
	rules := SignedCommits{KeysDir: c.keys}
	c.write("conf/a.yaml", "images: {}\n")
	c.commit(sign)
	if by, err := rules.Verify(t.Context(), c.read()); err != nil || by.Signer != "ann@example.com" {
		t.Fatalf("got %+v, %v", by, err)
	}
	check := func(what, want string, rules SignedCommits, s configdir.Snapshot) {
		t.Helper()
		if by, err := rules.Verify(t.Context(), s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %+v, %v, want %s", what, by, err, want)
		}
	}
	good := c.read()
	c.write("conf/a.yaml", "images: {x: {source: {upload: {}}}}\n")
	check("a changed file", "differs from the commit", rules, c.read())
	// The commit of the good snapshot says nothing about the files of another one.
	mixed := c.read()
	mixed.Revision = good.Revision
	check("the files of another snapshot", "differs from the commit", rules, mixed)
	c.commit(dontSign)
	check("no signature", "unsigned", rules, c.read())
	c.git("reset", "-q", "--hard", good.Revision)
	check("keys in the checkout", "in the checkout", SignedCommits{KeysDir: c.dir}, c.read())
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Join(c.dir, "conf"), link); err != nil {
		t.Fatal(err)
	}
	check("keys in the checkout, through a symlink", "in the checkout", SignedCommits{KeysDir: link}, c.read())
	check("no keys", "no-keys", SignedCommits{KeysDir: t.TempDir()}, c.read())
	check("a missing folder", "--require-signed-commits", SignedCommits{KeysDir: filepath.Join(link, "none")}, c.read())
	none := good
	none.Checkout = configdir.Checkout{}
	check("no checkout", "not in a git checkout", rules, none)
	none = good
	none.Revision = ""
	check("no commit", "cannot be read", rules, none)
	broken := good
	broken.Files = append([]configdir.File{{Path: "b.yaml", Err: errors.New("permission denied")}}, good.Files...)
	check("a file that cannot be read", "permission denied", rules, broken)
	if _, err := rules.Verify(t.Context(), c.read()); err != nil {
		t.Errorf("at the end: %v", err)
	}
}

// TestCommitGate checks when a snapshot is verified: once if it is accepted, and again after a while if it is not.
func TestCommitGate(t *testing.T) {
	verifications, answer := 0, error(nil)
	g := &commitGate{verify: func(context.Context, configdir.Snapshot) error { verifications++; return answer }}
	snapshot := func(revision, data string) configdir.Snapshot {
		return configdir.Snapshot{Revision: revision, Files: []configdir.File{{Path: "a.yaml", Data: []byte(data)}}}
	}
	now := time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC)
	wrong, differs := errors.New("wrong"), fmt.Errorf("a.yaml %w", repository.ErrDiffers)
	for i, step := range []struct {
		after  time.Duration
		s      configdir.Snapshot
		answer error
		want   error
		again  time.Duration
		verify bool
	}{
		{0, snapshot("1", "a"), nil, nil, 0, true},
		{time.Second, snapshot("1", "a"), wrong, nil, 0, false}, // accepted already
		{time.Second, snapshot("2", "a"), wrong, wrong, 0, true},
		{time.Second, snapshot("2", "a"), nil, wrong, 0, false}, // rejected a moment ago
		{rejectAgain, snapshot("2", "a"), nil, nil, 0, true},
		{time.Second, snapshot("2", "b"), differs, differs, settleAgain, true}, // git writes files before the commit
		{settleAgain, snapshot("2", "b"), differs, differs, 0, true},
		{time.Second, snapshot("2", "b"), nil, differs, 0, false},
		{time.Second, snapshot("3", "b"), nil, nil, 0, true},
		{time.Second, snapshot("2", "a"), wrong, wrong, 0, true}, // only the last accepted snapshot is remembered
		{time.Second, snapshot("3", "b"), wrong, nil, 0, false},
	} {
		now, answer = now.Add(step.after), step.answer
		before := verifications
		again, err := g.judge(t.Context(), step.s, now)
		if !errors.Is(err, step.want) || again != step.again || (verifications > before) != step.verify {
			t.Errorf("step %d: got %v, again in %v, verified: %v", i, err, again, verifications > before)
		}
	}
	if again, err := (*commitGate)(nil).judge(t.Context(), snapshot("9", ""), now); again != 0 || err != nil {
		t.Errorf("without a gate: %v, %v", again, err)
	}
}

func TestCommitMemory(t *testing.T) {
	c := newSignedCheckout(t)
	c.write("conf/a.yaml", "images: {}\n")
	one, two := c.commit(sign), c.commit(sign)
	c.git("checkout", "-q", "-b", "side", one)
	side := c.commit(sign)
	at := c.read().Checkout
	disks := map[ident.DiskRef]*disk.Disk{}
	addDisk := func(name string) *disk.Disk {
		t.Helper()
		disks[ident.DiskRef{Node: "n", Disk: name}] = openDiskFolder(t)
		return disks[ident.DiskRef{Node: "n", Disk: name}]
	}
	wantRecorded := func(want string) {
		t.Helper()
		for ref, d := range disks {
			if got, err := d.ConfigCommit(); got.Name != want || err != nil {
				t.Errorf("%s has %q, %v, want %s", ref, got.Name, err, want)
			}
		}
	}
	accept := func(m *commitMemory, commit string) error {
		t.Helper()
		if err := m.accept(t.Context(), at, commit, disks); err != nil {
			return err
		}
		refused, failed := m.record(t.Context(), disks)
		return errors.Join(refused, failed)
	}
	addDisk("a")
	m := &commitMemory{}
	if err := c.configuration("n").RecordCommit(t.Context()); err != nil {
		t.Errorf("before the first commit: %v", err)
	}
	for _, commit := range []string{one, one, two, two} {
		if err := accept(m, commit); err != nil {
			t.Fatal(err)
		}
		wantRecorded(commit)
	}
	addDisk("b") // a disk that was not there
	if refused, failed := m.record(t.Context(), disks); refused != nil || failed != nil {
		t.Errorf("a new disk: %v, %v", refused, failed)
	}
	wantRecorded(two)
	// In the same process, and in the next one, an older commit and one on another branch are rejected.
	for _, m := range []*commitMemory{m, {}} {
		for _, commit := range []string{one, side, strings.Repeat("a", 40)} {
			if err := accept(m, commit); err == nil {
				t.Errorf("%s is accepted after %s", commit, two)
			}
			wantRecorded(two)
		}
	}
	if err := accept(m, two); err != nil {
		t.Errorf("the last accepted commit: %v", err)
	}
	// A running process also remembers it while no disk can be read.
	if err := m.accept(t.Context(), at, one, nil); err == nil || m.current.Name != two {
		t.Errorf("without disks, an older commit is accepted: %v, current %s", err, m.current.Name)
	}
	// A disk of another cluster.
	other := addDisk("c")
	if err := other.SetConfigCommit(disk.ConfigCommit{Name: side, Signed: strings.Repeat("5", 64)}); err != nil {
		t.Fatal(err)
	}
	if refused, _ := m.record(t.Context(), disks); refused == nil || !strings.Contains(refused.Error(), "n/c") {
		t.Errorf("got %v", refused)
	}
	if got, _ := other.ConfigCommit(); got.Name != side {
		t.Errorf("the commit of the disk was replaced by %s", got.Name)
	}
	if err := os.WriteFile(filepath.Join(other.Path(), "backing-image-manager.commit"), []byte("?"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := accept(&commitMemory{}, two); err == nil || !strings.Contains(err.Error(), "not known") {
		t.Errorf("a file that is not a commit: %v", err)
	}
	// A person may go back, to the named commit only.
	older := SignedCommits{AllowOlder: []string{one}}
	if err := accept(&commitMemory{rules: older}, side); err == nil {
		t.Error("a commit that was not named is accepted")
	}
	if err := accept(&commitMemory{rules: older}, one); err != nil {
		t.Errorf("the named commit: %v", err)
	}
	wantRecorded(one)
}

func openDiskFolder(t *testing.T) *disk.Disk {
	t.Helper()
	dir := t.TempDir()
	if _, err := disk.Init(dir); err != nil {
		t.Fatal(err)
	}
	d, err := disk.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// configuration returns the configuration of a node that requires signed commits of the checkout.
func (c signedCheckout) configuration(node string) *Configuration {
	var opened map[ident.DiskRef]*disk.Disk
	return New(Options{
		Dir: filepath.Join(c.dir, "conf"), Node: node, Commits: &SignedCommits{KeysDir: c.keys}, Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Open: func(d plan.Desired) error {
			opened = map[ident.DiskRef]*disk.Disk{}
			for name, declared := range d.Config.Nodes[node].Disks {
				if on, err := disk.Open(declared.Path); err == nil {
					c.t.Cleanup(func() { on.Close() })
					opened[ident.DiskRef{Node: node, Disk: name}] = on
				}
			}
			return nil
		},
		Opened: func() map[ident.DiskRef]*disk.Disk { return opened },
	})
}

// acceptOn accepts a commit, and records it on the disk.
func (c signedCheckout) acceptOn(m *commitMemory, commit string, d *disk.Disk) error {
	c.t.Helper()
	disks := map[ident.DiskRef]*disk.Disk{{Node: "n", Disk: "d"}: d}
	if err := m.accept(c.t.Context(), c.read().Checkout, commit, disks); err != nil {
		return err
	}
	refused, failed := m.record(c.t.Context(), disks)
	return errors.Join(refused, failed)
}

// checkOut makes another object of a commit: with a change of its text. It returns its name.
func (c signedCheckout) checkOut(commit string, change func(object string) string) string {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "object")
	if err := os.WriteFile(file, []byte(change(c.git("cat-file", "commit", commit)+"\n")), 0o600); err != nil {
		c.t.Fatal(err)
	}
	changed := c.git("hash-object", "-t", "commit", "-w", "--literally", file)
	c.git("checkout", "-q", "--detach", changed)
	return changed
}

// A git server changes the line breaks in the signature of a commit, which has another name then, and still is validly signed. The
// commit of the author is accepted afterwards, and what comes after it, by the same process and by a later one.
func TestChangedSignatureIsTheSameCommit(t *testing.T) {
	c := newSignedCheckout(t)
	c.write("conf/a.yaml", "images: {}\n")
	one, two := c.commit(sign), c.commit(sign)
	three := c.commit(sign)
	changed := c.checkOut(two, func(object string) string {
		end := strings.Index(object, "\n -----END")
		return object[:end-5] + "\n " + object[end-5:]
	})
	if _, err := (SignedCommits{KeysDir: c.keys}).Verify(t.Context(), c.read()); err != nil || changed == two {
		t.Fatalf("the signature of the changed commit %s is not valid: %v", changed, err)
	}
	for _, restarts := range []bool{false, true} {
		d, m := openDiskFolder(t), &commitMemory{}
		for i, step := range []struct {
			commit   string
			accepted bool
		}{
			{one, true}, {changed, true}, {two, true}, {changed, true}, {one, false}, {three, true}, {changed, false}, {two, false}, {three, true},
		} {
			if err := c.acceptOn(m, step.commit, d); (err == nil) != step.accepted {
				t.Errorf("step %d, with restarts: %v: %v", i, restarts, err)
			}
			if restarts {
				m = &commitMemory{}
			}
		}
	}
}

// The changed commit is not recorded in place of the one that the author made.
func TestChangedSignatureIsNotRecorded(t *testing.T) {
	c := newSignedCheckout(t)
	c.write("conf/a.yaml", "images: {}\n")
	one := c.commit(sign)
	changed := c.checkOut(one, func(object string) string { return strings.Replace(object, "gpgsig ", "gpgsig-sha256 ", 1) })
	d := openDiskFolder(t)
	for _, commit := range []string{one, changed} {
		if err := c.acceptOn(&commitMemory{}, commit, d); err != nil {
			t.Fatal(err)
		}
		if got, err := d.ConfigCommit(); got.Name != one || err != nil {
			t.Errorf("after %s, the disk has %s, %v, want %s", commit, got.Name, err, one)
		}
	}
}

// Whoever has a key whose validity is over signs with an old date. The commit comes after one that is newer: as its parent, or as the
// last one that was accepted.
func TestDatesDoNotGoBack(t *testing.T) {
	c := newSignedCheckout(t)
	c.write("conf/a.yaml", "images: {}\n")
	now := time.Now().Truncate(time.Second)
	commit := func(ago time.Duration, signed string) string {
		t.Helper()
		c.date = now.Add(-ago).Format(time.RFC3339)
		return c.commit(signed)
	}
	verify := func(rules SignedCommits) error {
		t.Helper()
		rules.KeysDir = c.keys
		_, err := rules.Verify(t.Context(), c.read())
		return err
	}
	const hour, skew = time.Hour, 5 * time.Minute
	root := commit(10*hour, sign)
	last := commit(5*hour, sign)
	for ago, want := range map[time.Duration]bool{9 * hour: false, 5*hour + skew + time.Second: false, 5*hour + skew: true, 5 * hour: true, 0: true, -skew + time.Minute: true, -skew - hour: false} {
		c.git("checkout", "-q", "--detach", last)
		child := commit(ago, sign)
		if err := verify(SignedCommits{}); (err == nil) != want {
			t.Errorf("a child that is %v newer than now: %v", -ago, err)
		}
		allowed := SignedCommits{AllowOlder: []string{child}}
		if err := verify(allowed); (err == nil) != (ago > -skew) {
			t.Errorf("the same one, allowed: %v", err)
		}
		// As the child of a commit between them that has no signature and is as old as it claims.
		d := openDiskFolder(t)
		if err := c.acceptOn(&commitMemory{}, last, d); err != nil {
			t.Fatal(err)
		}
		c.git("checkout", "-q", "--detach", last)
		commit(max(ago, 0), dontSign)
		grandchild := commit(ago, sign)
		if err := verify(SignedCommits{}); (err == nil) != (ago > -skew) {
			t.Errorf("a grandchild that is %v newer than now: %v", -ago, err)
		}
		if err := c.acceptOn(&commitMemory{}, grandchild, d); (err == nil) != (want || ago < 0) {
			t.Errorf("a grandchild after the recorded commit that is %v newer than now: %v", -ago, err)
		}
		if err := c.acceptOn(&commitMemory{rules: SignedCommits{AllowOlder: []string{grandchild}}}, grandchild, d); err != nil {
			t.Errorf("the same one, allowed: %v", err)
		}
	}
	// Each parent counts.
	c.git("checkout", "-q", "-b", "old", root)
	commit(9*hour, sign)
	for ago, want := range map[time.Duration]bool{8 * hour: false, hour: true} {
		for _, first := range []string{"old", last} {
			c.git("checkout", "-q", "--detach", first)
			c.date = now.Add(-ago).Format(time.RFC3339)
			other := last
			if first == last {
				other = "old"
			}
			c.git("merge", "-q", "--no-ff", sign, "-m", "merge", other)
			if err := verify(SignedCommits{}); (err == nil) != want {
				t.Errorf("a merge %v ago of commits of 9 and 5 hours ago: %v", ago, err)
			}
		}
	}
}

// A history does not change, so it is not read again each time that the same commit is rejected.
func TestRejectionIsRemembered(t *testing.T) {
	c := newSignedCheckout(t)
	c.write("conf/a.yaml", "images: {}\n")
	one, two, three := c.commit(sign), c.commit(sign), c.commit(sign)
	d, m := openDiskFolder(t), &commitMemory{}
	if err := c.acceptOn(m, three, d); err != nil {
		t.Fatal(err)
	}
	first := c.acceptOn(m, two, d)
	if first == nil {
		t.Fatal("a replay is accepted")
	}
	if err := os.Remove(filepath.Join(c.dir, ".git/objects", one[:2], one[2:])); err != nil {
		t.Fatal(err)
	}
	if err := c.acceptOn(m, two, d); err == nil || err.Error() != first.Error() {
		t.Errorf("got %v, want %v", err, first)
	}
	if err := c.acceptOn(&commitMemory{}, two, d); err == nil || !strings.Contains(err.Error(), "incomplete") {
		t.Errorf("in another process: %v", err)
	}
}

// After a refusal, the author merges the last accepted commit, and the merge has the files that were refused. They are not a new
// configuration then, but must be applied.
func TestRefusedConfigurationIsAppliedByALaterCommit(t *testing.T) {
	c, folder, away := newSignedCheckout(t), t.TempDir(), filepath.Join(t.TempDir(), "away")
	if _, err := disk.Init(folder); err != nil {
		t.Fatal(err)
	}
	write := func(title string) {
		c.write("conf/a.yaml", "images: {parrot: {title: "+title+", uuid: \"00000001\", source: {upload: {}}}}\nnodes: {n: {disks: {d: {path: "+folder+"}, e: {path: "+away+"}}}}\n")
	}
	l := c.configuration("n")
	loader := load.NewLoader()
	read := func() Reading {
		s := c.read()
		r := loader.Load(t.Context(), s)
		return Reading{Result: &r, Checkout: s.Checkout}
	}
	apply := func(r Reading, refused bool, title string) {
		t.Helper()
		if _, err := l.Apply(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		_ = l.RecordCommit(t.Context()) // as each round does
		v := l.View(time.Time{})
		if len(v.Config.Errors) > 0 || (v.Fault != "") != refused || v.Config.Config.Images["parrot"].Title != title {
			t.Errorf("errors %v, fault %q, title %q, want refused %v, title %q", v.Config.Errors, v.Fault, v.Config.Config.Images["parrot"].Title, refused, title)
		}
	}
	write("zero")
	base := c.commit(sign)
	write("one")
	one := c.commit(sign)
	apply(read(), false, "one")
	c.git("checkout", "-q", "-b", "side", base)
	write("two")
	c.commit(sign)
	apply(read(), true, "one")
	apply(Reading{Checkout: c.read().Checkout}, true, "one") // read again
	c.git("merge", "-q", "-s", "ours", "--no-gpg-sign", one)
	s := c.read()
	apply(Reading{Revision: &s.Revision, Checkout: s.Checkout}, false, "two")
	if got := l.View(time.Time{}).Config.Revision; got != s.Revision {
		t.Errorf("revision %s, want %s", got, s.Revision)
	}
	// The commit is refused in the round in which a disk appears that has another one, until that one is removed.
	if err := os.Mkdir(away, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := disk.Init(away); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(away, "backing-image-manager.commit")
	if err := os.WriteFile(file, []byte(strings.Repeat("a", 40)), 0o600); err != nil {
		t.Fatal(err)
	}
	apply(Reading{Checkout: s.Checkout}, true, "two")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	apply(Reading{Checkout: s.Checkout}, false, "two")
}

// A replayed commit has the files that are applied. It stays rejected as long as it is checked out.
func TestReplayWithTheSameFilesStaysRefused(t *testing.T) {
	c, folder := newSignedCheckout(t), t.TempDir()
	if _, err := disk.Init(folder); err != nil {
		t.Fatal(err)
	}
	l := c.configuration("n")
	c.write("conf/a.yaml", "images: {parrot: {uuid: \"00000001\", source: {upload: {}}}}\nnodes: {n: {disks: {d: {path: "+folder+"}}}}\n")
	one, two := c.commit(sign), c.commit(sign)
	at := c.read().Checkout
	revision := func(name string) Reading { return Reading{Revision: &name, Checkout: at} }
	loaded := load.NewLoader().Load(t.Context(), c.read())
	for i, step := range []struct {
		r       Reading
		refused bool
	}{
		{Reading{Result: &loaded, Checkout: at}, false}, {Reading{Checkout: at}, false},
		{revision(one), true}, {Reading{Checkout: at}, true}, {Reading{Fault: "busy"}, true}, {Reading{Checkout: at}, true},
		{revision(two), false}, {Reading{Checkout: at}, false},
		{revision(one), true}, {Reading{Result: &loaded, Checkout: at}, false},
	} {
		if _, err := l.Apply(t.Context(), step.r); err != nil {
			t.Fatal(err)
		}
		_ = l.RecordCommit(t.Context()) // as each round does
		v := l.View(time.Time{})
		if (v.Fault != "") != step.refused || (v.Desired.Allowed == schema.Everything) == step.refused || v.Config.Revision != two {
			t.Errorf("step %d: fault %q, allowed %v, revision %s", i, v.Fault, v.Desired.Allowed, v.Config.Revision)
		}
	}
}

func TestParseCommit(t *testing.T) {
	for text, good := range map[string]bool{
		strings.Repeat("a", 40): true, strings.Repeat("A", 64): true, strings.Repeat("a", 41): false, "abc": false, "HEAD": false,
		strings.Repeat("g", 40): false, "": false,
	} {
		if got, err := ParseCommit(text); (err == nil) != good || good && got != strings.ToLower(text) {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
}

// A configuration that was refused must not be what a later one keeps for a file that cannot be read.
func TestRefusedConfigurationIsNotKept(t *testing.T) {
	c, folder := newSignedCheckout(t), t.TempDir()
	if _, err := disk.Init(folder); err != nil {
		t.Fatal(err)
	}
	write := func(title string) {
		c.write("conf/nodes.yaml", "nodes: {node1: {disks: {disk1: {path: "+folder+"}}}}\n")
		c.write("conf/a.yaml", "images: {parrot: {title: "+title+", uuid: \"00000001\", source: {upload: {}}}}\n")
	}
	write("zero")
	base := c.commit(sign)
	write("one")
	one := c.commit(sign)
	l, log := c.configuration("node1"), slog.New(slog.DiscardHandler)
	dir := NewDirectory(l.Dir, 50*time.Millisecond, l.Commits, log)
	go dir.Run(t.Context(), nil)
	until := func(what string, is func(*status.View) bool) *status.View {
		t.Helper()
		for over := time.After(time.Minute); ; {
			select {
			case r := <-dir.Readings:
				if _, err := l.Apply(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				dir.Conclude(r, l.Result)
				if v := l.View(time.Time{}); is(v) {
					return v
				}
			case <-over:
				t.Fatalf("not within a minute: %s", what)
			}
		}
	}
	title := func(v *status.View) string { return v.Config.Config.Images["parrot"].Title }
	until("the first commit is applied", func(v *status.View) bool { return title(v) == "one" })
	c.git("checkout", "-q", "-b", "side", base)
	write("two")
	c.commit(sign)
	until("the commit of another branch is refused", func(v *status.View) bool { return strings.Contains(v.Fault, "did not come after") })
	c.git("checkout", "-q", "-b", "next", one)
	c.write("conf/a.yaml", "images: {parrot: {\n")
	broken := c.commit(sign)
	v := until("a commit with a broken file is applied", func(v *status.View) bool { return v.Config.Revision == broken })
	if len(v.Config.Errors) == 0 || title(v) != "one" {
		t.Errorf("errors %v, title %q, want that of the last accepted commit", v.Config.Errors, title(v))
	}
}

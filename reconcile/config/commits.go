package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch/signature"
	"github.com/seed-26586806/backing-image-manager/fetch/signature/commit"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/configdir/repository"
)

// SignedCommits accepts a configuration only from a signed commit of a git checkout.
type SignedCommits struct {
	KeysDir string // the folder with the keys: see package commit
	// AllowOlder are commits that are accepted although they do not descend from the last accepted commit.
	AllowOlder []string
}

// Verify returns who has signed the commit of a snapshot. The error says why the snapshot must not be applied: it is not from
// a checkout, its commit has no valid signature, or its files are not exactly those of the commit. For other files it wraps
// repository.ErrDiffers.
func (c SignedCommits) Verify(ctx context.Context, s configdir.Snapshot) (by signature.Result, err error) {
	at := s.Checkout
	switch {
	case at == (configdir.Checkout{}):
		return by, errors.New("the config directory is not in a git checkout: --require-signed-commits needs one")
	case s.Revision == "":
		return by, errors.New("the commit of the config directory cannot be read: check the checkout with git log")
	}
	defer func() {
		if err != nil {
			err = notAccepted(s.Revision, err)
		}
	}()
	if err := c.checkKeysDir(at); err != nil {
		return by, err
	}
	keys, err := commit.ReadKeys(c.KeysDir)
	if err != nil {
		return by, err
	}
	r := repository.Open(at.GitDir)
	object, err := r.Commit(ctx, s.Revision)
	if err != nil {
		return by, err
	}
	if by, err = keys.Verify(object, time.Now()); err != nil {
		return by, err
	}
	if !slices.Contains(c.AllowOlder, s.Revision) {
		_, dated := commit.Identify(object)
		if err := r.EachParent(ctx, object, func(id string, parent []byte) error {
			_, before := commit.Identify(parent)
			return compareDates(dated, before, id)
		}); err != nil {
			return by, err
		}
	}
	return by, r.Compare(ctx, s.Revision, at.Folder, s.Files)
}

// compareDates returns an error for a commit that is dated before an earlier commit. An expired key could have signed it,
// because a key must be valid at the date of the commit, and the signer chooses this date.
func compareDates(dated, before time.Time, earlier string) error {
	if dated.Before(before.Add(-signature.MaxSkew)) {
		return fmt.Errorf("it is dated %s, and the earlier commit %s is dated %s: sign it again by a correct clock, or accept it with --allow-older-commit",
			dated.Format(time.RFC3339), earlier, before.Format(time.RFC3339))
	}
	return nil
}

// checkKeysDir returns an error if a commit could bring its own keys.
func (c SignedCommits) checkKeysDir(at configdir.Checkout) error {
	keys, err := filepath.EvalSymlinks(c.KeysDir)
	if err == nil {
		keys, err = filepath.Abs(keys)
	}
	if err != nil {
		return fmt.Errorf("read --require-signed-commits: %w", err)
	}
	for _, folder := range []string{at.Root, at.GitDir} {
		if rel, err := filepath.Rel(folder, keys); err == nil && filepath.IsLocal(rel) {
			return fmt.Errorf("a commit could change the keys of --require-signed-commits, which are in the checkout %s: move them out of it", folder)
		}
	}
	return nil
}

// commitGate judges the snapshots of a config directory. nil accepts all.
type commitGate struct {
	verify func(context.Context, configdir.Snapshot) error

	accepted judged // zero: none yet
	rejected judged
}

// judged is a snapshot with the result of its verification.
type judged struct {
	files    ident.Digest
	revision string
	err      error
	at       time.Time
	settling bool // the files may match the commit in a moment
}

const (
	// rejectAgain is after what time a rejected snapshot is verified again: keys may have changed.
	rejectAgain = time.Minute
	// settleAgain is after what time files that differ from the commit are read again: git writes the files first.
	settleAgain = time.Second
)

// judge returns nil if the snapshot may be applied. again is the delay after which the directory is read again before the
// error counts; 0: the error counts now.
func (g *commitGate) judge(ctx context.Context, s configdir.Snapshot, now time.Time) (again time.Duration, err error) {
	if g == nil {
		return 0, nil
	}
	same := func(j judged) bool { return j.revision == s.Revision && j.files == s.Digest() && !j.at.IsZero() }
	if same(g.accepted) {
		return 0, nil
	}
	known := same(g.rejected)
	if known && !g.rejected.settling && now.Sub(g.rejected.at) < rejectAgain {
		return 0, g.rejected.err
	}
	j := judged{files: s.Digest(), revision: s.Revision, at: now}
	if j.err = g.verify(ctx, s); j.err == nil {
		g.accepted, g.rejected = j, judged{}
		return 0, nil
	}
	if !known && errors.Is(j.err, repository.ErrDiffers) {
		j.settling, again = true, settleAgain
	}
	g.rejected = j
	return again, j.err
}

// commitMemory compares commits with the last accepted commits, which are recorded on the disks. The zero value has accepted
// no commit. It is for one goroutine.
type commitMemory struct {
	rules SignedCommits
	repo  repository.Repository
	// current is the last accepted commit. recorded has, by uuid, the disks on which current is recorded.
	current  disk.ConfigCommit
	recorded map[string]bool
	// descents are the comparisons of two commits, by their names. They stay valid, and a long history takes seconds to read.
	descents map[[2]string]descent
}

type descent struct {
	newer bool
	err   error     // why newer is not known
	again time.Time // when to try again after an error
}

// accept makes a commit the current commit if AllowOlder has it, or if it came after the current commit and after the commits
// on the disks. It changes nothing if it returns an error.
func (m *commitMemory) accept(ctx context.Context, at configdir.Checkout, name string, disks map[ident.DiskRef]*disk.Disk) error {
	if m.descents == nil || len(m.descents) > 1000 {
		m.descents = map[[2]string]descent{}
	}
	next := commitMemory{rules: m.rules, repo: repository.Open(at.GitDir), recorded: map[string]bool{}, descents: m.descents}
	object, err := next.repo.Commit(ctx, name)
	signed, committed := commit.Identify(object)
	next.current = disk.ConfigCommit{Name: name, Signed: signed, Committed: committed}
	if err == nil {
		err = next.check(ctx, disks)
	}
	if err == nil && m.current.Name != "" && !slices.Contains(m.rules.AllowOlder, name) {
		// Perhaps no disk has it: disks may be away or read-only, and another configuration may name other disks.
		err = next.compare(ctx, m.current, "the last commit that was applied")
	}
	if err != nil {
		return notAccepted(name, err)
	}
	*m = next
	return nil
}

func notAccepted(commit string, err error) error {
	return fmt.Errorf("commit %s is not accepted: %w", commit, err)
}

// check returns an error if the current commit does not descend from the commit on a disk, or if that cannot be read.
func (m *commitMemory) check(ctx context.Context, disks map[ident.DiskRef]*disk.Disk) error {
	if slices.Contains(m.rules.AllowOlder, m.current.Name) {
		return nil
	}
	for _, ref := range slices.SortedFunc(maps.Keys(disks), ident.DiskRef.Compare) {
		uuid := disks[ref].UUID()
		if m.recorded[uuid] {
			continue
		}
		last, err := disks[ref].ConfigCommit()
		if err != nil {
			return fmt.Errorf("the last commit on disk %s is not known: %w: accept this commit with --allow-older-commit", ref, err)
		}
		if last.Name == "" {
			continue
		}
		if err := m.compare(ctx, last, "the last commit on disk "+ref.String()); err != nil {
			return err
		}
		m.recorded[uuid] = last.Signed == m.current.Signed
	}
	return nil
}

// compare returns an error if the current commit does not descend from last, or is dated before last. The text what names last
// in the error.
func (m *commitMemory) compare(ctx context.Context, last disk.ConfigCommit, what string) error {
	key := [2]string{m.current.Name, last.Name}
	d, known := m.descents[key]
	if !known || d.err != nil && time.Now().After(d.again) {
		d.newer, d.err = m.repo.IsDescendant(ctx, m.current.Name, last.Name, func(object []byte) bool {
			signed, _ := commit.Identify(object)
			return signed == last.Signed
		})
		d.again = time.Now().Add(rejectAgain)
		m.descents[key] = d
	}
	switch {
	case errors.Is(d.err, repository.ErrMissing):
		return fmt.Errorf("it is not known whether it came after %s, %s: fetch the whole history, which is incomplete, or accept the "+
			"commit with --allow-older-commit", last.Name, what)
	case d.err != nil:
		return d.err
	case !d.newer:
		return fmt.Errorf("it did not come after %s, %s: if it is right, accept it with --allow-older-commit", last.Name, what)
	}
	return compareDates(m.current.Committed, last.Committed, last.Name)
}

// record records the current commit on all disks that do not have it. It first checks the commits on these disks: refused
// is why the current commit is not accepted. failed is why a disk does not have it yet.
func (m *commitMemory) record(ctx context.Context, disks map[ident.DiskRef]*disk.Disk) (refused, failed error) {
	if err := m.check(ctx, disks); err != nil {
		return notAccepted(m.current.Name, err), nil
	}
	for _, d := range disks {
		if m.recorded[d.UUID()] {
			continue
		}
		err := d.SetConfigCommit(m.current)
		if m.recorded[d.UUID()] = err == nil; err != nil && !errors.Is(err, disk.ErrReadOnly) {
			failed = errors.Join(failed, err)
		}
	}
	return nil, failed
}

// CheckCommit returns nil if a verified snapshot may be applied to the disks: its commit came after those that were accepted
// before. With record, the commit is recorded on the disks.
func (c SignedCommits) CheckCommit(ctx context.Context, s configdir.Snapshot, disks map[ident.DiskRef]*disk.Disk, record bool) error {
	m := commitMemory{rules: c}
	if err := m.accept(ctx, s.Checkout, s.Revision, disks); err != nil || !record {
		return err
	}
	refused, failed := m.record(ctx, disks)
	return errors.Join(refused, failed)
}

// ParseCommit returns the name of a commit for AllowOlder. The text must have all hex digits.
func ParseCommit(text string) (string, error) {
	text = strings.ToLower(strings.TrimSpace(text))
	if len(text) != 40 && len(text) != 64 || strings.Trim(text, "0123456789abcdef") != "" {
		return "", fmt.Errorf("%q is not the whole name of a commit: write 40 or 64 hex digits", text)
	}
	return text, nil
}

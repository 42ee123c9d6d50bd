package backup

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

// The lock files of a target keep who deletes blocks from those who use them, in
// Longhorn's protocol: write a lock, let the others' writes settle, look at all of
// them; who comes first goes on, and writes the lock anew as long as it works.
const (
	locksFolder = "backupstore/volumes/22/fc/BACKINGIMAGE/locks" // by the checksum of that name
	lockSuffix  = ".lck"

	lockSettleTime    = 2 * time.Second
	lockRenewInterval = 60 * time.Second
	lockTTL           = 150 * time.Second
	// lockMaxAge is when its holder gives up one that it could not renew, well before others
	// take it for expired.
	lockMaxAge = lockTTL - lockRenewInterval
	// lockRemoveAge is when a lock that expired is removed: nobody has cared for it
	// for long, and nobody does, whatever the clock.
	lockRemoveAge = time.Hour
)

// lockType tells those who may be there together: locks of one type.
type lockType int

const (
	shared    lockType = 1 // backup and restore
	exclusive lockType = 2 // deletion
)

// lockFile is the file, key for key as Longhorn writes it.
type lockFile struct {
	Name     string
	Type     lockType
	Acquired bool
}

func (f lockFile) key() string { return path.Join(locksFolder, f.Name+lockSuffix) }

// lock is one that is held.
type lock struct {
	store Store
	file  lockFile

	mu        sync.Mutex // of who writes it
	writtenAt time.Time

	stop    context.CancelFunc
	renewer sync.WaitGroup
}

// acquire takes a lock of the Store at once or fails: fetch.Network says that
// somebody has one who must not be there at the same time. The context returned ends
// when the lock may not be held any more.
func acquire(ctx context.Context, s Store, t lockType, settle time.Duration) (context.Context, *lock, error) {
	var id [8]byte
	rand.Read(id[:])
	l := &lock{store: s, file: lockFile{Name: "lock-" + hex.EncodeToString(id[:]), Type: t}}
	err := l.write(ctx)
	if err == nil {
		err = sleep(ctx, settle)
	}
	if err == nil {
		err = l.checkConflicts(ctx)
	}
	if err == nil {
		l.file.Acquired = true
		err = l.write(ctx)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("lock %s: %w", s, err), l.remove(ctx))
	}
	held, lost := context.WithCancelCause(ctx)
	renewing, stop := context.WithCancel(ctx)
	l.stop = stop
	l.renewer.Go(func() { l.renew(renewing, lost) })
	return held, l, nil
}

// release gives the lock back. One that cannot be removed expires.
func (l *lock) release(ctx context.Context) {
	l.stop()
	l.renewer.Wait()
	_ = l.remove(ctx)
}

// withLock does work while it holds a lock of the Store.
func withLock(ctx context.Context, s Store, t lockType, work func(context.Context, *lock) error) error {
	held, l, err := acquire(ctx, s, t, lockSettleTime)
	if err != nil {
		return err
	}
	defer l.release(ctx)
	return withLostCause(ctx, held, work(held, l))
}

// confirm makes sure that the lock is held, and will be for a while. The process may have
// been stopped, or the machine, for so long that others took it for dead, before renew
// could see that.
func (l *lock) confirm(ctx context.Context) error {
	if err := l.checkAge(); err != nil {
		return err
	}
	return l.write(ctx)
}

// checkAge says why the lock may not be held any more.
func (l *lock) checkAge() error {
	if age := l.age(); age >= lockMaxAge {
		return errorf(fetch.Network, "lost the lock of %s: it was not renewed for %s", l.store, age.Round(time.Second))
	}
	return nil
}

// age is how long ago the lock was written, by the wall clock: the other one may stand
// still while the machine does.
func (l *lock) age() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Round(0).Sub(l.writtenAt.Round(0))
}

// withLostCause is err, or why held ended if not by the end of ctx.
func withLostCause(ctx, held context.Context, err error) error {
	if err != nil && ctx.Err() == nil && held.Err() != nil {
		return context.Cause(held)
	}
	return err
}

// cleanupTimeout bounds what is done for others after the work was ended.
const cleanupTimeout = 30 * time.Second

func (l *lock) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := l.store.Delete(ctx, l.file.key()); err != nil {
		return fmt.Errorf("unlock %s: %w", l.store, err)
	}
	return nil
}

func (l *lock) write(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	data, err := json.Marshal(l.file)
	if err != nil {
		return err
	}
	if err := l.store.Put(ctx, l.file.key(), data); err != nil {
		return err
	}
	l.writtenAt = time.Now()
	return nil
}

// renew writes the lock anew from time to time, and says when it was lost.
func (l *lock) renew(ctx context.Context, lost context.CancelCauseFunc) {
	for every := lockRenewInterval; ; {
		if sleep(ctx, every) != nil {
			return
		}
		attempt, cancel := context.WithTimeout(ctx, lockTTL-l.age())
		err := l.write(attempt)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			every = lockRenewInterval
		case l.age() < lockMaxAge:
			every = lockRenewInterval / 6
		default:
			lost(errorf(fetch.Network, "lost the lock of %s: %w", l.store, err))
			return
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// storedLock is one in the Store, ours included.
type storedLock struct {
	lockFile
	modified time.Time
}

// checkConflicts looks whether a lock of the other type was there before.
func (l *lock) checkConflicts(ctx context.Context) error {
	locks, err := readLocks(ctx, l.store)
	if err != nil {
		return err
	}
	var own storedLock
	for _, o := range locks {
		if o.Name == l.file.Name {
			own = o
		}
	}
	if own.modified.IsZero() {
		return errorf(fetch.Network, "the lock was removed by somebody else")
	}
	now := own.modified.Add(l.age())
	for _, o := range locks {
		age := now.Sub(o.modified)
		switch {
		case age > lockRemoveAge:
			if err := l.store.Delete(ctx, o.key()); err != nil {
				return err
			}
		case o.Type != own.Type && age <= lockTTL && o.before(own):
			return errorf(fetch.Network, "somebody %s (lock %s; if that one has died, its lock ends in %v)",
				o.Type, o.Name, (lockTTL - age).Round(time.Second))
		}
	}
	return nil
}

func (t lockType) String() string {
	if t == exclusive {
		return "deletes a backup there"
	}
	return "backs up or restores there"
}

// before puts locks into the order in which they may be held.
func (f storedLock) before(other storedLock) bool {
	switch {
	case f.Acquired != other.Acquired:
		return f.Acquired
	case !f.modified.Equal(other.modified):
		return f.modified.Before(other.modified)
	}
	return f.Name < other.Name
}

var lockPattern = regexp.MustCompile(`^lock-[0-9a-f]{1,32}$`)

// maxLock bounds the file of a lock.
const maxLock = 4 << 10

// readLocks reads all locks. What cannot be read is not one, as for Longhorn; one that
// has gone meanwhile does not count.
func readLocks(ctx context.Context, s Store) ([]storedLock, error) {
	entries, err := s.List(ctx, locksFolder)
	if err != nil {
		return nil, err
	}
	var locks []storedLock
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name, lockSuffix)
		if !ok || e.Dir || !lockPattern.MatchString(name) {
			continue
		}
		r, err := s.Open(ctx, path.Join(locksFolder, e.Name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(io.LimitReader(r, maxLock))
		r.Close()
		if err != nil {
			return nil, err
		}
		one := storedLock{modified: e.Modified}
		if json.Unmarshal(data, &one.lockFile) == nil && one.Name == name {
			locks = append(locks, one)
		}
	}
	return locks, nil
}

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

// Lock files in a target prevent deletions while other processes use blocks. The protocol is
// Longhorn's: write a lock file, wait until concurrent writes are visible, and read all lock files.
// The earliest lock wins, and its process rewrites the lock file periodically.
const (
	locksFolder = "backupstore/volumes/22/fc/BACKINGIMAGE/locks" // derived from the checksum of the name BACKINGIMAGE
	lockSuffix  = ".lck"

	lockSettleTime    = 2 * time.Second
	lockRenewInterval = 60 * time.Second
	lockTTL           = 150 * time.Second
	// lockMaxAge is the age at which a process gives up its lock because it could not renew it. Other
	// processes regard the lock as expired only at lockTTL.
	lockMaxAge = lockTTL - lockRenewInterval
	// lockRemoveAge is the age at which any process removes an expired lock. It exceeds every
	// plausible difference between the clocks of machines.
	lockRemoveAge = time.Hour
)

// lockType is the type of a lock. Locks of different types conflict.
type lockType int

const (
	shared    lockType = 1 // backup and restore
	exclusive lockType = 2 // deletion
)

// lockFile is the content of a lock file, with the keys of Longhorn.
type lockFile struct {
	Name     string
	Type     lockType
	Acquired bool
}

func (f lockFile) key() string { return path.Join(locksFolder, f.Name+lockSuffix) }

// lock is an acquired lock.
type lock struct {
	store Store
	file  lockFile

	mu        sync.Mutex // serializes writes
	writtenAt time.Time

	stop    context.CancelFunc
	renewer sync.WaitGroup
}

// acquire creates a lock in the Store. It does not wait for other locks: an error of the class
// fetch.Network means that a conflicting lock exists. The returned context ends when the lock is
// lost.
func acquire(ctx context.Context, s Store, t lockType, delay time.Duration) (context.Context, *lock, error) {
	var id [8]byte
	rand.Read(id[:])
	l := &lock{store: s, file: lockFile{Name: "lock-" + hex.EncodeToString(id[:]), Type: t}}
	err := l.write(ctx)
	if err == nil {
		err = fetch.Sleep(ctx, delay)
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
	lockCtx, lost := context.WithCancelCause(ctx)
	renewing, stop := context.WithCancel(ctx)
	l.stop = stop
	l.renewer.Go(func() { l.renew(renewing, lost) })
	return lockCtx, l, nil
}

// release removes the lock. If that fails, the lock expires.
func (l *lock) release(ctx context.Context) {
	l.stop()
	l.renewer.Wait()
	_ = l.remove(ctx)
}

// withLock calls work with a lock of the Store.
func withLock(ctx context.Context, s Store, t lockType, work func(context.Context, *lock) error) error {
	lockCtx, l, err := acquire(ctx, s, t, lockSettleTime)
	if err != nil {
		return err
	}
	defer l.release(ctx)
	return withLostCause(ctx, lockCtx, work(lockCtx, l))
}

// confirm renews the lock before a step that depends on it. The process or the machine may have been
// suspended for longer than lockTTL, and renew may not have detected this yet.
func (l *lock) confirm(ctx context.Context) error {
	if err := l.checkAge(); err != nil {
		return err
	}
	return l.write(ctx)
}

// checkAge returns an error if the lock must be considered lost.
func (l *lock) checkAge() error {
	if age := l.age(); age >= lockMaxAge {
		return fetch.Errorf(fetch.Network, "lost the lock of %s: it was not renewed for %s", l.store, age.Round(time.Second))
	}
	return nil
}

// age returns the time since the lock file was written. It uses the wall clock, because the monotonic
// clock stops while the machine is suspended.
func (l *lock) age() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Round(0).Sub(l.writtenAt.Round(0))
}

// withLostCause returns the cause of lockCtx instead of err if lockCtx ended before ctx.
func withLostCause(ctx, lockCtx context.Context, err error) error {
	if err != nil && ctx.Err() == nil && lockCtx.Err() != nil {
		return context.Cause(lockCtx)
	}
	return err
}

// cleanupTimeout limits the removal of a lock after ctx has ended.
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

// renew rewrites the lock file periodically. It calls lost if the writes fail for too long.
func (l *lock) renew(ctx context.Context, lost context.CancelCauseFunc) {
	for every := lockRenewInterval; ; {
		if fetch.Sleep(ctx, every) != nil {
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
			lost(fetch.Errorf(fetch.Network, "lost the lock of %s: %w", l.store, err))
			return
		}
	}
}

// storedLock is a lock file in the Store. It may belong to this or another process.
type storedLock struct {
	lockFile
	modified time.Time
}

// checkConflicts returns an error if a lock of the other type is earlier than this lock. It also
// removes locks that expired long ago.
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
		return fetch.Errorf(fetch.Network, "another process removed the lock")
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
			return fetch.Errorf(fetch.Network, "another process %s (lock %s; if the process no longer runs, the lock expires in %v)",
				o.Type, o.Name, (lockTTL - age).Round(time.Second))
		}
	}
	return nil
}

func (t lockType) String() string {
	if t == exclusive {
		return "deletes a backup"
	}
	return "creates or restores a backup"
}

// before reports whether lock f wins against other, if their types conflict.
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

// maxLock is the maximum size of a lock file.
const maxLock = 4 << 10

// readLocks reads all lock files. Like Longhorn, it ignores files that are not valid locks. It also
// ignores locks that are removed while it runs.
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

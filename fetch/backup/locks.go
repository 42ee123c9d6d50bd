package backup

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

// otherLock is one in the Store, ours included.
type otherLock struct {
	lockFile
	modified time.Time
}

// first looks whether a lock of the other type was there before.
func (l *lock) first(ctx context.Context) error {
	locks, err := readLocks(ctx, l.store)
	if err != nil {
		return err
	}
	var own otherLock
	for _, o := range locks {
		if o.Name == l.file.Name {
			own = o
		}
	}
	if own.modified.IsZero() {
		return fail(fetch.Network, "the lock was removed by somebody else")
	}
	now := own.modified.Add(l.age())
	for _, o := range locks {
		age := now.Sub(o.modified)
		switch {
		case age > lockForgotten:
			if err := l.store.Delete(ctx, o.key()); err != nil {
				return err
			}
		case o.Type != own.Type && age <= lockExpires && o.before(own):
			return fail(fetch.Network, "somebody %s (lock %s; if that one has died, its lock ends in %v)",
				o.Type, o.Name, (lockExpires - age).Round(time.Second))
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
func (f otherLock) before(other otherLock) bool {
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
func readLocks(ctx context.Context, s Store) ([]otherLock, error) {
	entries, err := s.List(ctx, locksFolder)
	if err != nil {
		return nil, err
	}
	var locks []otherLock
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
		one := otherLock{modified: e.Modified}
		if json.Unmarshal(data, &one.lockFile) == nil && one.Name == name {
			locks = append(locks, one)
		}
	}
	return locks, nil
}

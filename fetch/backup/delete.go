package backup

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

// DeleteResult is the result of Delete.
type DeleteResult struct {
	Found         bool // a backup with this name existed
	RemovedBlocks int
	BlocksKept    error // why unused blocks were kept; nil: all were removed
}

// Delete removes a backup, and then the blocks that no other backup of the Store uses. If another backup is
// incomplete or unreadable, or is created at the same time, Delete removes no block, because the other
// backup may use any block. If the removed backup was incomplete, or an interrupted Delete has already
// removed it, Delete searches the whole Store for unused blocks. After an interruption, call Delete again
// with the same name.
func Delete(ctx context.Context, s Store, name string) (done DeleteResult, err error) {
	if err := checkName(name); err != nil {
		return DeleteResult{}, &fetch.Error{Class: fetch.BadConfig, Err: err}
	}
	err = withLock(ctx, s, exclusive, func(ctx context.Context, l *lock) error {
		b, err := Load(ctx, s, name)
		if err != nil && !isClass(err, fetch.BadSource) {
			return err
		}
		done.Found = b != nil || err != nil
		if err := s.Delete(ctx, cfgKey(name)); err != nil {
			return fmt.Errorf("delete backup %s: %w", name, err)
		}
		unused, kept, err := unusedBlocks(ctx, s, b)
		if err != nil || kept != nil {
			done.BlocksKept = kept
			return err
		}
		done.RemovedBlocks = len(unused)
		return removeBlocks(ctx, s, l, unused)
	})
	return done, err
}

// unusedBlocks returns the blocks of b that no other backup uses. If b is nil or incomplete, it returns all
// unused blocks of the Store. If the unused blocks cannot be determined, kept is the reason.
func unusedBlocks(ctx context.Context, s Store, b *Backup) (blocks []blockID, kept, err error) {
	names, err := List(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	var candidates []blockID
	if b != nil && b.Complete() {
		for _, block := range b.Blocks {
			candidates = append(candidates, block.ID)
		}
	} else if candidates, err = allBlocks(ctx, s); err != nil {
		return nil, nil, err
	}
	left := make(map[blockID]bool, len(candidates))
	for _, block := range candidates {
		left[block] = true
	}
	for _, name := range names {
		other, err := Load(ctx, s, name)
		switch {
		case isClass(err, fetch.BadSource):
			return nil, err, nil
		case err != nil:
			return nil, nil, err
		case other == nil: // an empty folder
			continue
		case !other.Complete():
			return nil, fmt.Errorf("backup %s is incomplete", name), nil
		}
		for _, block := range other.Blocks {
			delete(left, block.ID)
		}
	}
	switch now, err := List(ctx, s); {
	case err != nil:
		return nil, nil, err
	case !slices.Equal(now, names):
		return nil, errors.New("another backup was created or deleted at the same time"), nil
	}
	for block := range left {
		blocks = append(blocks, block)
	}
	return blocks, nil, nil
}

// parallelRequests is the number of concurrent requests of a deletion.
const parallelRequests = 4

// subfolderPattern matches the folders of blocks.
var subfolderPattern = regexp.MustCompile(`^[0-9a-f]{2}$`)

// allBlocks returns the ids of all block files of the Store.
func allBlocks(ctx context.Context, s Store) ([]blockID, error) {
	first, err := s.List(ctx, blocksFolder)
	if err != nil {
		return nil, err
	}
	found := make([][]blockID, len(first))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelRequests)
	for i, e := range first {
		if !e.Dir || !subfolderPattern.MatchString(e.Name) {
			continue
		}
		group.Go(func() error {
			second, err := s.List(ctx, path.Join(blocksFolder, e.Name))
			if err != nil {
				return err
			}
			for _, f := range second {
				if !f.Dir || !subfolderPattern.MatchString(f.Name) {
					continue
				}
				files, err := s.List(ctx, path.Join(blocksFolder, e.Name, f.Name))
				if err != nil {
					return err
				}
				for _, file := range files {
					if block, ok := parseBlockFile(file.Name); ok {
						found[i] = append(found[i], block)
					}
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.Concat(found...), nil
}

// removeBlocks removes blocks. It stops when the lock is lost, because another backup may then use
// the blocks.
func removeBlocks(ctx context.Context, s Store, l *lock, blocks []blockID) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelRequests)
	for _, block := range blocks {
		group.Go(func() error {
			if err := l.checkAge(); err != nil {
				return err
			}
			return s.Delete(ctx, block.key())
		})
	}
	return group.Wait()
}

package backup

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"sync/atomic"
)

// A block that is there already, of another backup or of this one before it was killed,
// becomes part of a backup that calls itself complete. Whoever restores that verifies
// each block, Longhorn too, and finds a bad one when there may be nothing else left to
// restore from. So it is looked at while the right bytes are at hand, and written anew
// if it is bad, which mends all backups that share it.
//
//	a folder    is read back: a disk or a share may have cut or spoilt it, and reading
//	            costs no more than writing it would have
//	a bucket    has written it whole or not at all, with a checksum of its own: it is
//	            read back only if it has not the size that it would have from us

// reader reads blocks back. Its memory is used again and again.
type reader struct {
	decoder *decoder
	file    []byte
	block   []byte
}

func newReader() *reader {
	return &reader{newDecoder(), make([]byte, maxStored+1), make([]byte, BlockSize)}
}

// there reports whether the Store has the block, as good as a file of size bytes.
func (k *keeper) there(ctx context.Context, l loaded, size int) (bool, error) {
	has, err := stored(ctx, k.store, l.Sum)
	if err != nil || has <= 0 || has > maxStored {
		return false, err
	}
	if !inFolder(k.store) && has == int64(size) {
		return true, nil
	}
	r := <-k.readers
	if r == nil { // most backups need none
		r = newReader()
	}
	defer func() { k.readers <- r }()
	file, err := (traffic{nil, new(atomic.Int64)}).read(ctx, k.store, l.Sum.key(), r.file)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errNotThese):
		return false, nil
	case err != nil:
		return false, err
	}
	return r.decoder.decode(r.block[:len(l.data)], file, l.Sum) == nil, nil
}

// inFolder reports whether the files of a Store are on a file system.
func inFolder(s Store) bool {
	if p, ok := s.(patient); ok {
		s = p.Store
	}
	_, ok := s.(*folder)
	return ok
}

// stored returns how many bytes the Store has of a block; 0: it has none.
func stored(ctx context.Context, s Store, sum Sum) (int64, error) {
	entries, err := s.List(ctx, sum.folder())
	if err != nil {
		return 0, err
	}
	name := path.Base(sum.key())
	for _, e := range entries {
		if e.Name == name && !e.Dir {
			return e.Size, nil
		}
	}
	return 0, nil
}

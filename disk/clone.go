package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// CopySource returns the PartSource of a partial file that Clone fills from the ready copy c.
func CopySource(c model.Copy) PartSource {
	return PartSource{ID: "copy of " + c.SHA512.String(), Size: c.Size, Data: max(c.RealSize, 1)}
}

// Clone appends the chunks of image r from Offset on, and calls done(length) for each. Like AppendFrom it shares blocks, but
// it compares no hashes: Commit compares the digest of the whole image. Holes stay holes, and are not read.
func (p *Part) Clone(ctx context.Context, r *Reader, done func(int64)) error {
	holes := extents{f: r.chunks.f}
	for p.offset < r.Size() {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(ChunkSize, r.Size()-p.offset)
		var err error
		if holes.isHole(p.offset, p.offset+n) {
			err = p.AppendZeros(n)
		} else {
			err = p.appendFrom(r, p.offset, n, nil)
		}
		if err != nil {
			return errors.Join(err, r.Unchanged())
		}
		done(n)
	}
	return r.Unchanged()
}

// AppendFrom appends the next chunk, which another image r has at the offset from. The conditions of
// AppendChunk apply. ErrDamaged: the bytes of r there do not match the hash, or cannot be read. Then
// nothing was appended.
//
// The chunk shares the blocks of r if the file system can do that, and if the argument from is a multiple of the block size.
// Then the chunk uses no more space and is not written. Its hash is compared with bytes that are read from the partial file,
// because the page cache may have good pages of r whose blocks are damaged on the disk.
func (p *Part) AppendFrom(r *Reader, from, length int64, hash ChunkHash) error {
	return p.appendFrom(r, from, length, &hash)
}

// appendFrom does the work of AppendFrom. If hash is nil, it does not compare the bytes.
func (p *Part) appendFrom(r *Reader, from, length int64, hash *ChunkHash) error {
	c, err := p.next(length)
	if err != nil {
		return err
	}
	at, data := c.n*ChunkSize, c.buf[:length]
	shared, err := p.share(r, from, at, length)
	if err != nil {
		return err
	}
	if shared {
		_, err = readDirect(p.file, c.buf, at, at+length)
	} else {
		_, err = io.ReadFull(io.NewSectionReader(r, from, length), data)
	}
	switch {
	case err == nil && hash == nil:
		c.data, c.inPlace = data, shared
		return p.flush()
	case err == nil && hash.Matches(data):
		c.data, c.inPlace, c.hash = data, shared, *hash
		return p.flush()
	}
	p.offset = at
	if hash != nil {
		err = errors.Join(fmt.Errorf("append chunk: the chunk at %d of the other image %w", from, ErrDamaged), err)
	}
	if shared {
		if undo := p.unshare(at); undo != nil {
			return undo
		}
	}
	return err
}

// shareAlign returns the alignment of the blocks that f can share with other files, or 0 if it cannot.
//
// It accepts only file systems that cache pages for each file, XFS and btrfs. There, a read from f cannot return
// cached pages of the other file. ZFS, for example, caches a block once for all files that share it.
func shareAlign(f *os.File) int64 {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil || fs.Type != unix.XFS_SUPER_MAGIC && fs.Type != unix.BTRFS_SUPER_MAGIC {
		return 0
	}
	info, err := f.Stat()
	if err != nil {
		return 0
	}
	return int64(info.Sys().(*syscall.Stat_t).Blksize)
}

// share makes the chunk at offset "at" of the file share the blocks of r at offset "from". The chunk must be whole, or the last
// chunk of both images. share returns false if this is not possible, for example because r is on another file system. Then the
// caller writes the bytes, and meets a disk error there. The caller verifies shared bytes, and calls unshare if they are
// wrong.
func (w *partWriter) share(r *Reader, from, at, length int64) (bool, error) {
	whole := length == ChunkSize && from+length <= r.Size() || from+length == r.Size()
	if w.shareAlign == 0 || from%w.shareAlign != 0 || !whole || w.unshared[r] {
		return false, nil
	}
	w.resizing.Lock()
	err := unix.IoctlFileCloneRange(int(w.file.Fd()), &unix.FileCloneRange{
		Src_fd: int64(r.chunks.f.Fd()), Src_offset: uint64(from), Src_length: uint64(length), Dest_offset: uint64(at),
	})
	w.resizing.Unlock()
	if err == nil {
		return true, nil
	}
	if w.unshared == nil {
		w.unshared = map[*Reader]bool{}
	}
	w.unshared[r] = true
	return false, w.unshare(at) // some of the blocks may be shared
}

// unshare cuts shared bytes off the end of the file, beginning at the given offset, where all earlier chunks end.
// A chunk of zeros, which may follow there, would not overwrite them.
func (w *partWriter) unshare(at int64) error {
	w.resizing.Lock()
	defer w.resizing.Unlock()
	if err := w.file.Truncate(at); err != nil {
		return fmt.Errorf("truncate %s: %w", partFile, w.wrapNoSpace(noSpace(err)))
	}
	return nil
}

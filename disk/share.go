package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// AppendFrom appends the next chunk from another image, which has it at the offset from, under the
// conditions of AppendChunk. ErrDamaged: the other image does not have a chunk with this hash there, or it
// cannot be read. Then nothing was appended.
//
// Where the file system can, a whole chunk shares the blocks of the other image: it uses no more space and
// is not written. from must then be a multiple of the block size. The hash is compared with what the disk
// returns for the partial file: the page cache may have good pages of the other image whose blocks are
// damaged on the disk.
func (p *Part) AppendFrom(r *Reader, from, length int64, hash ChunkHash) error {
	c, err := p.next(length)
	if err != nil {
		return err
	}
	at := c.n * ChunkSize
	shared, err := p.writer.share(r, from, at, length)
	if err != nil {
		return err
	}
	if shared {
		_, err = readDirect(p.writer.file, c.buf, at, at+length)
	} else if _, err = r.ReadAt(c.buf[:length], from); errors.Is(err, io.EOF) {
		err = nil // the last chunk of the other image, or its hash differs
	}
	if err == nil && hash.Matches(c.buf[:length]) {
		c.data, c.hash, c.inPlace = c.buf[:length], hash, shared
		return p.flush()
	}
	p.offset = at
	err = errors.Join(fmt.Errorf("append chunk: the chunk at %d of the other image %w", from, ErrDamaged), err)
	if shared {
		if undo := p.writer.unshare(at); undo != nil {
			return undo
		}
	}
	return err
}

// shareAlign returns the alignment of the blocks that f can share with other files, or 0 if it cannot.
//
// The file systems with a page cache for each file are known: there, a read from f after the blocks were
// shared cannot return pages of the other file. ZFS, for example, caches blocks for all files that share them.
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

// share makes the file share, from the offset at on, the blocks that r has from the offset from on. It
// returns false if this is not possible, for example because r is on another file system. Then the bytes are
// written, and an error of the disk occurs there. The caller verifies the shared bytes, and calls unshare
// if they are wrong.
func (w *partWriter) share(r *Reader, from, at, length int64) (bool, error) {
	if w.shareAlign == 0 || from%w.shareAlign != 0 || length != ChunkSize || from+length > r.Size() || w.unshared[r] {
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

// unshare removes the bytes from the offset at on, which were shared: a chunk of zeros, for which nothing is
// written, may follow there. All earlier chunks end before.
func (w *partWriter) unshare(at int64) error {
	w.resizing.Lock()
	defer w.resizing.Unlock()
	if err := w.file.Truncate(at); err != nil {
		return fmt.Errorf("truncate %s: %w", partFile, w.wrapNoSpace(noSpace(err)))
	}
	return nil
}

package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// CopySource returns the PartSource of a partial file that Clone fills from the ready copy c.
func CopySource(c model.Copy) PartSource {
	return PartSource{ID: "copy of " + c.SHA512.String(), Size: c.Size, Data: max(c.RealSize, 1)}
}

// Clone appends the bytes of r that follow Offset, and calls done with the length of each piece.
//
// Where the file system supports reflinks, the partial file shares the extents of the image: they use
// no more space and are not written. They are still read once, so that the hashes are computed from
// the bytes that are on the disk now. On other file systems all data is copied, except holes.
func (p *Part) Clone(ctx context.Context, r *Reader, done func(int64)) error {
	if p.ended() {
		return errEnded
	}
	c := cloner{to: p, from: r, done: done}
	shared, err := c.share()
	switch {
	case err != nil:
		return err
	case shared:
		err = c.hashShared(ctx)
	default:
		err = c.copy(ctx)
	}
	return errors.Join(err, r.Unchanged())
}

// cloner is the state of one call of Clone.
type cloner struct {
	to   *Part
	from *Reader
	done func(int64)
}

// cannotShare are the errors with which FICLONERANGE reports that the file system does not support
// it, or does not support it for these two files.
var cannotShare = []error{
	unix.EOPNOTSUPP, unix.EXDEV, unix.EINVAL, unix.EPERM, unix.ENOTTY, unix.ENOSYS, unix.EBADF, unix.ETXTBSY, unix.EMLINK,
}

// share appends the extents of the image from Offset on to the file. It returns false if the file
// system does not support that.
func (c cloner) share() (bool, error) {
	p, r := c.to, c.from
	if p.offset%ChunkSize != 0 || p.offset >= r.Size() {
		return false, nil
	}
	// Bytes after the last whole chunk are from an interrupted attempt.
	if err := errors.Join(p.pipeline.drain(p.ownedChunks()), p.writer.file.Truncate(p.offset)); err != nil {
		return false, err
	}
	err := unix.IoctlFileCloneRange(int(p.writer.file.Fd()), &unix.FileCloneRange{
		Src_fd: int64(r.chunks.f.Fd()), Src_offset: uint64(p.offset), Dest_offset: uint64(p.offset),
	})
	switch {
	case err == nil:
		return true, nil
	case slices.ContainsFunc(cannotShare, func(e error) bool { return errors.Is(err, e) }):
		return false, nil
	}
	return false, fmt.Errorf("share extents of %s: %w", r.chunks.f.Name(), p.writer.wrapNoSpace(noSpace(err)))
}

// hashShared reads the shared extents after Offset from the partial file, and appends them without a
// second write.
func (c cloner) hashShared(ctx context.Context) error {
	p, size := c.to, c.from.Size()
	s := &chunkReader{f: p.writer.file, direct: p.writer.direct, size: size, holes: extents{f: p.writer.file}}
	for p.offset < size {
		if err := ctx.Err(); err != nil {
			return err
		}
		if p.current == nil {
			next, err := p.pipeline.get()
			if err != nil {
				return err
			}
			p.current = next
		}
		if err := s.read(p.current, p.offset); err != nil {
			return err
		}
		n := int64(len(p.current.data))
		p.current.inPlace = true
		p.offset += n
		if err := p.flush(); err != nil {
			return err
		}
		c.done(n)
	}
	return nil
}

// copy appends the bytes of r after Offset, chunk by chunk.
func (c cloner) copy(ctx context.Context) error {
	p, r := c.to, c.from
	holes := extents{f: r.chunks.f}
	for p.offset < r.Size() {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(ChunkSize-p.offset%ChunkSize, r.Size()-p.offset)
		var err error
		if p.offset%ChunkSize == 0 && holes.isHole(p.offset, p.offset+n) {
			err = p.AppendZeros(n)
		} else {
			_, err = p.ReadFrom(io.NewSectionReader(r, p.offset, n))
		}
		if err != nil {
			return err
		}
		c.done(n)
	}
	return nil
}

package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/sys/unix"
)

// CopySource returns the PartSource of a partial file that Clone fills from the ready copy c.
func CopySource(c Copy) PartSource {
	return PartSource{ID: "copy of " + c.SHA512.String(), Size: c.Size, Data: max(c.RealSize, 1)}
}

// Clone appends the bytes of r from Offset on, and calls done with the length of each piece.
//
// Where the file system supports it (reflinks), the partial file shares the extents of the
// image: they use no more space and are not written. They are still read once, so that the
// hashes are those of the bytes on the disk now, and not of the image as it was once.
// Elsewhere all data is copied; holes stay holes.
func (p *Part) Clone(ctx context.Context, r *Reader, done func(int64)) error {
	if p.ended() {
		return errEnded
	}
	shared, err := p.share(r)
	switch {
	case err != nil:
		return err
	case shared:
		err = p.hashShared(ctx, r.Size(), done)
	default:
		err = p.copy(ctx, r, done)
	}
	return errors.Join(err, r.Unchanged())
}

// cannotShare are the errors of FICLONERANGE from file systems that do not support it, or
// not between these two files.
var cannotShare = []error{
	unix.EOPNOTSUPP, unix.EXDEV, unix.EINVAL, unix.EPERM, unix.ENOTTY, unix.ENOSYS, unix.EBADF, unix.ETXTBSY, unix.EMLINK,
}

// share extends the file, which ends at Offset, by the extents of the image. It returns false
// if the file system does not support that.
func (p *Part) share(r *Reader) (bool, error) {
	if p.offset%ChunkSize != 0 || p.offset >= r.Size() {
		return false, nil
	}
	// Bytes behind the last whole chunk are from an interrupted attempt.
	if err := errors.Join(p.pipeline.drain(p.ownedChunks()), p.file.Truncate(p.offset)); err != nil {
		return false, err
	}
	err := unix.IoctlFileCloneRange(int(p.file.Fd()), &unix.FileCloneRange{
		Src_fd: int64(r.chunks.f.Fd()), Src_offset: uint64(p.offset), Dest_offset: uint64(p.offset),
	})
	switch {
	case err == nil:
		return true, nil
	case slices.ContainsFunc(cannotShare, func(e error) bool { return errors.Is(err, e) }):
		return false, nil
	}
	return false, fmt.Errorf("share extents of %s: %w", r.chunks.f.Name(), p.wrapNoSpace(noSpace(err)))
}

// hashShared reads the shared extents behind Offset from the partial file itself, and appends
// them without another write.
func (p *Part) hashShared(ctx context.Context, size int64, done func(int64)) error {
	s := &chunkReader{f: p.file, direct: p.direct, size: size, holes: extents{f: p.file}}
	for p.offset < size {
		if err := ctx.Err(); err != nil {
			return err
		}
		if p.current == nil {
			c, err := p.pipeline.get()
			if err != nil {
				return err
			}
			p.current = c
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
		done(n)
	}
	return nil
}

// copy appends the bytes of r behind Offset, chunk by chunk.
func (p *Part) copy(ctx context.Context, r *Reader, done func(int64)) error {
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
		done(n)
	}
	return nil
}

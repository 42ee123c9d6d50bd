package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/sys/unix"
)

// CopySource is the origin of a part that Clone fills from a ready copy.
func CopySource(c Copy) PartSource {
	return PartSource{ID: "copy of " + c.SHA512.String(), Size: c.Size, Data: max(c.RealSize, 1)}
}

// Clone appends what r has from Offset on, and tells done of each piece. Where the file
// system can, the part shares the image's extents: they take no more room, and are not
// written. They are read all the same, so that the part is what its hashes say and not
// what the image was once. Elsewhere they are copied, but for the holes.
func (p *Part) Clone(ctx context.Context, r *Reader, done func(int64)) error {
	if p.ended() {
		return errEnded
	}
	shared, err := p.share(r)
	switch {
	case err != nil:
		return err
	case shared:
		err = p.takeIn(ctx, r.Size(), done)
	default:
		err = p.copy(ctx, r, done)
	}
	return errors.Join(err, r.Unchanged())
}

// cannotShare is what file systems say that cannot, or not between these files.
var cannotShare = []error{
	unix.EOPNOTSUPP, unix.EXDEV, unix.EINVAL, unix.EPERM, unix.ENOTTY, unix.ENOSYS, unix.EBADF, unix.ETXTBSY, unix.EMLINK,
}

// share makes the part, which ends at Offset, go on with the extents of the image.
func (p *Part) share(r *Reader) (bool, error) {
	if p.offset%ChunkSize != 0 || p.offset >= r.Size() {
		return false, nil
	}
	// What is behind the last whole chunk is of an attempt that was broken off.
	if err := errors.Join(p.pipeline.drain(p.held()), p.file.Truncate(p.offset)); err != nil {
		return false, err
	}
	err := unix.IoctlFileCloneRange(int(p.file.Fd()), &unix.FileCloneRange{
		Src_fd: int64(r.s.f.Fd()), Src_offset: uint64(p.offset), Dest_offset: uint64(p.offset),
	})
	switch {
	case err == nil:
		return true, nil
	case slices.ContainsFunc(cannotShare, func(e error) bool { return errors.Is(err, e) }):
		return false, nil
	}
	return false, fmt.Errorf("share extents of %s: %w", r.s.f.Name(), p.full(noSpace(err)))
}

// held returns how many chunks the part itself keeps out of the pipeline.
func (p *Part) held() int {
	if p.current != nil {
		return 1
	}
	return 0
}

// takeIn reads what is behind Offset in the part's own file.
func (p *Part) takeIn(ctx context.Context, size int64, done func(int64)) error {
	s := &imageSource{f: p.file, direct: p.direct, size: size, holes: extents{f: p.file}}
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

// copy reads what is behind Offset in r, chunk by chunk.
func (p *Part) copy(ctx context.Context, r *Reader, done func(int64)) error {
	holes := extents{f: r.s.f}
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

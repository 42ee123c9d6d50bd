package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// manifestError is a failure to read the manifest that was received.
type manifestError struct{ err error }

func (e *manifestError) Error() string { return e.err.Error() }

var errNoManifest = errors.New("it has no manifest of the image yet")

// Keep puts a manifest that comes of r somewhere, and says whether it is the one that
// is wanted: disk.Part.ReceiveManifest is one.
type Keep func(r io.Reader, size int64, want disk.Digest) (*disk.Manifest, error)

// Manifest brings the manifest of an image of so many bytes: the one that most sources
// name. Its errors are those of Into.
func (p *Pull) Manifest(ctx context.Context, size int64, keep Keep) (*disk.Manifest, error) {
	m, err := p.exchange().manifest(ctx, size, keep)
	return m, fetch.Classify(err)
}

func (x *exchange) manifest(ctx context.Context, size int64, keep Keep) (*disk.Manifest, error) {
	for {
		for _, s := range byRoot(x.shuffled()) {
			if s.Chunks.IsZero() {
				x.roster.of(s.name()).err = errNoManifest
				continue
			}
			if !x.roster.of(s.name()).usable() {
				continue
			}
			m, err := x.receive(ctx, s, size, keep)
			switch {
			case err == nil:
				return m, nil
			case ctx.Err() != nil:
				return nil, context.Cause(ctx)
			case local(err):
				return nil, err
			}
			if err := x.settle(ending{x.lane(s), err}); err != nil {
				return nil, err
			}
		}
		if x.lost() {
			return nil, x.roster.failure()
		}
		select {
		case <-time.After(x.roster.pause()):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// byRoot returns those first whose manifest most others name too.
func byRoot(sources []Source) []Source {
	votes := map[disk.Digest]int{}
	for _, s := range sources {
		votes[s.Chunks]++
	}
	slices.SortStableFunc(sources, func(a, b Source) int { return votes[b.Chunks] - votes[a.Chunks] })
	return sources
}

func (x *exchange) receive(ctx context.Context, s Source, size int64, keep Keep) (*disk.Manifest, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	body, length, err := x.Client.manifest(ctx, s)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	if want := chunksBefore(size) * int64(len(disk.ChunkSum{})); length != want {
		return nil, &WrongError{s.Node, s.Disk, fmt.Errorf("its manifest has %d bytes in place of %d", length, want)}
	}
	x.progress.Peers.Add(length)
	m, err := keep(fetch.Pace(ctx, fetch.Watch(body, stall, cancel), x.limiter), size, s.Chunks)
	if err == nil {
		return m, nil
	}
	if _, ok := errors.AsType[*disk.ChecksumError](err); ok {
		return nil, &WrongError{s.Node, s.Disk, fmt.Errorf("its manifest is not the one that it names: %w", err)}
	}
	return nil, cause(ctx, err)
}

// local reports whether err is one of this side, which no other source can help.
func local(err error) bool {
	_, file := errors.AsType[*fs.PathError](err)
	return file || errors.Is(err, disk.ErrNoSpace) || errors.Is(err, disk.ErrTooLarge)
}

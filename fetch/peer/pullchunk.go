package peer

import (
	"context"
	"io"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// Chunk returns what gets single chunks of an image of so many bytes, for a
// disk.Repair: from any source, else from the origin. The errors are those of Into.
func (p *Pull) Chunk(size int64) disk.FetchChunk { return p.exchange().fetch(size) }

func (x *exchange) fetch(size int64) disk.FetchChunk {
	return func(ctx context.Context, n int64, sum disk.ChunkSum, buf []byte) (int, error) {
		x.sound.touch()
		x.peers.touch()
		from := n * disk.ChunkSize
		data := buf[:min(disk.ChunkSize, size-from)]
		return len(data), x.chunk(ctx, n, sum, data)
	}
}

// chunk asks all sources that may be asked, in turn, and again when that may help.
func (x *exchange) chunk(ctx context.Context, n int64, sum disk.ChunkSum, data []byte) error {
	for {
		for _, l := range x.singles() {
			err := l.single(ctx, n, sum, data)
			if err == nil {
				x.roster.of(l.name()).tries = 0 // a repair may go on for hours
				return nil
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := x.settle(ending{l, err}); err != nil {
				return err
			}
		}
		if x.lost() {
			return x.roster.failure()
		}
		select {
		case <-time.After(x.roster.pause()):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// singles returns a lane for each source that may be asked, the origin last.
func (x *exchange) singles() []*lane {
	var lanes []*lane
	for _, s := range x.shuffled() {
		if x.roster.of(s.name()).usable() {
			lanes = append(lanes, x.lane(s))
		}
	}
	if x.origin.open != nil && x.roster.of(originName).usable() {
		lanes = append(lanes, x.originLane())
	}
	return lanes
}

// single gets one chunk without a window.
func (l *lane) single(ctx context.Context, n int64, sum disk.ChunkSum, data []byte) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	from := n * disk.ChunkSize
	body, err := l.answer(ctx, cancel, from, from+int64(len(data)))
	if err != nil {
		return err
	}
	defer body.Close()
	if _, err := io.ReadFull(l.paced(ctx, cancel, body), data); err != nil {
		return cause(ctx, short(err))
	}
	return l.check(n, data, sum)
}

package peer

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
)

const (
	// indexGain: a pull requests an index only if at least indexGain times as many bytes are missing as the index has.
	indexGain = 4
	// cutGain: a pull cuts a seed without an index, which reads the whole seed, only if more than 1/cutGain of the image is missing.
	cutGain = 8
)

// findMoved makes the plan use seeds for missing chunks whose bytes they have at other places. It does nothing if no source
// has an index of the image, or if the index is too large for what is missing.
func (t *transfer) findMoved(ctx context.Context, part *disk.Part, m *disk.Manifest, plan *assemble.Plan) error {
	if len(t.pull.Seeds) == 0 {
		return nil
	}
	survey, err := plan.Survey(ctx, part.Offset())
	if err != nil || survey.Missing == 0 {
		return err
	}
	index, err := t.loadIndex(ctx, part, m, survey.Missing/indexGain)
	if err != nil || index == nil {
		return err
	}
	return plan.FindMoved(ctx, part, index, survey.Missing > m.Size()/cutGain)
}

// loadIndex returns the index of the image from an earlier attempt, or else from a source, with at most limit bytes. It
// returns nil if there is no usable index. An error is the cause of ctx or an error of the disk.
func (t *transfer) loadIndex(ctx context.Context, part *disk.Part, m *disk.Manifest, limit int64) (*caibx.Table, error) {
	index, err := assemble.LoadIndex(part, m.Size())
	if errors.Is(err, fs.ErrNotExist) {
		if err = t.receiveIndex(ctx, part, m, limit); err == nil {
			index, err = assemble.LoadIndex(part, m.Size())
		}
	}
	if err == nil && index.ImageSize() == m.Size() {
		return index, nil
	}
	if index != nil {
		_ = index.Close() // it was only read
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	// Without an index, all missing chunks are requested. Errors of the disk occur again when the chunks are written.
	return nil, part.DropIndex()
}

// receiveIndex stores the index of the image from the first source that has one.
func (t *transfer) receiveIndex(ctx context.Context, part *disk.Part, m *disk.Manifest, limit int64) error {
	room, err := part.Room()
	if err != nil {
		return err
	}
	limit = min(limit, room/assemble.IndexShare)
	err = fs.ErrNotExist
	for _, s := range shuffled(t.pull.Sources()) {
		if s.contents() != (contents{m.Digest(), m.Size()}) || !t.pull.health.Available(s.name()) {
			continue
		}
		err = part.StoreIndex(func(f *os.File) error { return t.receiveIndexFrom(ctx, s, f, limit) })
		if err == nil || ctx.Err() != nil || errors.Is(err, syscall.ENOSPC) {
			break
		}
	}
	return err
}

var errLargeIndex = errors.New("the index is too large, compared with what is missing")

func (t *transfer) receiveIndexFrom(ctx context.Context, s Source, f *os.File, limit int64) error {
	body, length, err := t.pull.Client.openWhole(ctx, s.request("index"))
	if err != nil {
		return err
	}
	defer body.Close()
	if length > limit {
		return errLargeIndex
	}
	limited := fetch.RateLimitReader(ctx, body, t.limiter)
	_, err = io.CopyN(f, fetch.CountReader(ctx, limited, &t.progress.PeerBytes), length)
	return err
}

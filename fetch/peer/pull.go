package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// Pull brings an image from the nodes that have it. Its fields must not change once
// it is in use. It remembers which sources failed it; one Pull is for one image and
// for one call at a time.
type Pull struct {
	Client *Client
	// Sources returns the ready copies that other nodes have now. It is asked about
	// every second, by one goroutine at a time, and must not wait.
	Sources func() []Source
	// Upstream is asked where the peers are not enough; nil: never.
	Upstream *fetch.RangeReader
	Limit    int64 // most bytes per second, of all sources together; 0: no limit
	// Progress may be nil.
	Progress *fetch.Progress
	// Warn is told when a source is set aside because of what it sent: a
	// *WrongError. It may be nil, and must not wait.
	Warn func(error)
	// Final says of the failure of a source whether to give up with it at once; nil:
	// never, for what one source cannot another one may.
	Final func(error) bool
	// MaxBackoff is the longest that a source is set aside after a failure; 0: 5 minutes.
	MaxBackoff time.Duration

	health healthTable
}

// InvalidDataError says that a source sent bytes that are not those of the image.
type InvalidDataError struct {
	Node, Disk string // where they came from; Node is "" for the origin
	Err        error
}

func (e *InvalidDataError) Error() string {
	if e.Node == "" {
		return fmt.Sprintf("the origin: %v", e.Err)
	}
	return fmt.Sprintf("disk %s of node %s: %v", e.Disk, e.Node, e.Err)
}

func (e *InvalidDataError) Unwrap() error { return e.Err }

// transfer is one transfer of a Pull.
type transfer struct {
	*Pull
	openRange      func(context.Context, Source, int64, int64) (io.ReadCloser, error)
	progress       *fetch.Progress
	limiter        *rate.Limiter
	window         *window
	manifestDigest disk.Digest // of the manifest

	peerActivity  activityClock // the last byte of a peer
	peerBusy      activityClock // the last word of a peer that it sends to others
	chunkProgress activityClock // the last right chunk, of any source or in the part, or what may stand for one
	lanes         map[string]*lane
	laneEnds      chan laneEnd
	allRequested  bool // there is nothing left to ask for
	upstream      upstreamFallback
}

func (p *Pull) newTransfer() *transfer {
	x := &transfer{
		Pull: p, progress: p.Progress, limiter: fetch.NewLimiter(p.Limit),
		lanes: map[string]*lane{}, laneEnds: make(chan laneEnd, maxLanes+1),
	}
	x.openRange = func(ctx context.Context, s Source, from, to int64) (io.ReadCloser, error) {
		return p.Client.openRange(ctx, s, from, to)
	}
	if x.progress == nil {
		x.progress = new(fetch.Progress)
	}
	x.peerActivity.start = time.Now()
	x.chunkProgress.start = x.peerActivity.start
	x.peerBusy.start = x.peerActivity.start.Add(-maxBusyTime) // nobody said so yet
	if p.Upstream != nil {
		x.upstream.open = p.Upstream.Open
	}
	return x
}

// Into fills part, of an image of so many bytes, and returns when it holds the whole;
// the caller commits it. What part holds already stays if it is of the same image.
// Every chunk is checked against the manifest that the sources name; that this is
// the image that is wanted, only the digest of the whole can tell. A cancelled ctx
// ends it within one read. Its errors are those of fetch.Client.Download; when no
// source can be used for half a minute, the error says why for each.
func (p *Pull) Into(ctx context.Context, part *disk.Part, size int64) error {
	return fetch.ClassifyDiskError(p.newTransfer().intoPart(ctx, part, size))
}

func (x *transfer) intoPart(ctx context.Context, part *disk.Part, size int64) error {
	m, err := x.receiveManifest(ctx, size, part.ReceiveManifest)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := x.preparePart(part, m); err != nil {
		return err
	}
	x.chunkProgress.touch() // that may have taken long
	x.progress.Total.Store(size)
	x.progress.Done.Store(part.Offset())
	return x.fillPart(ctx, part, m)
}

// Chunks brings chunk first of the image of m and all that follow, and hands them to
// put in order, each checked: nil for one of zeros, which is not asked for. What put
// gets is its own until it returns. The errors are those of Into, and put's.
func (p *Pull) Chunks(ctx context.Context, m *disk.Manifest, first int64, put func(n int64, chunk []byte) error) error {
	x := p.newTransfer()
	return fetch.ClassifyDiskError(x.run(ctx, m, first, func(n int64, buf []byte) ([]byte, error) {
		return buf, put(n, buf[:min(int64(len(buf)), m.ChunkLength(n))])
	}))
}

// PartFromPeers begins the ID of the disk.PartSource of a part that came from other nodes.
const PartFromPeers = "chunks"

// preparePart keeps what part holds of the image of m, or empties it.
func (x *transfer) preparePart(part *disk.Part, m *disk.Manifest) error {
	data, err := m.DataSize()
	if err != nil {
		return err
	}
	origin := disk.PartSource{ID: PartFromPeers + " " + m.Digest().String(), Size: m.Size(), Data: max(data, 1)}
	agrees, err := part.Matches(m)
	if err != nil {
		return err
	}
	switch {
	case agrees && part.Source() == origin:
		return nil
	case agrees && part.Offset() >= disk.ChunkSize: // of a download, or of other peers
		return part.Continue(origin)
	}
	return part.Begin(origin)
}

// fillPart brings the rest of the image.
func (x *transfer) fillPart(ctx context.Context, part *disk.Part, m *disk.Manifest) error {
	first := chunkCount(part.Offset())
	return x.run(ctx, m, first, func(n int64, buf []byte) ([]byte, error) {
		var err error
		if buf == nil {
			err = part.AppendZeros(m.ChunkLength(n))
		} else {
			var sum disk.ChunkHash
			if sum, err = m.Hash(n); err == nil {
				buf, err = part.AppendChunk(buf, m.ChunkLength(n), sum)
			}
		}
		x.progress.Done.Store(part.Offset())
		return buf, err
	})
}

// chunkCount returns how many chunks so many bytes are, the last one of an image
// being short.
func chunkCount(offset int64) int64 { return (offset + disk.ChunkSize - 1) / disk.ChunkSize }

// run gets chunk first and all that follow, and puts them in order: nil for zeros.
// put returns a buffer for the one that it keeps.
func (x *transfer) run(ctx context.Context, m *disk.Manifest, first int64, put func(int64, []byte) ([]byte, error)) error {
	x.Client.activePulls.Add(1)
	defer x.Client.activePulls.Add(-1)
	x.manifestDigest = m.Digest()
	x.window = newWindow(m, first, &x.Client.activePulls)
	ctx, cancel := context.WithCancelCause(ctx)
	var work sync.WaitGroup
	work.Go(func() {
		if err := x.supervise(ctx); err != nil {
			cancel(err)
		}
	})
	defer work.Wait()
	defer cancel(nil)
	for n := first; n < m.Chunks(); n++ {
		if err := x.putNext(ctx, n, put); err != nil {
			return err
		}
		x.chunkProgress.touch()
	}
	return nil
}

func (x *transfer) putNext(ctx context.Context, n int64, put func(int64, []byte) ([]byte, error)) error {
	zero, err := x.window.manifest.IsZero(n)
	if err != nil {
		return err
	}
	if zero {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		x.window.skipTo(n + 1)
		_, err := put(n, nil)
		return err
	}
	buf, err := x.window.waitFor(ctx, n)
	if err != nil {
		return err
	}
	buf, err = put(n, buf)
	x.window.release(buf)
	return err
}

// manifestError is a failure to read the manifest that was received.
type manifestError struct{ err error }

func (e *manifestError) Error() string { return e.err.Error() }

var errNoManifest = errors.New("it has no manifest of the image yet")

// ManifestReceiver puts a manifest that comes of r somewhere, and says whether it is the one that
// is wanted: disk.Part.ReceiveManifest is one.
type ManifestReceiver func(r io.Reader, size int64, want disk.Digest) (*disk.Manifest, error)

// Manifest brings the manifest of an image of so many bytes: the one that most sources
// name. Its errors are those of Into.
func (p *Pull) Manifest(ctx context.Context, size int64, keep ManifestReceiver) (*disk.Manifest, error) {
	m, err := p.newTransfer().receiveManifest(ctx, size, keep)
	return m, fetch.ClassifyDiskError(err)
}

func (x *transfer) receiveManifest(ctx context.Context, size int64, keep ManifestReceiver) (*disk.Manifest, error) {
	for {
		for _, s := range byManifestVotes(x.shuffledSources()) {
			if s.ManifestDigest.IsZero() {
				x.health.of(s.name()).err = errNoManifest
				continue
			}
			if !x.health.of(s.name()).available() {
				continue
			}
			m, err := x.receiveManifestFrom(ctx, s, size, keep)
			switch {
			case err == nil:
				return m, nil
			case ctx.Err() != nil:
				return nil, context.Cause(ctx)
			case isLocal(err):
				return nil, err
			}
			if err := x.laneEnded(laneEnd{x.newLane(s), err}); err != nil {
				return nil, err
			}
		}
		if x.shouldGiveUp() {
			return nil, x.health.noSourceError()
		}
		select {
		case <-time.After(x.health.untilNextRetry()):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// byManifestVotes returns those first whose manifest most others name too.
func byManifestVotes(sources []Source) []Source {
	votes := map[disk.Digest]int{}
	for _, s := range sources {
		votes[s.ManifestDigest]++
	}
	slices.SortStableFunc(sources, func(a, b Source) int { return votes[b.ManifestDigest] - votes[a.ManifestDigest] })
	return sources
}

func (x *transfer) receiveManifestFrom(ctx context.Context, s Source, size int64, keep ManifestReceiver) (*disk.Manifest, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	body, length, err := x.Client.openManifest(ctx, s)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	if want := chunkCount(size) * int64(len(disk.ChunkHash{})); length != want {
		return nil, &InvalidDataError{s.Node, s.Disk, fmt.Errorf("its manifest has %d bytes in place of %d", length, want)}
	}
	x.progress.PeerBytes.Add(length)
	m, err := keep(fetch.RateLimitReader(ctx, fetch.StallReader(body, stallTimeout, cancel), x.limiter), size, s.ManifestDigest)
	if err == nil {
		return m, nil
	}
	if _, ok := errors.AsType[*disk.ChecksumError](err); ok {
		return nil, &InvalidDataError{s.Node, s.Disk, fmt.Errorf("its manifest is not the one that it names: %w", err)}
	}
	return nil, causeOf(ctx, err)
}

// isLocal reports whether err is one of this side, which no other source can help.
func isLocal(err error) bool {
	_, file := errors.AsType[*fs.PathError](err)
	return file || errors.Is(err, disk.ErrNoSpace) || errors.Is(err, disk.ErrTooLarge)
}

// ChunkFetcher returns what gets single chunks of an image of so many bytes, for a
// disk.Repair: from any source, else from the origin. The errors are those of Into.
func (p *Pull) ChunkFetcher(size int64) disk.FetchChunk { return p.newTransfer().chunkFetcher(size) }

func (x *transfer) chunkFetcher(size int64) disk.FetchChunk {
	return func(ctx context.Context, n int64, sum disk.ChunkHash, buf []byte) (int, error) {
		x.chunkProgress.touch()
		x.peerActivity.touch()
		from := n * disk.ChunkSize
		data := buf[:min(disk.ChunkSize, size-from)]
		return len(data), x.fetchChunk(ctx, n, sum, data)
	}
}

// fetchChunk asks all sources that may be asked, in turn, and again when that may help.
func (x *transfer) fetchChunk(ctx context.Context, n int64, sum disk.ChunkHash, data []byte) error {
	for {
		for _, l := range x.singleChunkLanes() {
			err := l.fetchChunk(ctx, n, sum, data)
			if err == nil {
				x.health.of(l.name()).failures = 0 // a repair may go on for hours
				return nil
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := x.laneEnded(laneEnd{l, err}); err != nil {
				return err
			}
		}
		if x.shouldGiveUp() {
			return x.health.noSourceError()
		}
		select {
		case <-time.After(x.health.untilNextRetry()):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// singleChunkLanes returns a lane for each source that may be asked, the origin last.
func (x *transfer) singleChunkLanes() []*lane {
	var lanes []*lane
	for _, s := range x.shuffledSources() {
		if x.health.of(s.name()).available() {
			lanes = append(lanes, x.newLane(s))
		}
	}
	if x.upstream.open != nil && x.health.of(upstreamName).available() {
		lanes = append(lanes, x.newUpstreamLane())
	}
	return lanes
}

// fetchChunk gets one chunk without a window.
func (l *lane) fetchChunk(ctx context.Context, n int64, sum disk.ChunkHash, data []byte) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	from := n * disk.ChunkSize
	body, err := l.openRange(ctx, cancel, from, from+int64(len(data)))
	if err != nil {
		return err
	}
	defer body.Close()
	if _, err := io.ReadFull(l.pacedReader(ctx, cancel, body), data); err != nil {
		return causeOf(ctx, earlyEnd(err))
	}
	return l.checkChunk(n, data, sum)
}

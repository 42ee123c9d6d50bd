package peer

import (
	"cmp"
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
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/delta"
)

// Pull receives an image from the peers that have it. Its fields must not be changed after the first
// use. A Pull is for one image and is not safe for concurrent use. It remembers between calls which
// sources failed.
type Pull struct {
	Client *Client
	// Sources returns the ready copies that peers have now. It is called about once a second, by one
	// goroutine at a time, and must not block.
	Sources func() []Source
	// Upstream is read if the peers are too slow (see the package comment); nil: never.
	Upstream *fetch.RangeReader
	// Seeds are copies on this node. Into does not request the chunks that they have. At most 4 are used.
	Seeds []delta.Seed
	Limit int64 // bytes per second of all sources together; 0: no limit
	// Progress is updated during the transfer. It may be nil.
	Progress *fetch.Progress
	// Warn is called with an *InvalidDataError when a source sent bytes that do not match. It may be
	// nil, and must not block.
	Warn func(error)
	// Final reports whether the failure of one source ends the whole transfer. nil: no failure does,
	// because another source may succeed.
	Final func(error) bool
	// MaxBackoff is the maximum time for which a source is not used after a failure; 0: 5 minutes.
	MaxBackoff time.Duration

	health   healthTable
	received contents // of the last transfer
}

// WrongSources returns the sources that have shown, in a transfer that ended with err, that they do not
// have the bytes that they offer: they sent chunks that do not match their own chunk manifest; or the
// whole file did not have its digest, although each chunk matched the manifest, so that every source
// with this manifest is wrong.
func (p *Pull) WrongSources(err error) []Source {
	_, wrongFile := errors.AsType[*disk.ChecksumError](err)
	var wrong []Source
	for _, s := range p.Sources() {
		h := p.health[s.name()]
		if wrongFile && s.contents() == p.received || h != nil && h.invalid {
			wrong = append(wrong, s)
		}
	}
	return wrong
}

// InvalidDataError means that a source sent wrong bytes.
type InvalidDataError struct {
	Node, Disk string // the source; Node is "" for the upstream
	Err        error
}

func (e *InvalidDataError) Error() string {
	if e.Node == "" {
		return fmt.Sprintf("upstream: %v", e.Err)
	}
	return fmt.Sprintf("disk %s of node %s: %v", e.Disk, e.Node, e.Err)
}

func (e *InvalidDataError) Unwrap() error { return e.Err }

// transfer is one call of a Pull.
type transfer struct {
	pull      *Pull
	openRange func(ctx context.Context, s Source, from, to int64) (io.ReadCloser, error)
	// appendFrom appends chunk n from a seed; disk.ErrDamaged: the seed does not have it.
	appendFrom   func(seed *disk.Reader, n int64) error
	appendChunk  func(buf []byte, n int64) ([]byte, error) // see disk.Part.AppendChunk
	damagedSeeds [MaxSeeds]bool
	movedChunks  *delta.Local // nil: no chunk is moved
	movedBuffer  []byte
	progress     *fetch.Progress
	limiter      *rate.Limiter
	window       *window

	peerActivity activityClock // time of the last byte from any peer
	peerBusy     activityClock // time of the last 429 from any peer
	// chunkProgress is the time of the last valid chunk, from any source or from the partial file.
	// Some events that explain the lack of chunks also set it.
	chunkProgress activityClock

	lanes        map[string]*lane // running, by source name
	laneEnds     chan laneEnd
	allRequested bool // every chunk is received: no lane has work left
	upstream     upstreamFallback
}

func (p *Pull) newTransfer() *transfer {
	t := &transfer{
		pull: p, progress: p.Progress, limiter: fetch.NewLimiter(p.Limit),
		lanes: map[string]*lane{}, laneEnds: make(chan laneEnd, maxLanes+1),
	}
	t.openRange = func(ctx context.Context, s Source, from, to int64) (io.ReadCloser, error) {
		return p.Client.openRange(ctx, s, from, to)
	}
	if t.progress == nil {
		t.progress = new(fetch.Progress)
	}
	t.peerActivity.start = time.Now()
	t.chunkProgress.start = t.peerActivity.start
	t.peerBusy.start = t.peerActivity.start.Add(-maxBusyTime) // as if the last 429 were long ago
	if p.Upstream != nil {
		t.upstream.open = p.Upstream.Open
	}
	return t
}

// Into fills part with the image. It returns when the file is complete; the caller commits it. It keeps
// the bytes in part that belong to the same image. If the sources have different manifests or sizes, it
// prefers what most nodes have, and reads only sources that have the same. It verifies every chunk
// against this manifest. But only the digest of the whole file, which Commit
// compares, proves that the image is the right one. When ctx ends, Into returns within one read. The
// errors are those of fetch.Client.Download. If no source can be used for 30 s, the error contains
// the reason for each source.
func (p *Pull) Into(ctx context.Context, part *disk.Part) error {
	return fetch.ClassifyDiskError(p.newTransfer().intoPart(ctx, part))
}

func (t *transfer) intoPart(ctx context.Context, part *disk.Part) error {
	m, err := t.receiveManifest(ctx, part.ReceiveManifest)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := t.preparePart(ctx, part, m); err != nil {
		return err
	}
	t.chunkProgress.touch() // preparePart may have read the whole file for minutes
	t.progress.Total.Store(m.Size())
	t.progress.Resume(part.Offset())
	return t.fillPart(ctx, part, m)
}

// Chunks receives the chunks from index first to the end of the image with manifest m, verifies them,
// and passes them to put in order. A chunk of zeros is not requested, and the argument chunk is nil.
// put must not keep chunk after it returns. The errors are those of Into and of put.
func (p *Pull) Chunks(ctx context.Context, m *disk.Manifest, first int64, put func(n int64, chunk []byte) error) error {
	t := p.newTransfer()
	return fetch.ClassifyDiskError(t.run(ctx, m, nil, first, func(n int64, buf []byte) ([]byte, error) {
		return buf, put(n, buf[:min(int64(len(buf)), m.ChunkLength(n))])
	}))
}

// preparePart keeps the chunks of part that match m. If none match, it empties part.
func (t *transfer) preparePart(ctx context.Context, part *disk.Part, m *disk.Manifest) error {
	data, err := m.DataSize()
	if err != nil {
		return err
	}
	source := disk.PartSource{Kind: model.PartFromPeers, ID: m.Digest().String(), Size: m.Size(), Data: max(data, 1)}
	matches, err := part.Matches(ctx, m)
	if err != nil {
		return err
	}
	switch {
	case matches && part.Source() == source:
		return nil
	case matches && part.Offset() >= disk.ChunkSize: // from a download, or with another manifest
		return part.Continue(source)
	}
	return part.BeginManifest(source, m)
}

// fillPart appends the missing chunks to part.
func (t *transfer) fillPart(ctx context.Context, part *disk.Part, m *disk.Manifest) error {
	first := chunkCount(part.Offset())
	local, err := findLocalChunks(ctx, t.pull.Seeds, m, first)
	if err == nil {
		t.movedChunks, err = t.findMoved(ctx, part, m, &local, first)
	}
	if err != nil {
		return err
	}
	if t.movedChunks != nil {
		defer t.movedChunks.Close()
	}
	t.chunkProgress.touch()
	t.appendFrom = func(seed *disk.Reader, n int64) error {
		hash, err := m.Hash(n)
		if err == nil {
			err = part.AppendFrom(seed, n*disk.ChunkSize, m.ChunkLength(n), hash)
		}
		t.progress.Done.Store(part.Offset())
		return err
	}
	t.appendChunk = func(buf []byte, n int64) ([]byte, error) {
		hash, err := m.Hash(n)
		if err == nil {
			buf, err = part.AppendChunk(buf, m.ChunkLength(n), hash)
		}
		t.progress.Done.Store(part.Offset())
		return buf, err
	}
	return t.run(ctx, m, local, first, func(n int64, buf []byte) ([]byte, error) {
		if buf != nil {
			return t.appendChunk(buf, n)
		}
		err := part.AppendZeros(m.ChunkLength(n))
		t.progress.Done.Store(part.Offset())
		return nil, err
	})
}

// chunkCount returns the number of chunks of an image of the given size. The last chunk may be short.
func chunkCount(bytes int64) int64 { return (bytes + disk.ChunkSize - 1) / disk.ChunkSize }

// run receives the chunks from index first to the end, except the local ones, and passes them to put in
// order; nil means zeros. put keeps the buffer and returns another one, because disk.Part uses each chunk until it is
// hashed and written.
func (t *transfer) run(ctx context.Context, m *disk.Manifest, local localChunks, first int64, put func(int64, []byte) ([]byte, error)) error {
	t.pull.Client.activePulls.Add(1)
	defer t.pull.Client.activePulls.Add(-1)
	t.pull.received = contents{m.Digest(), m.Size()}
	t.window = newWindow(m, local, first, &t.pull.Client.activePulls)
	ctx, cancel := context.WithCancelCause(ctx)
	var scheduler sync.WaitGroup
	scheduler.Go(func() {
		if err := t.supervise(ctx); err != nil {
			cancel(err) // unblocks putNext
		}
	})
	defer scheduler.Wait()
	defer cancel(nil)
	for n := first; n < m.Chunks(); n++ {
		if err := t.putNext(ctx, n, put); err != nil {
			return err
		}
		t.chunkProgress.touch()
	}
	return nil
}

func (t *transfer) putNext(ctx context.Context, n int64, put func(int64, []byte) ([]byte, error)) error {
	zero, err := t.window.manifest.IsZero(n)
	if err != nil {
		return err
	}
	if zero {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		t.window.skipTo(n + 1)
		_, err := put(n, nil)
		return err
	}
	if t.window.local.has(n) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if done, err := t.putLocal(n); done {
			return err
		}
	}
	buf, err := t.window.waitFor(ctx, n)
	if err != nil {
		return err
	}
	buf, err = put(n, buf)
	t.window.release(buf)
	return err
}

// manifestError means that the chunk manifest on this node cannot be read.
type manifestError struct{ err error }

func (e *manifestError) Error() string { return e.err.Error() }

var errNoManifest = errors.New("no chunk manifest yet")

// ManifestReceiver reads the chunk manifest of an image of size bytes from r and stores it. It
// returns a *disk.ChecksumError if the digest of the manifest is not want. An example is
// disk.Part.ReceiveManifest.
type ManifestReceiver func(r io.Reader, size int64, want ident.Digest) (*disk.Manifest, error)

// Manifest receives the chunk manifest of the image. If sources have different manifests or sizes, it
// prefers what most nodes have. The errors are those of Into.
func (p *Pull) Manifest(ctx context.Context, receive ManifestReceiver) (*disk.Manifest, error) {
	m, err := p.newTransfer().receiveManifest(ctx, receive)
	return m, fetch.ClassifyDiskError(err)
}

func (t *transfer) receiveManifest(ctx context.Context, receive ManifestReceiver) (*disk.Manifest, error) {
	for {
		for _, s := range byVotes(t.shuffledSources()) {
			if s.ManifestDigest.IsZero() {
				t.pull.health.of(s.name()).err = errNoManifest
				continue
			}
			if !t.pull.health.of(s.name()).available() {
				continue
			}
			m, err := t.receiveManifestFrom(ctx, s, receive)
			switch {
			case err == nil:
				return m, nil
			case ctx.Err() != nil:
				return nil, context.Cause(ctx)
			case isLocal(err):
				return nil, err
			}
			if err := t.laneEnded(laneEnd{t.newLane(s), err}); err != nil {
				return nil, err
			}
		}
		if err := t.waitForRetry(ctx); err != nil {
			return nil, err
		}
	}
}

// waitForRetry waits until a source may be available again. It returns an error when ctx ends, or
// when giveUpAfter has passed without progress.
func (t *transfer) waitForRetry(ctx context.Context) error {
	if t.shouldGiveUp() {
		return t.pull.health.noSourceError()
	}
	select {
	case <-time.After(t.pull.health.untilNextRetry()):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// byVotes sorts the sources: first those with the contents that most nodes have. A node may have many
// sources, but has one vote for each contents. Of contents with as many votes, the smaller ones are first:
// if they are wrong, that is known sooner.
func byVotes(sources []Source) []Source {
	voters := map[contents]map[string]bool{}
	for _, s := range sources {
		c := s.contents()
		if voters[c] == nil {
			voters[c] = map[string]bool{}
		}
		voters[c][s.Node] = true
	}
	slices.SortStableFunc(sources, func(a, b Source) int {
		return cmp.Or(len(voters[b.contents()])-len(voters[a.contents()]), cmp.Compare(a.Size, b.Size))
	})
	return sources
}

func (t *transfer) receiveManifestFrom(ctx context.Context, s Source, receive ManifestReceiver) (*disk.Manifest, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	body, length, err := t.pull.Client.openManifest(ctx, s)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	if shortest, longest := disk.EncodedSizes(s.Size); length != shortest && length != longest {
		return nil, &InvalidDataError{s.Node, s.Disk, fmt.Errorf("its chunk manifest has %d bytes, want %d or %d", length, shortest, longest)}
	}
	t.progress.PeerBytes.Add(length)
	m, err := receive(fetch.RateLimitReader(ctx, fetch.StallReader(body, stallTimeout, cancel), t.limiter), s.Size, s.ManifestDigest)
	if err == nil {
		return m, nil
	}
	if _, ok := errors.AsType[*disk.ChecksumError](err); ok {
		return nil, &InvalidDataError{s.Node, s.Disk, fmt.Errorf("its chunk manifest does not have the digest in its state: %w", err)}
	}
	return nil, causeOf(ctx, err)
}

// isLocal reports whether err is an error of this node, which would occur with every source.
func isLocal(err error) bool {
	_, file := errors.AsType[*fs.PathError](err)
	return file || errors.Is(err, disk.ErrNoSpace) || errors.Is(err, disk.ErrTooLarge)
}

// ChunkFetcher returns a function for disk.Repair that fetches single chunks of an image of size
// bytes, from a peer if possible, and otherwise from the upstream. The errors are those of Into.
func (p *Pull) ChunkFetcher(size int64) disk.FetchChunk { return p.newTransfer().chunkFetcher(size) }

func (t *transfer) chunkFetcher(size int64) disk.FetchChunk {
	return func(ctx context.Context, n int64, hash disk.ChunkHash, buf []byte) (int, error) {
		t.chunkProgress.touch() // hours may have passed since the last chunk
		t.peerActivity.touch()
		from := n * disk.ChunkSize
		data := buf[:min(disk.ChunkSize, size-from)]
		return len(data), t.fetchChunk(ctx, n, hash, data)
	}
}

// fetchChunk requests a chunk from one available source after the other, until a source sends it or
// giveUpAfter has passed without progress.
func (t *transfer) fetchChunk(ctx context.Context, n int64, hash disk.ChunkHash, data []byte) error {
	for {
		for _, l := range t.singleChunkLanes() {
			err := l.fetchChunk(ctx, n, hash, data)
			if err == nil {
				t.pull.health.of(l.name()).failures = 0 // old failures do not count, because a repair may take hours
				return nil
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := t.laneEnded(laneEnd{l, err}); err != nil {
				return err
			}
		}
		if err := t.waitForRetry(ctx); err != nil {
			return err
		}
	}
}

// singleChunkLanes returns a lane for each available source, the upstream last.
func (t *transfer) singleChunkLanes() []*lane {
	var lanes []*lane
	for _, s := range t.shuffledSources() {
		if t.pull.health.of(s.name()).available() {
			lanes = append(lanes, t.newLane(s))
		}
	}
	if t.upstream.open != nil && t.pull.health.of(upstreamName).available() {
		lanes = append(lanes, t.newUpstreamLane())
	}
	return lanes
}

// fetchChunk receives one chunk without a window.
func (l *lane) fetchChunk(ctx context.Context, n int64, hash disk.ChunkHash, data []byte) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	from := n * disk.ChunkSize
	body, err := l.openRange(ctx, cancel, from, from+int64(len(data)))
	if err != nil {
		return err
	}
	defer body.Close()
	if _, err := io.ReadFull(l.pacedReader(ctx, cancel, body), data); err != nil {
		return causeOf(ctx, unexpectedEOF(err))
	}
	return l.checkChunk(n, data, hash)
}

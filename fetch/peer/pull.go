package peer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
)

const (
	// stallTimeout is the time after which a source that sends nothing, or less than 1 KiB/s, has
	// stalled.
	stallTimeout = 10 * time.Second
	// giveUpAfter is the time without a usable source after which a transfer fails.
	giveUpAfter = 30 * time.Second
	// upstreamAfter is the time without a byte from a peer after which the upstream is read.
	upstreamAfter = 10 * time.Second
	// firstBackoff is the backoff of a source after its first failure, and defaultMaxBackoff the longest one.
	firstBackoff, defaultMaxBackoff = 5 * time.Second, 5 * time.Minute
	// useful is how many bytes a connection must deliver before it breaks, to show that the source works.
	useful = 4 * disk.ChunkSize
	// windowChunks is the maximum number of chunks that a pull has requested, or received and not yet written. A pull needs a
	// buffer for each of these chunks, a buffer for each request, and the buffers of the partial file. All pulls of a Client
	// share sharedChunks, and each pull has at least minWindowChunks.
	windowChunks, sharedChunks, minWindowChunks = 22, 2 * 22, 6
)

// MaxSeeds limits the seeds of a pull.
const MaxSeeds = 4

// upstreamName is the name of the first address of the upstream as a source. It has no slash, unlike the name of a peer.
const upstreamName = "upstream"

// Pull receives an image from the peers that have it. Its fields must not be changed after the first
// use. A Pull is for one image and is not safe for concurrent use. It remembers between calls which
// sources failed.
type Pull struct {
	Client *Client
	// Sources returns the ready copies that peers have now. It is called about once a second, by one
	// goroutine at a time, and must not block.
	Sources func() []Source
	// Upstream are the addresses of the upstream, in order. The first one that has not failed lately is read if the peers send
	// nothing (see the package comment).
	Upstream []assemble.Provider
	// Seeds are copies on this node. Into does not request the chunks that they have. At most MaxSeeds are used.
	Seeds []assemble.Seed
	Limit int64 // bytes per second of all sources together; 0: no limit
	// Progress is updated during the transfer. It may be nil.
	Progress *fetch.Progress
	// Warn is called with an *InvalidDataError when a source sent bytes that do not match. It may be
	// nil, and must not block.
	Warn func(error)
	// Final reports whether the failure of one source ends the whole transfer. nil means that no failure
	// ends it, because another source may succeed.
	Final func(error) bool
	// MaxBackoff is the maximum time for which a source is not used after a failure; 0: 5 minutes.
	MaxBackoff time.Duration

	health   assemble.Health
	received contents // of the last transfer
}

// WrongSources returns the sources that do not have the bytes that they offer, after a transfer that ended
// with err. A source is wrong if it sent a chunk that does not match its own chunk manifest. If each chunk
// matched the manifest, but the whole file did not have the digest of the image, every source with this manifest is wrong.
func (p *Pull) WrongSources(err error) []Source {
	_, wrongFile := errors.AsType[*disk.ChecksumError](err)
	var wrong []Source
	for _, s := range p.Sources() {
		if wrongFile && s.contents() == p.received || p.health.SentWrongBytes(s.name()) {
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

// name identifies a source in the health of a Pull and in errors.
func (s Source) name() string { return s.Node + "/" + s.Disk }

// transfer is one call of a Pull.
type transfer struct {
	pull     *Pull
	progress *fetch.Progress
	limiter  *rate.Limiter
}

func (p *Pull) newTransfer() *transfer {
	p.health.First, p.health.Max, p.health.Useful = firstBackoff, cmp.Or(p.MaxBackoff, defaultMaxBackoff), useful
	return &transfer{pull: p, progress: cmp.Or(p.Progress, new(fetch.Progress)), limiter: fetch.NewLimiter(p.Limit)}
}

// Into fills part with the image. It returns when the file is complete; the caller commits the file. It
// keeps the bytes in part that belong to the same image. If the sources have different manifests or sizes,
// Into prefers the manifest that most nodes have, and reads no source with another manifest. It verifies
// every chunk against the manifest. But only the digest of the whole file, which Commit compares, proves
// that the image is right. When ctx ends, Into returns within one read. The errors are those of
// fetch.Client.Download. If no source can be used for 30 s, the error has the reason for each source.
func (p *Pull) Into(ctx context.Context, part *disk.Part) error {
	return fetch.ClassifyDiskError(p.newTransfer().intoPart(ctx, part))
}

func (t *transfer) intoPart(ctx context.Context, part *disk.Part) error {
	m, err := t.receiveManifest(ctx, func(r io.Reader, size int64, want ident.Digest) (*disk.Manifest, error) {
		m, err := part.ReceiveManifest(r, size, want)
		if err != nil {
			return nil, err
		}
		if err := t.preparePart(ctx, part, m); err != nil {
			m.Close() // it is only a temporary file
			return nil, fmt.Errorf("%w: %w", errPart, err)
		}
		return m, nil
	})
	if err != nil {
		return err
	}
	defer m.Close()
	t.progress.Total.Store(m.Size())
	t.progress.Resume(part.Offset())
	plan := assemble.ByManifest(m, t.pull.Seeds[:min(len(t.pull.Seeds), MaxSeeds)]...)
	defer plan.Close()
	if err := t.findMoved(ctx, part, m, plan); err != nil {
		return err
	}
	return t.run(ctx, m, plan, part, part.Offset())
}

// Chunks receives the chunks with numbers from first to the end of the image with manifest m, verifies
// them, and calls put with each in order. It requests no zeros: for a chunk of zeros, it calls put with nil.
// put must not keep a chunk. The errors are those of Into and of put.
func (p *Pull) Chunks(ctx context.Context, m *disk.Manifest, first int64, put func(chunk []byte) error) error {
	return fetch.ClassifyDiskError(p.newTransfer().run(ctx, m, assemble.ByManifest(m), assemble.ChunkFunc(put), first*disk.ChunkSize))
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

// run receives the chunks of the image with manifest m from an offset on. It also uses sources without a manifest, because
// they may have the bytes.
func (t *transfer) run(ctx context.Context, m *disk.Manifest, plan *assemble.Plan, to assemble.Sink, from int64) error {
	pulls := &t.pull.Client.activePulls
	pulls.Add(1)
	defer pulls.Add(-1)
	t.pull.received = contents{m.Digest(), m.Size()}
	a := t.newAssembly(plan, to, func(s Source) bool { return s.ManifestDigest.IsZero() || s.contents() == t.pull.received })
	a.ReserveAfter = upstreamAfter
	a.Window = func() int64 {
		return min(windowChunks, max(minWindowChunks, sharedChunks/int64(max(1, pulls.Load())))) * disk.ChunkSize
	}
	return a.Run(ctx, from)
}

// newAssembly returns an assembly that reads the upstream, and the sources for which the function has returns true.
func (t *transfer) newAssembly(plan *assemble.Plan, to assemble.Sink, has func(Source) bool) *assemble.Assembly {
	return &assemble.Assembly{
		Plan: plan, Sink: to, Health: &t.pull.health, Patience: giveUpAfter, Progress: t.progress,
		Window: func() int64 { return disk.ChunkSize },
		Failed: func(_ assemble.Candidate, err error) error { return t.failed(err) },
		Candidates: func() (all []assemble.Candidate) {
			for _, s := range t.pull.Sources() {
				if has(s) {
					all = append(all, t.source(s))
				}
			}
			return append(all, t.upstream()...)
		},
	}
}

// source returns a peer as a source of an assembly.
func (t *transfer) source(s Source) assemble.Candidate {
	var p assemble.Provider = assemble.Open(func(ctx context.Context, from, to int64) (io.ReadCloser, error) {
		return t.pull.Client.openRange(ctx, s.request("data"), from, to)
	})
	p = assemble.Limited(assemble.Counted(p, &t.progress.PeerBytes), t.limiter)
	return assemble.Candidate{
		Provider: p, Name: s.name(), Host: s.Node, Invalid: wrongChunk(s.Node, s.Disk),
		Delivered: func(io.ReadCloser) { t.progress.Sender.Store(&s.URL) },
	}
}

// upstream returns the first address of the upstream that may be used now, or nothing.
func (t *transfer) upstream() []assemble.Candidate {
	for i, p := range t.pull.Upstream {
		name := upstreamName
		if i > 0 {
			name = fmt.Sprintf("mirror %d", i)
		}
		if t.pull.health.Available(name) {
			p = assemble.Limited(assemble.Counted(p, &t.progress.UpstreamBytes), t.limiter)
			return []assemble.Candidate{{Provider: p, Name: name, Host: upstreamName, Reserve: true, Invalid: wrongChunk("", "")}}
		}
	}
	return nil
}

// wrongChunk returns the function that makes the error for a wrong chunk of a source. The upstream has the node "".
func wrongChunk(node, name string) func(assemble.Segment) error {
	return func(s assemble.Segment) error {
		return &InvalidDataError{node, name, fmt.Errorf("chunk %d does not match the chunk manifest", s.Offset/disk.ChunkSize)}
	}
}

// failed returns the error err of a source if it ends the transfer. Otherwise it passes an *InvalidDataError to Warn.
func (t *transfer) failed(err error) error {
	if t.pull.Final != nil && t.pull.Final(err) {
		return err
	}
	if _, ok := errors.AsType[*InvalidDataError](err); ok && t.pull.Warn != nil {
		t.pull.Warn(err)
	}
	return nil
}

// ManifestReceiver reads the chunk manifest of an image of size bytes from r and stores it. It
// returns a *disk.ChecksumError if the digest of the manifest is not want. An example is
// disk.Part.ReceiveManifest.
type ManifestReceiver func(r io.Reader, size int64, want ident.Digest) (*disk.Manifest, error)

// Manifest receives the chunk manifest of the image. If sources have different manifests or sizes, it
// prefers the manifest that most nodes have. The errors are those of Into.
func (p *Pull) Manifest(ctx context.Context, receive ManifestReceiver) (*disk.Manifest, error) {
	m, err := p.newTransfer().receiveManifest(ctx, receive)
	return m, fetch.ClassifyDiskError(err)
}

var errNoManifest = errors.New("no chunk manifest yet")

// receiveManifest receives the manifest from the first source that delivers it. It gives up giveUpAfter after its start.
// During the first hour, each response "busy" starts that time again.
func (t *transfer) receiveManifest(ctx context.Context, receive ManifestReceiver) (*disk.Manifest, error) {
	health, begun := &t.pull.health, time.Now()
	patient := begun
	for {
		sources := byVotes(shuffled(t.pull.Sources()))
		for _, s := range sources {
			if s.ManifestDigest.IsZero() {
				health.Note(s.name(), errNoManifest)
				continue
			}
			if !health.Available(s.name()) {
				continue
			}
			m, err := t.receiveManifestFrom(ctx, s, receive)
			switch {
			case err == nil:
				return m, nil
			case ctx.Err() != nil:
				return nil, context.Cause(ctx)
			case isLocal(err, s, sources):
				return nil, err
			}
			_, invalid := errors.AsType[*InvalidDataError](err)
			if _, busy := errors.AsType[*busyError](err); busy && time.Since(begun) < time.Hour {
				patient = time.Now()
			}
			health.Fail(s.name(), err, invalid)
			if err := t.failed(err); err != nil {
				return nil, err
			}
		}
		if time.Since(patient) >= giveUpAfter {
			return nil, health.NoProvider(giveUpAfter)
		}
		if fetch.Sleep(ctx, health.UntilRetry()) != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// shuffled returns the sources in random order, so that many receivers spread their load.
func shuffled(sources []Source) []Source {
	sources = slices.Clone(sources)
	rand.Shuffle(len(sources), func(i, j int) { sources[i], sources[j] = sources[j], sources[i] })
	return sources
}

// byVotes sorts the sources: the contents that most nodes have come first. A node may have many sources,
// but has one vote for each contents. With equal votes, the smaller contents come first: if they are wrong,
// that is known sooner.
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
	body, length, err := t.pull.Client.openWhole(ctx, s.request("manifest"))
	if err != nil {
		return nil, err
	}
	defer body.Close()
	if want := model.ChunkFileSize(s.Size); length != want {
		return nil, &InvalidDataError{s.Node, s.Disk, fmt.Errorf("its chunk manifest has %d bytes, want %d", length, want)}
	}
	t.progress.PeerBytes.Add(length)
	m, err := receive(fetch.RateLimitReader(ctx, body, t.limiter), s.Size, s.ManifestDigest)
	if err == nil {
		return m, nil
	}
	if _, ok := errors.AsType[*disk.ChecksumError](err); ok || errors.Is(err, disk.ErrNoManifest) {
		return nil, &InvalidDataError{s.Node, s.Disk, fmt.Errorf("its chunk manifest does not match the state of the node: %w", err)}
	}
	return nil, err
}

// errPart marks errors of the partial file.
var errPart = errors.New("prepare the partial file")

// isLocal reports whether err, which occurred with the manifest of s, is an error of this node that every source would
// cause. If the image is too large, but another source claims a smaller size, the error is not local: s may lie.
func isLocal(err error, s Source, all []Source) bool {
	if errors.Is(err, disk.ErrNoSpace) || errors.Is(err, disk.ErrTooLarge) {
		return !slices.ContainsFunc(all, func(other Source) bool { return other.Size < s.Size })
	}
	_, file := errors.AsType[*fs.PathError](err)
	return file || errors.Is(err, errPart)
}

// ChunkFetcher returns a function for disk.Repair that fetches single chunks of an image of size
// bytes, from a peer if possible, and otherwise from the upstream. The errors are those of Into. If no peer has a copy, a
// fetch fails as soon as all addresses of the upstream have failed.
func (p *Pull) ChunkFetcher(size int64) disk.FetchChunk {
	t := p.newTransfer()
	return func(ctx context.Context, n int64, hash disk.ChunkHash, buf []byte) (length int, err error) {
		s := assemble.Segment{Offset: n * disk.ChunkSize, Length: min(disk.ChunkSize, size-n*disk.ChunkSize), Hash: hash}
		a := t.newAssembly(assemble.Single(s), assemble.ChunkFunc(func(chunk []byte) error {
			length = copy(buf, chunk)
			return nil
		}), func(Source) bool { return true })
		a.Failed = func(_ assemble.Candidate, err error) error {
			switch {
			case len(p.Sources()) > 0:
				return t.failed(err)
			case len(t.upstream()) > 0: // another address
				return nil
			}
			if _, wrong := errors.AsType[*InvalidDataError](err); wrong {
				err = &fetch.Error{Class: fetch.BadSource, Err: err}
			}
			return err
		}
		return length, a.Run(ctx, s.Offset)
	}
}

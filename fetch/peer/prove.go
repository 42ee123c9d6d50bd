package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

// proofParameter marks the request for a chunk as a request for a proof. Proofs have their own limit,
// because sends of an image may use all slots of the image for hours.
const proofParameter = "proof"

// ErrWrongChunk means that a peer sent other bytes than the image has.
var ErrWrongChunk = errors.New("other bytes were received")

// Prove requests a chunk of the copy s and compares it with its hash. It returns nil if the peer has the
// chunk, and ErrWrongChunk if it sent other bytes. Any other error says nothing about the copy. While the
// peer is busy, Prove waits and tries again, until ctx ends.
func (c *Client) Prove(ctx context.Context, s Source, chunk disk.SelectedChunk) error {
	for {
		err := c.prove(ctx, s, chunk)
		var busy *busyError
		if !errors.As(err, &busy) || fetch.Sleep(ctx, busy.retryAfter) != nil {
			return err
		}
	}
}

func (c *Client) prove(ctx context.Context, s Source, chunk disk.SelectedChunk) error {
	r := s.request("data")
	r.query.Set(proofParameter, "chunk")
	body, err := c.openRange(ctx, r, chunk.From, chunk.To)
	if err != nil {
		return err
	}
	defer body.Close()
	matches, err := chunk.Hash.MatchesReader(body)
	if err != nil {
		return fmt.Errorf("query %s: %w", s.URL, stripAddress(err))
	}
	if !matches {
		return fmt.Errorf("query %s: bytes %d-%d of %s: %w", s.URL, chunk.From, chunk.To-1, s.ID, ErrWrongChunk)
	}
	return nil
}

// SelectChunk selects a chunk of a copy of size bytes, as disk.SelectChunk does, from the chunk manifest
// that the peer serves. The manifest must have the digest that the peer has published.
func (c *Client) SelectChunk(ctx context.Context, s Source, size int64, secret uint64) (disk.SelectedChunk, error) {
	body, _, err := c.openWhole(ctx, s.request("manifest"))
	if err != nil {
		return disk.SelectedChunk{}, err
	}
	defer body.Close()
	h := ident.SHA256.New()
	chunk, err := disk.SelectChunk(io.TeeReader(body, h), size, secret)
	if err != nil {
		return disk.SelectedChunk{}, fmt.Errorf("query %s: %w", s.URL, stripAddress(err))
	}
	if got := ident.SHA256.Digest(h); got != s.ManifestDigest {
		return disk.SelectedChunk{}, fmt.Errorf("query %s: chunk manifest of %s: %w", s.URL, s.ID, &disk.ChecksumError{Want: s.ManifestDigest, Got: got})
	}
	return chunk, nil
}

const (
	// readRun is how many bytes ReadChunks requests at once. Each request uses a slot for sending that other
	// nodes may wait for.
	readRun = 64 << 20
	// readStall is how long ReadChunks waits for the next bytes.
	readStall = time.Minute
	// slowestRead is the least average rate of ReadChunks, in bytes per second. readStart is additional time.
	// A peer that sends a byte now and then must not keep the caller waiting for ever.
	slowestRead = 256 << 10
	readStart   = 10 * time.Minute
	// maxRead limits the time by slowestRead: a peer may claim a size for which this time overflows a
	// time.Duration.
	maxRead = 365 * 24 * time.Hour
)

// longestRead returns how long ReadChunks may take.
func longestRead(size, limit int64) time.Duration {
	slowest := int64(slowestRead)
	if limit > 0 {
		slowest = max(1, min(slowest, limit/2))
	}
	seconds := min(float64(size)/float64(slowest), maxRead.Seconds())
	return readStart + time.Duration(seconds*float64(time.Second))
}

// ReadChunks reads all chunks of a copy of size bytes in order, at most limit bytes per second (0: no
// limit). It calls each(chunk) for every chunk. The function must not keep the chunk. It waits while the
// peer is busy. If a connection breaks after it has delivered a chunk, ReadChunks goes on with another one.
// It takes at most longestRead. It does not verify the bytes.
func (c *Client) ReadChunks(ctx context.Context, s Source, size, limit int64, each func(chunk []byte)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, longestRead(size, limit), errTimeout)
	defer cancel()
	limiter, buf := fetch.NewLimiter(limit), disk.NewChunkBuffer()
	for from := int64(0); from < size; {
		read, err := c.readChunks(ctx, s, from, min(from+readRun, size), limiter, buf, each)
		from += read
		var busy *busyError
		switch {
		case err == nil:
		case errors.As(err, &busy):
			if fetch.Sleep(ctx, busy.retryAfter) != nil {
				return fmt.Errorf("query %s: %w: %w", s.URL, context.Cause(ctx), err)
			}
		case read == 0 || ctx.Err() != nil:
			return err
		}
	}
	return nil
}

// readChunks calls each(chunk) for the chunks in the bytes [from, to), and returns how many bytes it passed.
func (c *Client) readChunks(ctx context.Context, s Source, from, to int64, limiter *rate.Limiter, buf []byte, each func([]byte)) (read int64, err error) {
	r := s.request("data")
	r.stall = readStall
	body, err := c.openRange(ctx, r, from, to)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	limited := fetch.RateLimitReader(ctx, body, limiter)
	for from+read < to {
		chunk := buf[:min(disk.ChunkSize, to-from-read)]
		if _, err := io.ReadFull(limited, chunk); err != nil {
			return read, fmt.Errorf("query %s: %w", s.URL, stripAddress(err))
		}
		each(chunk)
		read += int64(len(chunk))
	}
	return read, nil
}

const (
	// maxProofs is how many proofs a node sends at once: each needs some chunks of memory. Further requests
	// wait.
	maxProofs = 4
	// proofTimeout limits one proof with its wait, so that a receiver that does not read does not keep others
	// waiting. A node that requests a proof waits for a shorter time.
	proofTimeout = 30 * time.Second
)

// proof sends one chunk of a copy. It reads the chunk past the page cache, because the medium may have lost
// what the cache has. It sends no chunk that does not match the chunk manifest, but reports the damage.
func (s *Server) proof(w http.ResponseWriter, r *http.Request, c localCopy) *httperror.Error {
	ctx, cancel := context.WithTimeout(r.Context(), proofTimeout)
	defer cancel()
	r = r.WithContext(ctx)
	if !acquire(ctx, s.proofs) {
		return errOverloaded
	}
	defer release(s.proofs)
	image, err := openVerifiedImage(c.disk, c.id, c.disk.OpenUncached)
	if err != nil {
		return httperror.New(http.StatusConflict, "%v", err)
	}
	defer image.Close()
	return s.sendChunk(w, r, c, image)
}

// sendChunk sends the chunk of a proof.
func (s *Server) sendChunk(w http.ResponseWriter, r *http.Request, c localCopy, image *verifiedImage) *httperror.Error {
	part, err := parseRange(r.Header.Get("Range"), image.Size())
	if err != nil {
		return rangeError(w, image.Size(), err)
	}
	if part.from%disk.ChunkSize != 0 || part.to != min(part.from+disk.ChunkSize, image.Size()) {
		return httperror.New(http.StatusBadRequest, "the range of a proof must be exactly one chunk of %d bytes", disk.ChunkSize)
	}
	chunk := make([]byte, part.to-part.from)
	if _, err := image.ReadAt(chunk, part.from); err != nil {
		httperror.New(http.StatusConflict, "%v", err).Write(w)
		if errors.Is(err, disk.ErrDamaged) || disk.IsMediaError(err) {
			_ = http.NewResponseController(w).Flush() // fails only if the receiver has disconnected
			s.node.ReportDamage(r.Context(), c.id.Name)
		}
		return nil
	}
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.from, part.to-1, image.Size()))
	s.sendBody(r.Context(), w, http.StatusPartialContent, int64(len(chunk)), s.unlessLeaving(c, image.file.Unchanged), func(w io.Writer) error {
		for piece := range slices.Chunk(chunk, pieceSize) {
			if _, err := w.Write(piece); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

package replica

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/qcow2"
)

// window is how much of the volume is prepared at once, and as much ahead of it: it is
// known which layer gives what, and what of that is not cached is on its way.
const window = 2 << 20

// Source is a volume as it was at a snapshot, or as it is, as one flat disk. It is for
// one goroutine.
type Source struct {
	size   int64 // of the volume
	layers []layer
	below  qcow2.Source // a qcow2 image below the layers; nil: zeros
	base   *disk.File

	reading *walk // a window ahead of the reading
	scan    *walk // of NextData, which is somewhere else
	windows [2]prepared

	recheck     func() (string, error)
	fingerprint string
}

// prepared is a piece of the volume that is about to be read.
type prepared struct {
	start, end int64 // empty: none
	segments   []segment
}

// Size returns the bytes of the volume.
func (s *Source) Size() int64 { return s.size }

// Fingerprint changes when anything does that the bytes of the disk come from. It is
// safe to be shown.
func (s *Source) Fingerprint() string { return s.fingerprint }

// Unchanged reports disk.ErrChanging if what the disk is read from was written to or
// exchanged since Open: what was read may then be a mix of two contents.
func (s *Source) Unchanged() error {
	for _, l := range s.layers {
		if err := l.file.Unchanged(); err != nil {
			return err
		}
	}
	if s.base != nil {
		if err := s.base.Unchanged(); err != nil {
			return err
		}
	}
	now, err := s.recheck()
	if err != nil {
		return fmt.Errorf("%w: %w", disk.ErrModified, err)
	}
	if now != s.fingerprint {
		return fmt.Errorf("%w: other files make up the volume now", disk.ErrModified)
	}
	return nil
}

// Close closes all files.
func (s *Source) Close() error {
	var errs []error
	for _, l := range s.layers {
		errs = append(errs, l.file.Close())
	}
	if s.base != nil {
		errs = append(errs, s.base.Close())
	}
	return errors.Join(errs...)
}

// NextData returns the next piece at or behind offset that may have something else
// than zeros, and io.EOF when there is none.
func (s *Source) NextData(offset int64) (start, end int64, err error) {
	for at := offset / sector * sector; at < s.size; {
		g, err := s.scan.at(at)
		if err != nil {
			return 0, 0, err
		}
		start, end := max(offset, g.start), min(s.size, g.end)
		switch {
		case g.zero:
			end = start
		case g.layer == len(s.layers):
			if start, end, err = s.dataBelow(start, end); err != nil {
				return 0, 0, err
			}
		}
		if start < end {
			return start, end, nil
		}
		at = g.end
	}
	return 0, 0, io.EOF
}

// dataBelow returns the first data in [start, end) of what is below the layers, or
// nothing, empty.
func (s *Source) dataBelow(start, end int64) (int64, int64, error) {
	if s.below == nil || start >= s.below.Size() {
		return end, end, nil
	}
	from, to, err := s.below.NextData(start)
	if errors.Is(err, io.EOF) {
		return end, end, nil
	}
	if err != nil {
		return 0, 0, err
	}
	if from < start || to <= from {
		return 0, 0, fmt.Errorf("image below the volume: data from %d to %d, asked for at %d", from, to, start)
	}
	return min(from, end), min(to, end), nil
}

// ReadAt reads the disk: what the newest layer has that has anything there.
func (s *Source) ReadAt(b []byte, offset int64) (read int, err error) {
	if offset < 0 {
		return 0, fmt.Errorf("read at %d", offset)
	}
	for read < len(b) {
		at := offset + int64(read)
		if at >= s.size {
			return read, io.EOF
		}
		w, err := s.prepare(at)
		if err != nil {
			return read, err
		}
		n, err := s.readFrom(w, b[read:], at)
		read += n
		if err != nil {
			return read, err
		}
	}
	return read, nil
}

// readFrom reads what of b lies in w, which has at in it.
func (s *Source) readFrom(w *prepared, b []byte, at int64) (read int, err error) {
	b = b[:min(int64(len(b)), w.end-at)]
	i, _ := slices.BinarySearchFunc(w.segments, at, func(g segment, at int64) int {
		if g.end <= at {
			return -1
		}
		return 1
	})
	for _, g := range w.segments[i:] {
		if read == len(b) {
			break
		}
		at := at + int64(read)
		piece := b[read:]
		piece = piece[:min(int64(len(piece)), g.end-at)]
		switch {
		case g.zero:
			clear(piece)
		case g.layer == len(s.layers):
			err = readOver(s.below, s.below.Size(), piece, at)
		default:
			l := s.layers[g.layer]
			err = readOver(l.file, l.file.Size(), piece, at)
		}
		if err != nil {
			return read, err
		}
		read += len(piece)
	}
	return read, nil
}

// readOver reads all of b, with zeros behind the end of r.
func readOver(r io.ReaderAt, size int64, b []byte, at int64) error {
	there := max(0, min(int64(len(b)), size-at))
	clear(b[there:])
	if there == 0 {
		return nil
	}
	n, err := r.ReadAt(b[:there], at)
	if int64(n) == there {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: it became shorter", disk.ErrModified)
	}
	return err
}

// prepare returns the window that at is in, and sees to the next one.
func (s *Source) prepare(at int64) (*prepared, error) {
	if w := &s.windows[0]; at >= w.start && at < w.end {
		return w, nil
	}
	s.windows[0], s.windows[1] = s.windows[1], s.windows[0]
	now, ahead := &s.windows[0], &s.windows[1]
	if at < now.start || at >= now.end {
		if err := s.plan(now, at/window*window); err != nil {
			return nil, err
		}
	}
	for _, l := range s.layers {
		l.file.Release(now.start)
	}
	if err := s.plan(ahead, now.end); err != nil {
		return nil, err
	}
	return now, nil
}

// plan fills w with the segments of the window at start, and has what they need come.
func (s *Source) plan(w *prepared, start int64) error {
	w.start, w.end, w.segments = start, start, w.segments[:0]
	end := min(start+window, s.size)
	for at := start; at < end; {
		g, err := s.reading.at(at)
		if err == nil {
			g.end = min(g.end, end)
			if g.layer == len(s.layers) {
				g, err = s.splitBelow(g)
			}
		}
		if err != nil {
			return err
		}
		w.segments = append(w.segments, g)
		at = g.end
	}
	w.end = end
	s.bring(w.segments)
	return nil
}

// splitBelow cuts a segment of what is below the layers to its first part, of data or
// of zeros.
func (s *Source) splitBelow(g segment) (segment, error) {
	start, end, err := s.dataBelow(g.start, g.end)
	if err != nil {
		return g, err
	}
	if start > g.start {
		g.end, g.zero = start, true
	} else {
		g.end = end
	}
	return g, nil
}

// bring has the pieces of all layers come into the page cache, each layer's in order.
func (s *Source) bring(segments []segment) {
	order := make([]int, 0, len(segments))
	for i, g := range segments {
		if !g.zero && g.layer < len(s.layers) {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return segments[a].layer - segments[b].layer })
	var spans []disk.Span
	for n, i := range order {
		g := segments[i]
		spans = append(spans, disk.Span{From: g.start, To: g.end})
		if n+1 == len(order) || segments[order[n+1]].layer != g.layer {
			s.layers[g.layer].file.Prefetch(spans)
			spans = spans[:0]
		}
	}
}

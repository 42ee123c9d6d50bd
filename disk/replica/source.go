package replica

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/qcow2"
	"github.com/seed-26586806/backing-image-manager/internal/exactly"
)

// windowSize is the size of a window of the volume, which is resolved and prefetched in one step. Two
// windows are in use: the one that is being read and the following one.
const windowSize = 2 << 20

// Source is the content of a volume, or of one of its snapshots, as one flat disk. It implements
// qcow2.Source. It is not safe for concurrent use.
type Source struct {
	size        int64 // of the volume
	layers      []layer
	backing     qcow2.Source // the qcow2 backing image; nil: none
	backingFile *disk.File

	reading *resolver // for ReadAt
	scan    *resolver // for NextData, which reads at another offset
	windows [2]window

	recheck     func() (string, error) // computes the fingerprint again
	fingerprint string
}

// window is a resolved piece of the volume.
type window struct {
	start, end int64 // empty: not resolved
	segments   []segment
}

// Size returns the size of the volume in bytes.
func (s *Source) Size() int64 { return s.size }

// Fingerprint identifies the content of the disk. It changes after any change of the source files. It
// contains no secrets.
func (s *Source) Fingerprint() string { return s.fingerprint }

// Unchanged returns disk.ErrModified if a source file was modified or replaced since Open: the bytes
// that were read may be from two versions.
func (s *Source) Unchanged() error {
	for _, l := range s.layers {
		if err := l.file.Unchanged(); err != nil {
			return err
		}
	}
	if s.backingFile != nil {
		if err := s.backingFile.Unchanged(); err != nil {
			return err
		}
	}
	now, err := s.recheck()
	if err != nil {
		return fmt.Errorf("%w: %w", disk.ErrModified, err)
	}
	if now != s.fingerprint {
		return fmt.Errorf("%w: the files of the volume changed", disk.ErrModified)
	}
	return nil
}

// Close closes all files.
func (s *Source) Close() error {
	var errs []error
	for _, l := range s.layers {
		errs = append(errs, l.file.Close())
	}
	if s.backingFile != nil {
		errs = append(errs, s.backingFile.Close())
	}
	return errors.Join(errs...)
}

// NextData returns the next range at or after offset that may contain bytes other than zeros. io.EOF:
// there is no such range.
func (s *Source) NextData(offset int64) (start, end int64, err error) {
	for at := offset / sector * sector; at < s.size; {
		g, err := s.scan.segmentAt(at)
		if err != nil {
			return 0, 0, err
		}
		start, end := max(offset, g.start), min(s.size, g.end)
		switch {
		case g.zero:
			end = start
		case g.layer == len(s.layers):
			if start, end, err = s.backingData(start, end); err != nil {
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

// backingData returns the first range with data in [start, end) of the backing image. If there is
// none, it returns an empty range at end.
func (s *Source) backingData(start, end int64) (int64, int64, error) {
	if s.backing == nil || start >= s.backing.Size() {
		return end, end, nil
	}
	from, to, err := s.backing.NextData(start)
	if errors.Is(err, io.EOF) {
		return end, end, nil
	}
	if err != nil {
		return 0, 0, err
	}
	if from < start || to <= from {
		return 0, 0, fmt.Errorf("backing image: NextData(%d) returned the invalid range %d to %d", start, from, to)
	}
	return min(from, end), min(to, end), nil
}

// ReadAt implements io.ReaderAt, except that it is not safe for concurrent use.
func (s *Source) ReadAt(b []byte, offset int64) (read int, err error) {
	if offset < 0 {
		return 0, fmt.Errorf("read at the negative offset %d", offset)
	}
	for read < len(b) {
		at := offset + int64(read)
		if at >= s.size {
			return read, io.EOF
		}
		w, err := s.windowAt(at)
		if err != nil {
			return read, err
		}
		n, err := s.readWindow(w, b[read:], at)
		read += n
		if err != nil {
			return read, err
		}
	}
	return read, nil
}

// readWindow reads bytes of w, beginning at offset, up to len(b).
func (s *Source) readWindow(w *window, b []byte, offset int64) (read int, err error) {
	b = b[:min(int64(len(b)), w.end-offset)]
	i, _ := slices.BinarySearchFunc(w.segments, offset, func(g segment, offset int64) int {
		if g.end <= offset {
			return -1
		}
		return 1
	})
	for _, g := range w.segments[i:] {
		if read == len(b) {
			break
		}
		position := offset + int64(read)
		piece := b[read:]
		piece = piece[:min(int64(len(piece)), g.end-position)]
		switch {
		case g.zero:
			clear(piece)
		case g.layer == len(s.layers):
			err = readPadded(s.backing, s.backing.Size(), piece, position)
		default:
			l := s.layers[g.layer]
			err = readPadded(l.file, l.file.Size(), piece, position)
		}
		if err != nil {
			return read, err
		}
		read += len(piece)
	}
	return read, nil
}

// readPadded fills b from offset, with zeros after the end of r.
func readPadded(r io.ReaderAt, size int64, b []byte, offset int64) error {
	have := max(0, min(int64(len(b)), size-offset))
	clear(b[have:])
	err := exactly.ReadAt(r, b[:have], offset)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: the file was truncated", disk.ErrModified)
	}
	return err
}

// windowAt returns the window that contains offset, and prefetches the next one.
func (s *Source) windowAt(offset int64) (*window, error) {
	if w := &s.windows[0]; offset >= w.start && offset < w.end {
		return w, nil
	}
	s.windows[0], s.windows[1] = s.windows[1], s.windows[0]
	current, next := &s.windows[0], &s.windows[1]
	if offset < current.start || offset >= current.end {
		if err := s.fillWindow(current, offset/windowSize*windowSize); err != nil {
			return nil, err
		}
	}
	if err := s.fillWindow(next, current.end); err != nil {
		return nil, err
	}
	return current, nil
}

// fillWindow resolves the segments of the window at start, and prefetches their data.
func (s *Source) fillWindow(w *window, start int64) error {
	w.start, w.end, w.segments = start, start, w.segments[:0]
	end := min(start+windowSize, s.size)
	for at := start; at < end; {
		g, err := s.reading.segmentAt(at)
		if err == nil {
			g.end = min(g.end, end)
			if g.layer == len(s.layers) {
				g, err = s.splitBacking(g)
			}
		}
		if err != nil {
			return err
		}
		w.segments = append(w.segments, g)
		at = g.end
	}
	w.end = end
	s.prefetch(w.segments)
	return nil
}

// splitBacking splits a segment of the backing image at the first change between data and zeros.
func (s *Source) splitBacking(g segment) (segment, error) {
	start, end, err := s.backingData(g.start, g.end)
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

// prefetch prefetches the segments, ordered by layer.
func (s *Source) prefetch(segments []segment) {
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

package peer

import (
	"context"
	"io"
	"net/http"
	"time"
)

// A peer that does not take pieceSize bytes within pieceTime loses its connection,
// and with it the slot: less than 1 KiB/s, which is what counts as stalled. One that
// takes more has to get the chunk that it asked for, or it would never get any.
const (
	pieceSize = 256 << 10
	pieceTime = pieceSize >> 10 * time.Second
)

// paced writes an answer in pieces, of which each has to be taken in time. It is an
// io.ReaderFrom, so that a file may go by sendfile.
type paced struct {
	w       http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration // for a piece
	may     func() error  // asked ahead of each piece
}

// begin returns one that writes until ctx ends, also when a write is blocked then.
// The caller calls done behind the last write.
func begin(ctx context.Context, w http.ResponseWriter, limit time.Duration, may func() error) (p *paced, done func() bool) {
	p = &paced{w: w, control: http.NewResponseController(w), limit: limit}
	done = context.AfterFunc(ctx, func() { _ = p.control.SetWriteDeadline(time.Unix(1, 0)) })
	p.may = func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return may()
	}
	return p, done
}

// ahead puts the deadline off, and looks at ctx only then: what ctx did to the
// deadline is not undone.
func (p *paced) ahead() error {
	if err := p.control.SetWriteDeadline(time.Now().Add(p.limit)); err != nil {
		return err
	}
	return p.may()
}

// Write writes no more than pieceSize bytes.
func (p *paced) Write(b []byte) (int, error) {
	if err := p.ahead(); err != nil {
		return 0, err
	}
	return p.w.Write(b)
}

// ReadFrom is for what io.CopyN has to say. Its limit is split, and not put into
// another one, behind which net/http would not find the file.
func (p *paced) ReadFrom(r io.Reader) (int64, error) {
	whole, ok := r.(*io.LimitedReader)
	if !ok {
		return io.Copy(struct{ io.Writer }{p}, r)
	}
	var written int64
	for whole.N > 0 {
		if err := p.ahead(); err != nil {
			return written, err
		}
		piece := &io.LimitedReader{R: whole.R, N: min(pieceSize, whole.N)}
		n, err := io.Copy(p.w, piece)
		written += n
		whole.N -= n
		if err != nil || piece.N > 0 { // it ends too early
			return written, err
		}
	}
	return written, nil
}

package fetch

import (
	"io"
	"sync/atomic"
)

// Progress is how far a fetch has come, in bytes of what crosses the network (packed
// bytes where the image is packed), and in bytes of the image where it comes from
// other nodes, which do not send zeros. Any number of goroutines may read it
// while a fetch writes it. One Progress belongs to one fetch at a time.
type Progress struct {
	Done atomic.Int64
	// Moved is what crossed the network from an origin, with the bytes that were
	// asked for again, Peers the same from other nodes.
	Moved, Peers atomic.Int64
	Total        atomic.Int64 // -1: not known

	// Joined is set while the bytes that came are of more than one answer. If
	// their checksum is wrong then, another try as a Whole may bring the right ones.
	Joined atomic.Bool

	// Address is where the bytes come from: 0 is Request.URL, 1 the first mirror.
	Address atomic.Int64
}

// Percent returns 0..100, and 0 while the total is not known.
func (p *Progress) Percent() int {
	total := p.Total.Load()
	if total <= 0 {
		return 0
	}
	return int(min(100, float64(p.Done.Load())/float64(total)*100))
}

// counted adds what is read through it to the progress.
type counted struct {
	io.Reader
	progress *Progress
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.progress.Done.Add(int64(n))
	c.progress.Moved.Add(int64(n))
	return n, err
}

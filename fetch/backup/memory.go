package backup

import "context"

const (
	// roomBlocks are the blocks that all restores together have in memory, and roomFiles
	// the files of blocks: 38 MiB. Two restores with the default of workers find all that
	// they could use.
	roomBlocks = 12
	roomFiles  = 6
)

// Room is the memory of all restores of a process: each takes what is free of it, so
// that many of them are slower, and do not need more. Its methods may be called by any
// goroutine.
type Room struct {
	blocks, files chan []byte
	decoders      chan *decoder
}

// NewRoom returns a Room of which nothing is used yet.
func NewRoom() *Room {
	r := &Room{make(chan []byte, roomBlocks), make(chan []byte, roomFiles), make(chan *decoder, decoders)}
	// What is in it is made when it is needed.
	for range roomBlocks {
		r.blocks <- nil
	}
	for range roomFiles {
		r.files <- nil
	}
	for range decoders {
		r.decoders <- nil
	}
	return r
}

// take returns a buffer of a pool, or nil when ctx ends.
func take(ctx context.Context, pool chan []byte, size int) []byte {
	select {
	case buf := <-pool:
		if buf == nil {
			buf = make([]byte, size)
		}
		return buf[:size]
	case <-ctx.Done():
		return nil
	}
}

// decode waits for a decoder.
func (r *Room) decode(dst, stored []byte, sum Sum) error {
	d := <-r.decoders
	if d == nil {
		d = newDecoder()
	}
	defer func() { r.decoders <- d }()
	return d.decode(dst, stored, sum)
}

package disk

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// flush hands the current chunk on. The first one tells what format it is, and
// only then is an odd size worth a word: a web page has one too.
func (p *Part) flush() error {
	c := p.current
	if c == nil || len(c.data) == 0 {
		return nil
	}
	if c.n == 0 {
		if err := InspectHead(c.data, p.options.Format); err != nil {
			return err
		}
		if size := p.Origin().Size; size >= 0 {
			if err := checkSize(size); err != nil {
				return err
			}
		}
	}
	p.current = nil
	p.pipeline.put(c)
	return nil
}

// syncEvery is how many bytes a power cut may cost of a download.
const syncEvery = 256 << 20

// journal records the hash of a chunk, computed here unless who brought it did. It runs in a goroutine of the pipeline, and
// may come before or after the chunk is written: the hash is compared with what
// is read back.
func (p *Part) journal(c *chunk) error {
	if !c.zero {
		p.written.Add(int64(len(c.data)))
	}
	sum := c.sum
	if sum == (ChunkSum{}) {
		sum = hashChunk(c.data, c.zero)
	}
	p.manifest.Write(sum[:])
	if c.saved {
		return nil
	}
	return p.chunks.set(c.n, sum)
}

// save writes a chunk, or makes the file longer where a hole is as good: what is
// behind its end is asked for again. It runs in a goroutine of the pipeline.
func (p *Part) save(c *chunk) error {
	switch {
	case c.saved, c.inPlace:
		return nil
	case c.zero:
		return p.file.Truncate(c.n*ChunkSize + int64(len(c.data)))
	}
	padded := (len(c.data) + directAlign - 1) &^ (directAlign - 1)
	clear(c.buf[len(c.data):padded])
	if _, err := p.file.WriteAt(c.buf[:padded], c.n*ChunkSize); err != nil {
		return fmt.Errorf("write %s: %w", partFile, p.full(noSpace(err)))
	}
	if err := p.room(0); err != nil {
		return p.full(err)
	}
	p.unsynced += int64(padded)
	if p.unsynced < syncEvery && (p.direct || p.unsynced < cached) {
		return nil
	}
	p.unsynced = 0
	return errors.Join(p.sync(), p.chunks.f.Sync())
}

// full says of a lack of space in the middle how much there has to be for all of it,
// as what came so far will not be there any more. Where that was not promised, it is at
// least what came and a chunk.
func (p *Part) full(err error) error {
	if !errors.Is(err, ErrNoSpace) {
		return err
	}
	lack := &NoSpaceError{Need: max(p.written.Load()+ChunkSize, p.Origin().need())}
	if space, err := p.disk.Space(); err == nil {
		lack.Free = max(0, space.Free-p.options.Reserve)
	}
	return lack
}

func (p *Part) sync() error {
	if !p.direct {
		return drop(p.file)
	}
	if err := unix.Fdatasync(int(p.file.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", partFile, noSpace(err))
	}
	return nil
}

package disk

import (
	"errors"
	"fmt"
	"hash"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// partWriter writes the chunks of a partial file and its journal. Two goroutines of the pipeline call
// writeHash and writeChunk. Only the goroutine of the Part calls the other methods.
type partWriter struct {
	folder  imageFolder
	reserve int64 // bytes that must stay free on the disk
	maxSize int64 // of the image; 0: no limit
	// source is nil if there is no source: the content is then not used. The Part may set the size
	// while writeChunk reads it.
	source  atomic.Pointer[PartSource]
	file    *os.File
	direct  bool
	journal chunkFile

	manifest hash.Hash    // over the hashes of all chunks
	written  atomic.Int64 // bytes of chunks that are not all zero
	unsynced int64        // written since the last sync
}

func (w *partWriter) open() (err error) {
	root := w.folder.disk.root
	if err := removeLinked(root, w.folder.file(partFile)); err != nil {
		return err
	}
	w.file, w.direct, err = openDirect(root, w.folder.file(partFile), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	if err = makePrivate(w.file); err == nil {
		w.journal, err = openChunks(root, w.folder.file(partChunksFile))
	}
	if err != nil {
		w.file.Close()
	}
	return err
}

// start resets the state for the first chunk.
func (w *partWriter) start() {
	w.manifest, w.unsynced = SHA256.New(), 0
	w.written.Store(0)
}

// checkSize checks the size of the image against the limit. An unknown size passes.
func (w *partWriter) checkSize(source PartSource) error {
	if source.Size < 0 {
		return nil
	}
	if w.maxSize > 0 && source.Size > w.maxSize {
		return fmt.Errorf("%w: it has %d bytes, at most %d are allowed", ErrTooLarge, source.Size, w.maxSize)
	}
	return w.checkSpace(source.need())
}

// checkSpace returns a *NoSpaceError if more bytes would not leave the reserve free.
func (w *partWriter) checkSpace(more int64) error {
	space, err := w.folder.disk.Space()
	if err != nil {
		return err
	}
	if free := space.Free - w.reserve; free < more {
		return &NoSpaceError{Need: more, Free: max(0, free)}
	}
	return nil
}

// syncEvery limits the number of bytes that are lost after a power failure.
const syncEvery = 256 << 20

// writeHash writes the hash of a chunk to the journal. It computes the hash if it is not known. A
// goroutine of the pipeline calls it before or after writeChunk: a hash without its bytes causes no
// harm, because a resume compares it with the bytes on the disk.
func (w *partWriter) writeHash(c *chunk) error {
	if !c.zero {
		w.written.Add(int64(len(c.data)))
	}
	hash := c.hash
	if hash == (ChunkHash{}) {
		hash = hashBytes(c.data, c.zero)
	}
	w.manifest.Write(hash[:])
	if c.saved {
		return nil
	}
	return w.journal.set(c.n, hash)
}

// writeChunk writes a chunk. For a chunk of zeros it extends the file instead, which creates a hole.
// A goroutine of the pipeline calls it.
func (w *partWriter) writeChunk(c *chunk) error {
	switch {
	case c.saved, c.inPlace:
		return nil
	case c.zero:
		return w.file.Truncate(c.n*ChunkSize + int64(len(c.data)))
	}
	// Direct I/O writes whole blocks; finish truncates the file to its size.
	padded := (len(c.data) + directAlign - 1) &^ (directAlign - 1)
	clear(c.buf[len(c.data):padded])
	if _, err := w.file.WriteAt(c.buf[:padded], c.n*ChunkSize); err != nil {
		return fmt.Errorf("write %s: %w", partFile, w.wrapNoSpace(noSpace(err)))
	}
	if err := w.checkSpace(SpaceBeside(c.n * ChunkSize)); err != nil {
		return w.wrapNoSpace(err)
	}
	w.unsynced += int64(padded)
	if w.unsynced < syncEvery && (w.direct || w.unsynced < maxCached) {
		return nil
	}
	w.unsynced = 0
	return errors.Join(w.sync(), w.journal.f.Sync())
}

// maxUnusable limits the free space that a full file system is expected to report although it cannot be
// used. If there is more, a quota is the cause, and more free space would not help.
const maxUnusable = 64 << 20

// wrapNoSpace replaces an ErrNoSpace by a *NoSpaceError with the space that the whole image needs,
// because the file is removed after this error: at once, or when another disk has the copy. This is at
// least one chunk more than there was, whatever the size: some file systems need more space than they
// report. Otherwise the next attempt would fail in the same way, again and again.
func (w *partWriter) wrapNoSpace(err error) error {
	if !errors.Is(err, ErrNoSpace) {
		return err
	}
	e := &NoSpaceError{}
	if space, err := w.folder.disk.Space(); err == nil {
		e.Free = max(0, space.Free-w.reserve)
	}
	e.Need = w.written.Load() + min(e.Free, maxUnusable) + ChunkSize
	if source := w.source.Load(); source != nil && source.Size >= 0 {
		e.Need = max(e.Need, source.need())
	}
	return e
}

func (w *partWriter) sync() error {
	if !w.direct {
		return dropCache(w.file)
	}
	if err := unix.Fdatasync(int(w.file.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", partFile, noSpace(err))
	}
	return nil
}

func (w *partWriter) close() error {
	return errors.Join(w.file.Close(), w.journal.f.Close())
}

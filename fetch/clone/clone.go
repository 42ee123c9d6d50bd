package clone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/luks"
	"github.com/seed-26586806/backing-image-manager/disk/qcow2"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// Encryption is what becomes of the bytes.
type Encryption string

// The kinds of clones, in the words of the original.
const (
	Ignore  Encryption = "ignore"
	Encrypt Encryption = "encrypt"
	Decrypt Encryption = "decrypt"
)

// Request says what to clone, and how.
type Request struct {
	Source     *disk.Reader   // of Copy
	Manifest   *disk.Manifest // of Copy; not used by Ignore, which the checksum tells all
	Copy       disk.Copy      // a ready one
	Encryption Encryption
	SecretsDir string
	Secret     string // a folder below SecretsDir; not used by Ignore
}

// Fill reads the clone into part, from where part ends if what it holds is the beginning
// of the same clone, and returns when part holds the whole; the caller commits it. Nothing
// has become of the part when the secret, the passphrase or the source is not right.
//
// Errors are of type *fetch.Error but for a cancelled ctx, which is returned as its own
// error, and a failure of a disk other than lack of space.
func Fill(ctx context.Context, part *disk.Part, r Request, progress *fetch.Progress) error {
	var err error
	switch r.Encryption {
	case Ignore:
		err = r.copy(ctx, part, progress)
	case Encrypt:
		err = r.encrypt(ctx, part, progress)
	case Decrypt:
		err = r.decrypt(ctx, part, progress)
	default:
		panic("clone: encryption " + string(r.Encryption))
	}
	if err == nil || errors.Is(err, disk.ErrDamaged) {
		err = errors.Join(err, r.Source.Unchanged())
	}
	if header, ok := errors.AsType[*luks.HeaderError](err); ok {
		err = fail(fetch.BadSource, "%s: %w", r.Copy.ID, header)
	}
	return fetch.ClassifyDiskError(err)
}

// origin is that of a part whose bytes follow from those of the source.
func (r Request) origin(size int64) disk.PartSource {
	if r.Encryption == Ignore {
		return disk.CopySource(r.Copy)
	}
	return disk.PartSource{ID: string(r.Encryption) + " " + r.Copy.SHA512.String(), Size: size}
}

// CanResume reports whether a part of this origin may be the beginning of the clone.
func (r Request) CanResume(o disk.PartSource) bool { return o.ID == r.origin(0).ID }

// begin empties the part unless it is of the same origin, and sets the progress.
func begin(part *disk.Part, o disk.PartSource, progress *fetch.Progress) error {
	if part.Source() != o {
		if err := part.Begin(o); err != nil {
			return err
		}
	}
	progress.Total.Store(o.Size)
	progress.Done.Store(part.Offset())
	return nil
}

func (r Request) copy(ctx context.Context, part *disk.Part, progress *fetch.Progress) error {
	if err := begin(part, r.origin(r.Source.Size()), progress); err != nil {
		return err
	}
	return part.Clone(ctx, r.Source, func(n int64) { progress.Done.Add(n) })
}

// encrypt goes on behind the header that a part has, if the passphrase opens that.
func (r Request) encrypt(ctx context.Context, part *disk.Part, progress *fetch.Progress) error {
	s, err := readSecret(r.SecretsDir, r.Secret)
	if err != nil {
		return err
	}
	defer clear(s.passphrase)
	source, size, err := r.plain()
	if err != nil {
		return err
	}
	o := r.origin(HeaderSize + size)
	payload, err := reopen(ctx, part, o, s)
	if payload == nil && err == nil {
		payload, err = beginEncrypted(ctx, part, o, s)
	}
	if err != nil {
		return err
	}
	progress.Total.Store(o.Size)
	progress.Done.Store(part.Offset())
	return pour(ctx, part, source, part.Offset()-HeaderSize, size, payload.Encrypt, progress)
}

// beginEncrypted makes a header and puts it into the part, which it empties.
func beginEncrypted(ctx context.Context, part *disk.Part, o disk.PartSource, s *secret) (*luks.Payload, error) {
	header, payload, err := makeHeader(ctx, s, o.Size)
	if err != nil {
		return nil, err
	}
	defer header.Close()
	if err := part.Begin(o); err != nil {
		return nil, err
	}
	_, err = part.ReadFrom(io.NewSectionReader(header, 0, HeaderSize))
	return payload, err
}

// reopen opens the header that part begins with. There is none, and no error, where the
// part is of something else, ends within it, or does not open with the passphrase.
func reopen(ctx context.Context, part *disk.Part, o disk.PartSource, s *secret) (*luks.Payload, error) {
	if part.Source() != o || part.Offset() < HeaderSize {
		return nil, nil
	}
	f, err := inMemory(o.Size)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := part.WriteHead(f, HeaderSize); err != nil {
		return nil, err
	}
	h, payload, err := openHeader(ctx, f, o.Size, s.passphrase)
	_, refused := errors.AsType[*luks.HeaderError](err)
	if refused || errors.Is(err, errPassphrase) || err == nil && h.Offset != HeaderSize {
		return nil, nil
	}
	return payload, err
}

// checked reads the source so that nothing that the disk has spoiled is sealed into the
// clone, which has a checksum of its own.
func (r Request) checked() *disk.VerifyingReader {
	return disk.NewVerifyingReader(r.Copy.ID, r.Source, r.Manifest)
}

// plain returns what a guest sees of the source.
func (r Request) plain() (io.ReaderAt, int64, error) {
	var source io.ReaderAt = r.checked()
	size := r.Source.Size()
	if r.Copy.Format == disk.QCOW2 {
		image, err := qcow2.Open(source, size)
		if err != nil {
			return nil, 0, err
		}
		source, size = image, image.Size()
	}
	version, err := luksVersion(source, size)
	if err == nil && version != 0 {
		err = fail(fetch.BadSource, "cannot encrypt %s: it is encrypted already, with LUKS%d", r.Copy.ID, version)
	}
	return source, size, err
}

func (r Request) decrypt(ctx context.Context, part *disk.Part, progress *fetch.Progress) error {
	s, err := readSecret(r.SecretsDir, r.Secret)
	if err != nil {
		return err
	}
	defer clear(s.passphrase)
	source := r.checked()
	version, err := luksVersion(source, r.Source.Size())
	switch {
	case err != nil:
		return err
	case version == 0 && r.Source.Size() < HeaderSize:
		return fail(fetch.BadSource, "cannot decrypt %s: with %d bytes it is smaller than the header of an encrypted disk, which has %d", r.Copy.ID, r.Source.Size(), int64(HeaderSize))
	case version == 0:
		return fail(fetch.BadSource, "cannot decrypt %s: it is not encrypted, or not with LUKS", r.Copy.ID)
	}
	header, payload, err := readHeader(ctx, source, r.Source.Size(), s.passphrase)
	if errors.Is(err, errPassphrase) {
		return fail(fetch.BadConfig, "cannot decrypt %s: the passphrase in secret %q is wrong", r.Copy.ID, r.Secret)
	}
	if err != nil {
		return err
	}
	size := r.Source.Size() - header.Offset
	if size <= 0 || size%int64(header.SectorSize) != 0 {
		return fail(fetch.BadSource, "cannot decrypt %s: %d bytes behind its header are no disk with sectors of %d bytes", r.Copy.ID, size, header.SectorSize)
	}
	if err := begin(part, r.origin(size), progress); err != nil {
		return err
	}
	disk := io.NewSectionReader(source, header.Offset, size)
	return pour(ctx, part, disk, part.Offset(), size, payload.Decrypt, progress)
}

// luksVersion returns what a disk is encrypted with, 0 if it is not.
func luksVersion(r io.ReaderAt, size int64) (int, error) {
	head := make([]byte, min(512, size))
	if err := readFull(r, head, 0); err != nil {
		return 0, err
	}
	return luks.Version(head), nil
}

// mostWorkers bounds the memory of a transfer, and is more than any disk can follow.
const mostWorkers = 8

// piece is a chunk on its way from the source to the part.
type piece struct {
	buf  []byte // of disk.NewBuffer
	size int64
	at   int64 // in what is read
	sum  disk.ChunkHash
	err  error
	done chan struct{}
}

// stream is the pieces between the goroutine that reads, those that change, and the one
// that puts. Its channels have room for all pieces that there are.
type stream struct {
	free        chan []byte
	work, order chan *piece
}

// pour reads r, a disk, from an offset to size, changes each piece, and puts it at the
// end of the part. One goroutine reads r, several change.
func pour(ctx context.Context, part *disk.Part, r io.ReaderAt, offset, size int64, change func(b []byte, offset int64), progress *fetch.Progress) error {
	workers := min(runtime.GOMAXPROCS(0), mostWorkers)
	depth := workers + 2 // one is read, one is put
	s := stream{free: make(chan []byte, depth), work: make(chan *piece, depth), order: make(chan *piece, depth)}
	for range depth {
		s.free <- disk.NewChunkBuffer()
	}
	reading, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { s.read(reading, r, offset, size) })
	for range workers {
		running.Go(func() { s.change(change) })
	}
	if err := s.put(part, progress); err != nil {
		return err
	}
	return ctx.Err()
}

// read ends with the disk, ctx or an error, which goes with the piece.
func (s stream) read(ctx context.Context, r io.ReaderAt, offset, size int64) {
	defer close(s.order)
	defer close(s.work)
	for at := offset; at < size; at += disk.ChunkSize {
		var buf []byte
		select {
		case buf = <-s.free:
		case <-ctx.Done():
			return
		}
		p := &piece{buf: buf, at: at, size: min(disk.ChunkSize, size-at), done: make(chan struct{})}
		p.err = readFull(r, p.buf[:p.size], at)
		s.work <- p
		s.order <- p
		if p.err != nil {
			return
		}
	}
}

func (s stream) change(change func(b []byte, offset int64)) {
	for p := range s.work {
		if b := p.buf[:p.size]; p.err == nil {
			change(b, p.at)
			p.sum = disk.HashChunk(b)
		}
		close(p.done)
	}
}

func (s stream) put(part *disk.Part, progress *fetch.Progress) error {
	for p := range s.order {
		<-p.done
		if p.err != nil {
			return p.err
		}
		buf, err := part.AppendChunk(p.buf, p.size, p.sum)
		if err != nil {
			return err
		}
		progress.Done.Add(p.size)
		s.free <- buf
	}
	return nil
}

func readFull(r io.ReaderAt, b []byte, at int64) error {
	n, err := r.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read the source at %d: %w", at, err)
}

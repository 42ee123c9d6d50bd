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
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/disk/qcow2"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
	"github.com/seed-26586806/backing-image-manager/internal/exactly"
)

// Encryption says how a clone transforms the bytes of its source.
type Encryption string

// The transformations, with the names of Longhorn.
const (
	Ignore  Encryption = "ignore"
	Encrypt Encryption = "encrypt"
	Decrypt Encryption = "decrypt"
)

// Request is a clone to create.
type Request struct {
	Source     *disk.Reader   // of Copy
	Manifest   *disk.Manifest // unused by Ignore, which compares the checksum of Copy instead
	Copy       model.Copy     // must be ready
	Encryption Encryption
	SecretsDir string
	Secret     string // name of a folder below SecretsDir; unused by Ignore
}

// Fill fills part with the clone. It resumes at the end of part if its bytes are the beginning of the
// same clone. It returns when part has all bytes; the caller commits it. If the secret, the
// passphrase or the source is invalid, Fill does not change part.
//
// Errors are *fetch.Error, with two exceptions: the error of ctx, and disk failures other than lack
// of space.
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
		err = fetch.Errorf(fetch.BadSource, "%s: %w", r.Copy.ID, header)
	}
	return fetch.ClassifyDiskError(err)
}

// partSource returns the source of a partial file with a clone of size bytes. With Encrypt, equal sources may have
// different bytes, because each encryption creates a key.
func (r Request) partSource(size int64) disk.PartSource {
	if r.Encryption == Ignore {
		return disk.CopySource(r.Copy)
	}
	return disk.PartSource{ID: string(r.Encryption) + " " + r.Copy.SHA512.String(), Size: size}
}

// CanResume reports whether a partial file from this source may be the beginning of the
// clone.
func (r Request) CanResume(o disk.PartSource) bool { return o.ID == r.partSource(0).ID }

// begin discards the bytes in part unless they are from source o, and initialises the progress.
func begin(part *disk.Part, o disk.PartSource, progress *fetch.Progress) error {
	if part.Source() != o {
		if err := part.Begin(o); err != nil {
			return err
		}
	}
	progress.Total.Store(o.Size)
	progress.Resume(part.Offset())
	return nil
}

func (r Request) copy(ctx context.Context, part *disk.Part, progress *fetch.Progress) error {
	if err := begin(part, r.partSource(r.Source.Size()), progress); err != nil {
		return err
	}
	return part.Clone(ctx, r.Source, func(n int64) { progress.Done.Add(n) })
}

// encrypt resumes after the header in part if the passphrase opens this header. Otherwise it starts
// again with a new header.
func (r Request) encrypt(ctx context.Context, part *disk.Part, progress *fetch.Progress) error {
	s, err := readSecret(r.SecretsDir, r.Secret)
	if err != nil {
		return err
	}
	defer clear(s.passphrase)
	source, size, err := r.plainDisk()
	if err != nil {
		return err
	}
	o := r.partSource(HeaderSize + size)
	payload, err := openPartHeader(ctx, part, o, s)
	if payload == nil && err == nil {
		payload, err = beginEncrypted(ctx, part, o, s)
	}
	if err != nil {
		return err
	}
	progress.Total.Store(o.Size)
	progress.Resume(part.Offset())
	return transformInto(ctx, part, source, HeaderSize, o.Size, payload.Encrypt, progress)
}

// beginEncrypted discards the bytes in part, creates a header and appends it.
func beginEncrypted(ctx context.Context, part *disk.Part, o disk.PartSource, s *secret) (*luks.Payload, error) {
	header, payload, err := createHeader(ctx, s, o.Size)
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

// openPartHeader opens the header at the beginning of part. It returns nil without an error if part
// is from another source, is shorter than the header, or does not open with the passphrase.
func openPartHeader(ctx context.Context, part *disk.Part, o disk.PartSource, s *secret) (*luks.Payload, error) {
	if part.Source() != o || part.Offset() < HeaderSize {
		return nil, nil
	}
	f, err := memoryFile(o.Size)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := io.Copy(f, io.NewSectionReader(part, 0, HeaderSize)); err != nil {
		return nil, err
	}
	h, payload, err := openHeader(ctx, f, o.Size, s.passphrase)
	_, refused := errors.AsType[*luks.HeaderError](err)
	if refused || errors.Is(err, errPassphrase) || err == nil && h.Offset != HeaderSize {
		return nil, nil
	}
	return payload, err
}

// cachedChunks is the number of chunks of the source that are kept in memory. A qcow2 image has its
// tables and its data in different chunks.
const cachedChunks = 4

// verifiedSource returns a reader of the source that verifies each chunk. Without verification,
// damaged bytes of the source would be included in the clone and its new checksum.
func (r Request) verifiedSource() *disk.VerifyingReader {
	return disk.NewVerifyingReader(r.Copy.ID, r.Source, r.Manifest, cachedChunks)
}

// plainDisk returns the disk that a guest sees, and its size.
func (r Request) plainDisk() (io.ReaderAt, int64, error) {
	var source io.ReaderAt = r.verifiedSource()
	size := r.Source.Size()
	if r.Copy.Format == model.QCOW2 {
		image, err := qcow2.Open(source, size)
		if err != nil {
			return nil, 0, err
		}
		source, size = image, image.Size()
	}
	version, err := luksVersion(source, size)
	if err == nil && version != 0 {
		err = fetch.Errorf(fetch.BadSource, "cannot encrypt %s: it is already encrypted, with LUKS%d: declare the encryption ignore", r.Copy.ID, version)
	}
	return source, size, err
}

func (r Request) decrypt(ctx context.Context, part *disk.Part, progress *fetch.Progress) error {
	s, err := readSecret(r.SecretsDir, r.Secret)
	if err != nil {
		return err
	}
	defer clear(s.passphrase)
	source := r.verifiedSource()
	version, err := luksVersion(source, r.Source.Size())
	switch {
	case err != nil:
		return err
	case version == 0 && r.Source.Size() < HeaderSize:
		return fetch.Errorf(fetch.BadSource, "cannot decrypt %s: it has %d bytes, but the header of an encrypted disk already has %d bytes", r.Copy.ID, r.Source.Size(), int64(HeaderSize))
	case version == 0:
		return fetch.Errorf(fetch.BadSource, "cannot decrypt %s: it is not encrypted, or not with LUKS: declare the encryption ignore", r.Copy.ID)
	}
	header, payload, err := readHeader(ctx, source, r.Source.Size(), s.passphrase)
	if errors.Is(err, errPassphrase) {
		return fetch.Errorf(fetch.BadConfig, "cannot decrypt %s: the passphrase in secret %q is wrong: correct its file CRYPTO_KEY_VALUE", r.Copy.ID, r.Secret)
	}
	if err != nil {
		return err
	}
	size := r.Source.Size() - header.Offset
	if size <= 0 || size%int64(header.SectorSize) != 0 {
		return fetch.Errorf(fetch.BadSource, "cannot decrypt %s: the %d bytes after its header are not a whole number of sectors of %d bytes", r.Copy.ID, size, header.SectorSize)
	}
	if err := begin(part, r.partSource(size), progress); err != nil {
		return err
	}
	disk := io.NewSectionReader(source, header.Offset, size)
	return transformInto(ctx, part, disk, 0, size, payload.Decrypt, progress)
}

// luksVersion returns the LUKS version of a disk, or 0 if the disk is not encrypted.
func luksVersion(r io.ReaderAt, size int64) (int, error) {
	head := make([]byte, min(512, size))
	if err := exactly.ReadAt(r, head, 0); err != nil {
		return 0, fmt.Errorf("read the source: %w", err)
	}
	return luks.Version(head), nil
}

// maxWorkers limits the memory of a clone. More workers would be faster than any disk.
const maxWorkers = 8

// transformInto appends the rest of a clone of size bytes to part. After the first shift bytes, the clone has the bytes
// of the disk r, transformed by change. Several goroutines transform chunks, but only one at a time reads r.
func transformInto(ctx context.Context, part *disk.Part, r io.ReaderAt, shift, size int64, change func(b []byte, offset int64), progress *fetch.Progress) error {
	workers := min(runtime.GOMAXPROCS(0), maxWorkers)
	var reading sync.Mutex
	source := assemble.Candidate{
		Name: "source", Limits: func() (requests int, length int64) { return workers, 0 }, // a chunk at a time
		Provider: assemble.Open(func(_ context.Context, from, to int64) (io.ReadCloser, error) {
			return &transformed{r, &reading, change, from - shift, to - shift}, nil
		}),
	}
	a := assemble.Assembly{
		Plan: assemble.Blocks(size, disk.ChunkSize, func(int64) bool { return true }), Sink: part,
		Candidates: func() []assemble.Candidate { return []assemble.Candidate{source} }, Health: new(assemble.Health),
		Window: func() int64 { return int64(workers+2) * disk.ChunkSize }, // one chunk is being written
		Failed: func(_ assemble.Candidate, err error) error { return err }, Progress: progress,
	}
	return a.Run(ctx, part.Offset())
}

// transformed reads the bytes [at, end) of a disk and transforms them. Each Read transforms whole sectors, because its
// buffer has room for a whole chunk.
type transformed struct {
	disk    io.ReaderAt
	reading *sync.Mutex // held while disk is read
	change  func(b []byte, offset int64)
	at, end int64
}

// Read implements io.Reader.
func (t *transformed) Read(p []byte) (int, error) {
	if t.at == t.end {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), t.end-t.at)]
	t.reading.Lock()
	err := exactly.ReadAt(t.disk, p, t.at)
	t.reading.Unlock()
	if err != nil {
		return 0, fmt.Errorf("read the source: %w", err)
	}
	t.change(p, t.at)
	t.at += int64(len(p))
	return len(p), nil
}

// Close implements io.Closer.
func (t *transformed) Close() error { return nil }

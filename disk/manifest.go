package disk

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// ErrNoManifest says that the sums of an image's chunks are missing, or are not
// those that its record names. Verify makes them anew for an image that is right.
var ErrNoManifest = errors.New("no manifest")

// Manifest is the sums of all chunks of an image, in a file that is open: memory
// does not grow with the image. Its methods may be called concurrently.
type Manifest struct {
	f      *os.File
	base   int64 // where in f the sums begin
	size   int64
	digest Digest
}

// Close closes the file. Nothing else may be called after it.
func (m *Manifest) Close() error { return m.f.Close() }

// Size returns the bytes of the image.
func (m *Manifest) Size() int64 { return m.size }

// Digest returns the SHA-256 of all sums, by which a copy names its manifest.
func (m *Manifest) Digest() Digest { return m.digest }

// Chunks returns how many chunks the image has.
func (m *Manifest) Chunks() int64 { return chunksOf(m.size) }

// ChunkLength returns the bytes of chunk n: ChunkSize, but for the last one.
func (m *Manifest) ChunkLength(n int64) int64 { return min(ChunkSize, m.size-n*ChunkSize) }

// Hash returns the sum of chunk n.
func (m *Manifest) Hash(n int64) (ChunkHash, error) {
	var sum ChunkHash
	if n < 0 || n >= m.Chunks() {
		return sum, fmt.Errorf("manifest has no chunk %d", n)
	}
	if _, err := m.f.ReadAt(sum[:], m.base+n*sha256.Size); err != nil {
		return ChunkHash{}, fmt.Errorf("read manifest: %w", err)
	}
	return sum, nil
}

// IsZero reports whether chunk n has nothing but zeros.
func (m *Manifest) IsZero(n int64) (bool, error) {
	sum, err := m.Hash(n)
	return err == nil && sum == hashBytes(zeros[:m.ChunkLength(n)], true), err
}

// DataSize returns how many bytes are in chunks that are not all zero. It reads the sums.
func (m *Manifest) DataSize() (int64, error) {
	var data int64
	sums := bufio.NewReaderSize(m.Hashes(), 64<<10)
	for n := range m.Chunks() {
		var sum ChunkHash
		if _, err := io.ReadFull(sums, sum[:]); err != nil {
			return 0, fmt.Errorf("read manifest: %w", err)
		}
		if sum != hashBytes(zeros[:m.ChunkLength(n)], true) {
			data += m.ChunkLength(n)
		}
	}
	return data, nil
}

// Hashes returns a new reader of the sums in order, 32 bytes each: what
// ReceiveManifest takes.
func (m *Manifest) Hashes() *io.SectionReader { return m.hashes(m.size) }

// hashes returns those of the first so many bytes of the image.
func (m *Manifest) hashes(size int64) *io.SectionReader {
	return io.NewSectionReader(m.f, m.base, chunksOf(size)*sha256.Size)
}

// Manifest opens the manifest of a ready or failed copy, which is that of the image
// when it was right. ErrNoManifest says that there is none, or not the one that the
// record names; Look says so too from then on.
func (d *Disk) Manifest(id ID) (*Manifest, error) {
	c := d.Stat(id)
	if c.ManifestDigest.IsZero() {
		return nil, fmt.Errorf("manifest of %s: %w", id, ErrNoManifest)
	}
	f, err := openImage(d.root, id.file(chunksFile), os.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("manifest of %s: %w", id, err)
	}
	m := &Manifest{f: f, base: chunkHeaderSize, size: c.Size, digest: c.ManifestDigest}
	if err := m.check(c.ManifestDigest); err != nil {
		info, statErr := f.Stat()
		f.Close()
		if statErr == nil {
			d.distrust(id, manifestLook{of: evidenceOf(info), named: c.ManifestDigest})
		}
		return nil, fmt.Errorf("manifest of %s: %w: %w", id, ErrNoManifest, err)
	}
	return m, nil
}

// check says why the file is not the manifest that has the digest want.
func (m *Manifest) check(want Digest) error {
	header := make([]byte, chunkHeaderSize)
	if _, err := m.f.ReadAt(header, 0); err != nil {
		return err
	}
	if !bytes.Equal(header, chunkHeader()) {
		return errors.New("it is a file of something else")
	}
	h := SHA256.New()
	if _, err := io.Copy(h, m.Hashes()); err != nil {
		return err
	}
	return matches(want, Digest{}, SHA256.Digest(h))
}

// manifestLook is a manifest that was found not to be the one that is named.
type manifestLook struct {
	of    Evidence
	named Digest
}

// ReceiveManifest reads the manifest of an image of so many bytes, to which r must
// come with nothing behind it. One without the digest want is a *ChecksumError, a
// size that the part may not have ErrTooLarge. It lies in a file without a name, so
// that nothing of it outlives its Close; the part itself is not touched.
func (p *Part) ReceiveManifest(r io.Reader, size int64, want Digest) (*Manifest, error) {
	m, err := p.receiveManifest(r, size, want)
	if err != nil {
		return nil, fmt.Errorf("receive manifest of %s: %w", p.id, err)
	}
	return m, nil
}

func (p *Part) receiveManifest(r io.Reader, size int64, want Digest) (*Manifest, error) {
	if most := p.options.MaxSize; most > 0 && size > most {
		return nil, fmt.Errorf("%w: it has %d bytes, at most %d are allowed", ErrTooLarge, size, most)
	}
	if err := p.room(chunksOf(size) * sha256.Size); err != nil {
		return nil, err
	}
	f, err := removed(p.disk.root, p.id.file(partManifestFile))
	if err != nil {
		return nil, err
	}
	return ReceiveManifest(f, r, size, want)
}

// ReceiveManifest is what the method of Part is, with a file of the caller's to put
// the manifest into. The file is closed with the Manifest, or after an error at once.
func ReceiveManifest(f *os.File, r io.Reader, size int64, want Digest) (*Manifest, error) {
	err := receiveInto(f, r, size, want)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &Manifest{f: f, size: size, digest: want}, nil
}

func receiveInto(f *os.File, r io.Reader, size int64, want Digest) error {
	if size <= 0 || want.Algorithm() != SHA256 {
		return fmt.Errorf("there is none for %d bytes with the digest %s", size, want.Short())
	}
	h := SHA256.New()
	if err := copyExactly(io.MultiWriter(f, h), r, chunksOf(size)*sha256.Size); err != nil {
		return noSpace(err)
	}
	return matches(want, Digest{}, SHA256.Digest(h))
}

// copyExactly copies r, which has to end after so many bytes.
func copyExactly(w io.Writer, r io.Reader, length int64) error {
	n, err := io.CopyN(w, r, length)
	if err == io.EOF {
		return fmt.Errorf("%d of %d bytes came: %w", n, length, io.ErrUnexpectedEOF)
	}
	if err != nil {
		return err
	}
	switch _, err := io.ReadFull(r, make([]byte, 1)); err {
	case nil:
		return fmt.Errorf("more than %d bytes came", length)
	case io.EOF:
		return nil
	default:
		return err
	}
}

// sameHashes reports whether two readers of the same length have the same bytes.
func sameHashes(a, b *io.SectionReader) (bool, error) {
	ours, theirs := make([]byte, 32<<10), make([]byte, 32<<10)
	for {
		n, err := io.ReadFull(a, ours)
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return false, err
		}
		if _, err := io.ReadFull(b, theirs[:n]); err != nil {
			return false, err
		}
		if !bytes.Equal(ours[:n], theirs[:n]) {
			return false, nil
		}
		if err != nil {
			return true, nil
		}
	}
}

// ChunkSize is the unit that image bytes are checked, resumed and repaired in.
const ChunkSize = 1 << 20

// ChunkHash is the SHA-256 of one chunk, of the bytes that the file has in it: the
// last one of an image may be short. The zero value stands for one that is not known.
type ChunkHash [sha256.Size]byte

// backing.chunks is a header and the hash of each chunk in order. While a part
// is written it is its journal, afterwards the manifest of the image.
const chunkHeaderSize = 16

var chunkMagic = [8]byte{'B', 'I', 'M', 'C', 'H', 'U', 'N', 'K'}

func chunkHeader() []byte {
	h := append([]byte(nil), chunkMagic[:]...)
	h = binary.BigEndian.AppendUint32(h, 1) // version
	return binary.BigEndian.AppendUint32(h, ChunkSize)
}

// chunkCount returns how many hashes a chunk file of so many bytes holds.
func chunkCount(fileSize int64) int64 {
	return max(0, fileSize-chunkHeaderSize) / sha256.Size
}

// chunksOf returns how many chunks an image of so many bytes has.
func chunksOf(size int64) int64 { return (size-1)/ChunkSize + 1 }

// chunkFile is an open backing.chunks. Not safe for concurrent use.
type chunkFile struct{ f *os.File }

// openChunks opens a chunk file, and empties one that cannot be read: unknown
// chunks are fetched again, which is always right.
func openChunks(root *os.Root, name string) (chunkFile, error) {
	f, err := openImage(root, name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return chunkFile{}, err
	}
	c := chunkFile{f}
	header := make([]byte, chunkHeaderSize)
	_, err = f.ReadAt(header, 0)
	if err == nil && bytes.Equal(header, chunkHeader()) {
		return c, nil
	}
	if err != nil && !errors.Is(err, io.EOF) {
		f.Close()
		return chunkFile{}, err
	}
	if err := c.reset(); err != nil {
		f.Close()
		return chunkFile{}, err
	}
	return c, nil
}

// reset forgets all hashes, durably: none of them may vouch for the bytes that
// come next.
func (c chunkFile) reset() error {
	if err := c.f.Truncate(0); err != nil {
		return err
	}
	if _, err := c.f.WriteAt(chunkHeader(), 0); err != nil {
		return noSpace(err)
	}
	return c.f.Sync()
}

func (c chunkFile) set(n int64, h ChunkHash) error {
	if _, err := c.f.WriteAt(h[:], chunkHeaderSize+n*sha256.Size); err != nil {
		return fmt.Errorf("write %s: %w", chunksFile, noSpace(err))
	}
	return nil
}

// at returns the hash of chunk n, or the zero value.
func (c chunkFile) at(n int64) ChunkHash {
	var h ChunkHash
	if _, err := c.f.ReadAt(h[:], chunkHeaderSize+n*sha256.Size); err != nil {
		return ChunkHash{}
	}
	return h
}

// hashes returns a reader of the hashes of the first so many bytes.
func (c chunkFile) hashes(size int64) *io.SectionReader {
	return io.NewSectionReader(c.f, chunkHeaderSize, chunksOf(size)*sha256.Size)
}

// truncate keeps the first n hashes.
func (c chunkFile) truncate(n int64) error {
	return c.f.Truncate(chunkHeaderSize + n*sha256.Size)
}

var zeros [ChunkSize]byte

func allZero(b []byte) bool { return bytes.Equal(b, zeros[:len(b)]) }

// HashChunk returns the sum of a chunk with these bytes, at most ChunkSize.
func HashChunk(data []byte) ChunkHash { return hashBytes(data, allZero(data)) }

var hashOfZeroChunk = sync.OnceValue(func() ChunkHash { return sha256.Sum256(zeros[:]) })

func hashBytes(b []byte, zero bool) ChunkHash {
	if zero && len(b) == ChunkSize {
		return hashOfZeroChunk()
	}
	return sha256.Sum256(b)
}

package disk

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// ChunkSize is the size of a chunk, the unit in which an image is verified, resumed and repaired.
const ChunkSize = model.ChunkSize

// chunksOf returns the number of chunks of an image of size bytes.
func chunksOf(size int64) int64 { return (size-1)/ChunkSize + 1 }

// A chunk file is a header and the hash of each chunk in order. It is first the journal of a partial
// file (backing.part.chunks), and later the chunk manifest of the image (backing.chunks). Peers send the manifest as it is.
//
// The header has the magic, the ChunkAlgorithm in 4 bytes, and ChunkSize in 4 bytes, both big endian.
const chunkHeaderSize = model.ChunkHeaderSize

var chunkMagic = [8]byte{'B', 'I', 'M', 'C', 'H', 'U', 'N', 'K'}

// header returns the header of a chunk file with hashes of the algorithm.
func (a ChunkAlgorithm) header() []byte {
	h := append([]byte(nil), chunkMagic[:]...)
	h = binary.BigEndian.AppendUint32(h, uint32(a))
	return binary.BigEndian.AppendUint32(h, ChunkSize)
}

// readChunkHeader reads the header of a chunk file and returns the algorithm of its hashes; 0: the header is wrong.
func readChunkHeader(r io.Reader) (ChunkAlgorithm, error) {
	header := make([]byte, chunkHeaderSize)
	if _, err := io.ReadFull(r, header); err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return 0, err
	}
	for _, a := range []ChunkAlgorithm{ChunkSHA256, ChunkBLAKE3} {
		if bytes.Equal(header, a.header()) {
			return a, nil
		}
	}
	return 0, nil
}

// chunkCount returns the number of hashes in a chunk file of fileSize bytes.
func chunkCount(fileSize int64) int64 {
	return max(0, fileSize-chunkHeaderSize) / ChunkHashSize
}

// chunkFile is an open chunk file.
type chunkFile struct {
	f         *os.File
	algorithm ChunkAlgorithm
}

// readHeader sets the algorithm; 0: the header is wrong.
func (c *chunkFile) readHeader() (err error) {
	c.algorithm, err = readChunkHeader(io.NewSectionReader(c.f, 0, chunkHeaderSize))
	return err
}

// openChunks opens or creates a chunk file. If the header is wrong, it empties the file: the chunks
// are then fetched again, which is always safe.
func openChunks(root *os.Root, name string) (chunkFile, error) {
	if err := removeLinked(root, name); err != nil {
		return chunkFile{}, err
	}
	f, err := openRegular(root, name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return chunkFile{}, err
	}
	c := chunkFile{f: f}
	if err = c.readHeader(); err == nil && c.algorithm == 0 {
		err = c.reset(NewChunks)
	}
	if err != nil {
		f.Close()
		return chunkFile{}, err
	}
	return c, nil
}

// reset removes all hashes durably, because an old hash could make new bytes count as verified. The
// hashes that follow have algorithm a.
func (c *chunkFile) reset(a ChunkAlgorithm) error {
	if err := c.f.Truncate(0); err != nil {
		return err
	}
	c.algorithm = a
	if _, err := c.f.WriteAt(a.header(), 0); err != nil {
		return noSpace(err)
	}
	return c.f.Sync()
}

func (c *chunkFile) set(n int64, h ChunkHash) error {
	if _, err := c.f.WriteAt(h.sum[:], chunkHeaderSize+n*ChunkHashSize); err != nil {
		return fmt.Errorf("write %s: %w", chunksFile, noSpace(err))
	}
	return nil
}

// at returns the hash of chunk n.
func (c *chunkFile) at(n int64) (ChunkHash, error) {
	h := ChunkHash{algorithm: c.algorithm}
	if _, err := c.f.ReadAt(h.sum[:], chunkHeaderSize+n*ChunkHashSize); err != nil {
		return ChunkHash{}, err
	}
	return h, nil
}

// truncate keeps the first n hashes.
func (c *chunkFile) truncate(n int64) error {
	return c.f.Truncate(chunkHeaderSize + n*ChunkHashSize)
}

// ErrNoManifest: an image has no chunk manifest, or the manifest does not have the recorded digest.
// Verify creates a new manifest for an image that is not damaged.
var ErrNoManifest = errors.New("no manifest")

// Manifest is the chunk manifest of an image: the hashes of all chunks. It reads them from an open
// file, so that its memory does not grow with the image. It is safe for concurrent use.
type Manifest struct {
	chunkFile
	size   int64
	digest ident.Digest
}

// Close closes the file. No other method may be called after it.
func (m *Manifest) Close() error { return m.f.Close() }

// Size returns the bytes of the image.
func (m *Manifest) Size() int64 { return m.size }

// Algorithm returns the algorithm of the hashes.
func (m *Manifest) Algorithm() ChunkAlgorithm { return m.algorithm }

// Digest returns the SHA-256 of the encoded manifest, which identifies it.
func (m *Manifest) Digest() ident.Digest { return m.digest }

// Chunks returns the number of chunks of the image.
func (m *Manifest) Chunks() int64 { return chunksOf(m.size) }

// ChunkLength returns the bytes of chunk n: ChunkSize, or less for the last chunk.
func (m *Manifest) ChunkLength(n int64) int64 { return min(ChunkSize, m.size-n*ChunkSize) }

// Hash returns the hash of chunk n.
func (m *Manifest) Hash(n int64) (ChunkHash, error) {
	if n < 0 || n >= m.Chunks() {
		return ChunkHash{}, fmt.Errorf("manifest has no chunk %d", n)
	}
	h, err := m.at(n)
	if err != nil {
		return ChunkHash{}, fmt.Errorf("read manifest: %w", err)
	}
	return h, nil
}

// IsZero reports whether all bytes of chunk n are zero.
func (m *Manifest) IsZero(n int64) (bool, error) {
	h, err := m.Hash(n)
	return err == nil && h.matchesZeros(m.ChunkLength(n)), err
}

// DataSize returns the bytes of all chunks that are not all zero. It reads the whole manifest.
func (m *Manifest) DataSize() (int64, error) {
	var data int64
	for n := range m.Chunks() {
		zero, err := m.IsZero(n)
		if err != nil {
			return 0, err
		}
		if !zero {
			data += m.ChunkLength(n)
		}
	}
	return data, nil
}

// SelectedChunk is the position of a chunk in an image, and its hash.
type SelectedChunk struct {
	From, To int64 // the bytes [From, To)
	Hash     ChunkHash
}

// SelectChunk selects a chunk of an image of size bytes at random. It reads the encoded manifest from r. All chunks
// with data are equally likely; if the image is all zero, all chunks are. The selection cannot be predicted without
// the secret.
func SelectChunk(r io.Reader, size int64, secret uint64) (SelectedChunk, error) {
	if size <= 0 {
		return SelectedChunk{}, fmt.Errorf("an image of %d bytes has no chunk", size)
	}
	random := rand.New(rand.NewPCG(secret, 0))
	hashes := bufio.NewReaderSize(io.LimitReader(r, model.ChunkFileSize(size)), 64<<10)
	algorithm, err := readChunkHeader(hashes)
	if err != nil || algorithm == 0 {
		return SelectedChunk{}, errors.Join(errNotManifest, err)
	}
	var selected SelectedChunk
	var data, zero int64 // how many chunks of both kinds were read
	for n := range chunksOf(size) {
		candidate := SelectedChunk{From: n * ChunkSize, To: min((n+1)*ChunkSize, size), Hash: ChunkHash{algorithm: algorithm}}
		if _, err := io.ReadFull(hashes, candidate.Hash.sum[:]); err != nil {
			return SelectedChunk{}, fmt.Errorf("read manifest: %w", err)
		}
		if candidate.Hash.matchesZeros(candidate.To - candidate.From) {
			zero++
			if data == 0 && random.Int64N(zero) == 0 {
				selected = candidate
			}
			continue
		}
		if data++; random.Int64N(data) == 0 {
			selected = candidate
		}
	}
	return selected, nil
}

// Encoded returns a new reader of the encoded manifest, which is the input of ReceiveManifest.
func (m *Manifest) Encoded() *io.SectionReader {
	return io.NewSectionReader(m.f, 0, model.ChunkFileSize(m.size))
}

// Manifest opens the chunk manifest of a ready or failed copy. It describes the bytes that the image
// had when it became ready. ErrNoManifest: the manifest is missing, or does not have the recorded
// digest. Then Stat returns no ManifestDigest for this copy any more.
func (d *Disk) Manifest(id ident.ID) (*Manifest, error) {
	c := d.Stat(id)
	if c.ManifestDigest.IsZero() {
		return nil, fmt.Errorf("manifest of %s: %w", id, ErrNoManifest)
	}
	f, err := openRegular(d.root, filePath(id, chunksFile), os.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("manifest of %s: %w", id, err)
	}
	m := &Manifest{chunkFile{f: f}, c.Size, c.ManifestDigest}
	if err := m.verify(); err != nil {
		info, statErr := f.Stat()
		f.Close()
		if statErr == nil {
			bad := manifestFile{file: evidenceOf(info), recorded: c.ManifestDigest} // until the file or the record changes
			d.metadata.change(id, func(c *cachedFolder) { c.badManifest = bad })
		}
		return nil, fmt.Errorf("manifest of %s: %w: %w", id, ErrNoManifest, err)
	}
	return m, nil
}

var errNotManifest = fmt.Errorf("%w: the bytes are not a chunk manifest", ErrNoManifest)

// verify compares the file with the digest, and reads the header.
func (m *Manifest) verify() error {
	h := ident.SHA256.New()
	if _, err := io.Copy(h, m.Encoded()); err != nil {
		return err
	}
	if err := errors.Join(matches(m.digest, ident.Digest{}, ident.SHA256.Digest(h)), m.readHeader()); err != nil {
		return err
	}
	if m.algorithm == 0 {
		return errNotManifest
	}
	return nil
}

// ReceiveManifest reads the encoded manifest of an image of size bytes from r, up to the end of r. It returns
// a *ChecksumError if the manifest does not have the digest want, and ErrTooLarge if size exceeds the
// limit of the partial file. The manifest is in an unlinked file, which Close or a crash removes.
// ReceiveManifest does not change the partial file.
func (p *partFolder) ReceiveManifest(r io.Reader, size int64, want ident.Digest) (m *Manifest, err error) {
	var f *os.File
	if err = p.checkImageSize(size); err == nil {
		err = p.checkSpace(model.ChunkFileSize(size))
	}
	if err == nil {
		f, err = p.TempFile()
	}
	if err == nil {
		m, err = ReceiveManifest(f, r, size, want)
	}
	if err != nil {
		return nil, fmt.Errorf("receive manifest of %s: %w", p.folder.id, err)
	}
	return m, nil
}

// ReceiveManifest is like Part.ReceiveManifest, but writes to the file f and has no limits. The
// Manifest owns f. After an error f is closed. ErrNoManifest: the bytes have the digest, but are no manifest.
func ReceiveManifest(f *os.File, r io.Reader, size int64, want ident.Digest) (*Manifest, error) {
	m := &Manifest{chunkFile{f: f}, size, want}
	if err := m.receive(r); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return m, nil
}

func (m *Manifest) receive(r io.Reader) error {
	if m.size <= 0 || m.digest.Algorithm() != ident.SHA256 {
		return fmt.Errorf("the image size %d or the manifest digest %s is invalid: the size must be positive, the digest a SHA-256", m.size, m.digest.Short())
	}
	length := model.ChunkFileSize(m.size)
	n, err := io.Copy(m.f, io.LimitReader(r, length+1))
	if err == nil && n != length {
		err = fmt.Errorf("it does not have %d bytes: %w", length, io.ErrUnexpectedEOF)
	}
	if err != nil {
		return noSpace(err)
	}
	return m.verify()
}

package peer

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/fetch/outfile"
)

// maxCompressions is how many downloads a node compresses at once: each needs a core.
const maxCompressions = 2

// download sends an image to a client that is not a peer, see the package comment.
func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	name, uuid := r.PathValue("name"), r.URL.Query().Get("uuid")
	packing, err := outfile.ParseCompression(r.URL.Query().Get("compress"))
	if uuid != "" {
		err = errors.Join(err, disk.CheckUUID(uuid))
	}
	if err := errors.Join(disk.CheckName(name), err); err != nil {
		httperror.New(http.StatusBadRequest, "%s", strings.ReplaceAll(err.Error(), "\n", "; ")).Write(w)
		return
	}
	d, c, refused := s.findReadyCopy(r.Context(), name, uuid)
	if refused != nil {
		refused.Write(w)
		return
	}
	ctx, release, ok := s.acquireSlot(w, r, c.ID)
	if !ok {
		return
	}
	defer release()
	image, err := openVerifyingReader(d, c.ID)
	if err != nil {
		httperror.New(http.StatusConflict, "%v", err).Write(w)
		return
	}
	defer image.Close()
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name+fileExtension(c.Format)+packing.Extension()))
	p, done := newPacedWriter(ctx, w, s.pieceTimeout, image.Unchanged)
	defer done()
	if packing == outfile.None {
		err = sendFile(w, r, p, image, c)
	} else {
		err = s.sendCompressed(w, r, p, image, packing, c.SHA512)
	}
	if errors.Is(err, disk.ErrDamaged) {
		s.node.ReportDamage(ctx, c.ID.Name)
	}
	if err != nil {
		panic(http.ErrAbortHandler) // breaks the connection: the client must not take this for the whole
	}
}

func fileExtension(f disk.Format) string {
	if f == disk.QCOW2 {
		return ".qcow2"
	}
	return ".raw"
}

// sendFile sends the uncompressed image. net/http handles ranges and conditions.
func sendFile(w http.ResponseWriter, r *http.Request, p *pacedWriter, image *verifyingReader, c Copy) error {
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("ETag", `"`+c.SHA512.String()+`"`)
	if sum, err := hex.DecodeString(c.SHA512.String()); err == nil {
		h.Set("Repr-Digest", "sha-512=:"+base64.StdEncoding.EncodeToString(sum)+":") // RFC 9530
	}
	http.ServeContent(pacedResponse{w, p}, r, "", time.Time{}, image)
	return image.readErr
}

// pacedResponse is a response whose body is written by a pacedWriter.
type pacedResponse struct {
	http.ResponseWriter
	body *pacedWriter
}

func (r pacedResponse) Write(b []byte) (int, error) { return r.body.Write(b) }

func (r pacedResponse) ReadFrom(src io.Reader) (int64, error) { return r.body.ReadFrom(src) }

// sendCompressed sends the whole image compressed. It sends no length, because that is not
// known before the end, and supports no ranges, because another version of the compressor
// may produce other bytes.
func (s *Server) sendCompressed(w http.ResponseWriter, r *http.Request, p *pacedWriter, image *verifyingReader, packing outfile.Compression, digest disk.Digest) error {
	w.Header().Set("Content-Type", "application/"+string(packing))
	if r.Method == http.MethodHead {
		return nil
	}
	select {
	case s.compressions <- struct{}{}:
		defer func() { <-s.compressions }()
	default:
		w.Header().Del("Content-Disposition")
		writeBusy(w, "compression limit reached: this node compresses at most %d downloads at once", maxCompressions)
		return nil
	}
	out := bufio.NewWriterSize(p, pieceSize)
	to := outfile.NewStreamWriter(out, packing, image.Size())
	for n := range image.manifest.Chunks() {
		chunk, err := image.chunkData(n)
		if err == nil {
			err = to.AppendChunk(chunk)
		}
		if err != nil {
			return err
		}
	}
	if err := to.Commit(digest); err != nil {
		return err
	}
	return out.Flush()
}

// findReadyCopy returns a ready copy of the image with this name and the disk that has it.
// The generation is uuid, or if that is "", the declared one. Without a declaration, the
// only generation on the node counts, if there is only one.
func (s *Server) findReadyCopy(ctx context.Context, name, uuid string) (*disk.Disk, Copy, *httperror.Error) {
	state, err := s.node.Copies(ctx, name)
	if err != nil {
		return nil, Copy{}, httperror.New(http.StatusServiceUnavailable, "%v", err)
	}
	if uuid == "" {
		uuid, _ = s.node.DeclaredUUID(name)
	}
	var rejected []string // why copies of the generation are not ready
	var found Copy
	var on *disk.Disk
	for _, d := range state.Disks {
		for _, c := range d.Copies {
			open, readable := s.node.Disk(d.Name)
			switch {
			case uuid != "" && c.UUID != uuid, !readable:
			case c.Leaving:
				rejected = append(rejected, fmt.Sprintf("%s is leaving disk %s", c.ID, d.Name))
			case c.State != disk.Ready:
				rejected = append(rejected, fmt.Sprintf("%s on disk %s is %s", c.ID, d.Name, c.State))
			case on == nil:
				on, found = open, c
			case c.UUID != found.UUID:
				return nil, Copy{}, httperror.New(http.StatusConflict, "%s is not declared and has several generations on this node: select one with ?uuid=", name)
			}
		}
	}
	switch {
	case on != nil:
		return on, found, nil
	case len(rejected) > 0:
		return nil, Copy{}, httperror.New(http.StatusConflict, "%s", strings.Join(rejected, "; "))
	case uuid != "":
		return nil, Copy{}, httperror.New(http.StatusNotFound, "%s is not on the disks of this node", disk.ID{Name: name, UUID: uuid})
	}
	return nil, Copy{}, httperror.New(http.StatusNotFound, "no image %s is on the disks of this node", name)
}

// verifyingReader reads an image for clients that cannot verify it themselves: it never
// returns bytes of a chunk that does not match the chunk manifest. It implements
// io.ReadSeeker, and does not read zero chunks from the disk.
type verifyingReader struct {
	*disk.Reader
	id       disk.ID
	manifest *disk.Manifest
	offset   int64
	buf      []byte
	loaded   int64 // the number of the chunk in chunk; -1: none
	chunk    []byte
	readErr  error // the last error of Read: http.ServeContent does not return it
}

func openVerifyingReader(d *disk.Disk, id disk.ID) (*verifyingReader, error) {
	m, err := d.Manifest(id)
	if err != nil {
		return nil, err
	}
	r, err := d.Open(id)
	if err == nil && r.Size() != m.Size() {
		err = errors.Join(fmt.Errorf("open %s: the file has %d bytes, and its chunk manifest is for %d", id, r.Size(), m.Size()), r.Close())
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return &verifyingReader{Reader: r, id: id, manifest: m, buf: make([]byte, disk.ChunkSize), loaded: -1}, nil
}

func (v *verifyingReader) Close() error { return errors.Join(v.Reader.Close(), v.manifest.Close()) }

// chunkData returns the bytes of chunk n, or nil if all of them are zero. The result is
// valid until the next call. The error is disk.ErrDamaged if the bytes do not match.
func (v *verifyingReader) chunkData(n int64) ([]byte, error) {
	if zero, err := v.manifest.IsZero(n); zero || err != nil {
		return nil, err
	}
	if v.loaded == n {
		return v.chunk, nil
	}
	v.loaded = -1
	want, err := v.manifest.Hash(n)
	if err != nil {
		return nil, err
	}
	chunk := v.buf[:v.manifest.ChunkLength(n)]
	if _, err := v.ReadAt(chunk, n*disk.ChunkSize); err != nil {
		return nil, err
	}
	if disk.HashChunk(chunk) != want {
		return nil, fmt.Errorf("%s %w: chunk %d", v.id, disk.ErrDamaged, n)
	}
	v.loaded, v.chunk = n, chunk
	return chunk, nil
}

// Read reads to the end of a chunk at most.
func (v *verifyingReader) Read(p []byte) (int, error) {
	if v.offset >= v.Size() {
		return 0, io.EOF
	}
	n, from := v.offset/disk.ChunkSize, v.offset%disk.ChunkSize
	chunk, err := v.chunkData(n)
	if err != nil {
		v.readErr = err
		return 0, err
	}
	length := int(min(int64(len(p)), v.manifest.ChunkLength(n)-from))
	if chunk == nil {
		clear(p[:length])
	} else {
		copy(p[:length], chunk[from:])
	}
	v.offset += int64(length)
	return length, nil
}

// Seek implements io.Seeker. Like that of a file, it accepts offsets after the end.
func (v *verifyingReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += v.offset
	case io.SeekEnd:
		offset += v.Size()
	}
	if offset < 0 {
		return 0, errors.New("seek: negative offset")
	}
	v.offset = offset
	return offset, nil
}

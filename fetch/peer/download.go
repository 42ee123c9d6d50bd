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
	"github.com/seed-26586806/backing-image-manager/fetch/outfile"
)

// maxCompressions is how many downloads a node packs at once: each takes a core.
const maxCompressions = 2

// download answers those who are no peers, see the package comment.
func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	name, uuid := r.PathValue("name"), r.URL.Query().Get("uuid")
	packing, err := outfile.ParsePacking(r.URL.Query().Get("compress"))
	if uuid != "" {
		err = errors.Join(err, disk.CheckUUID(uuid))
	}
	if err := errors.Join(disk.CheckName(name), err); err != nil {
		writeError(w, http.StatusBadRequest, strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	on, c, no := s.findReadyCopy(r.Context(), name, uuid)
	if no != nil {
		writeError(w, no.status, no.message)
		return
	}
	ctx, end, ok := s.acquireSlot(w, r, c.ID())
	if !ok {
		return
	}
	defer end()
	image, err := openVerifyingReader(on, c.ID())
	if err != nil {
		writeError(w, http.StatusConflict, err.Error())
		return
	}
	defer image.Close()
	name = name + fileExtension(c.Format) + packing.Extension()
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
	p, done := newPacedWriter(ctx, w, s.pieceTimeout, image.Unchanged)
	defer done()
	if packing == outfile.Plain {
		err = sendFile(w, r, p, image, c)
	} else {
		err = s.sendCompressed(w, r, p, image, packing, c.SHA512)
	}
	if errors.Is(err, errDamaged) {
		s.node.ReportDamage(ctx, c.ID().Name)
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}

// fileExtension is how files of a format are called.
func fileExtension(f disk.Format) string {
	if f == disk.QCOW2 {
		return ".qcow2"
	}
	return ".raw"
}

// sendFile leaves it to net/http what of the image is asked for, and if it is.
func sendFile(w http.ResponseWriter, r *http.Request, p *pacedWriter, image *verifyingReader, c Copy) error {
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("ETag", `"`+c.SHA512.String()+`"`)
	if sum, err := hex.DecodeString(c.SHA512.String()); err == nil {
		h.Set("Repr-Digest", "sha-512=:"+base64.StdEncoding.EncodeToString(sum)+":")
	}
	http.ServeContent(pacedResponse{w, p}, r, "", time.Time{}, image)
	return image.readErr
}

// pacedResponse is an answer whose body goes out piece by piece.
type pacedResponse struct {
	http.ResponseWriter
	body *pacedWriter
}

func (a pacedResponse) Write(b []byte) (int, error) { return a.body.Write(b) }

func (a pacedResponse) ReadFrom(r io.Reader) (int64, error) { return a.body.ReadFrom(r) }

// sendCompressed sends the whole image packed. How long that will be nobody knows, and
// another time it may be other bytes: there are no ranges of it.
func (s *Server) sendCompressed(w http.ResponseWriter, r *http.Request, p *pacedWriter, image *verifyingReader, packing outfile.Packing, sum disk.Digest) error {
	w.Header().Set("Content-Type", "application/"+string(packing))
	if r.Method == http.MethodHead {
		return nil
	}
	select {
	case s.compressions <- struct{}{}:
		defer func() { <-s.compressions }()
	default:
		w.Header().Del("Content-Disposition")
		w.Header().Set("Retry-After", "1")
		writeError(w, http.StatusTooManyRequests, "packing limit")
		return nil
	}
	out := bufio.NewWriterSize(p, pieceSize)
	to := outfile.Stream(out, packing, image.Size())
	for n := range image.manifest.Chunks() {
		chunk, err := image.chunkData(n)
		if err == nil {
			err = to.Put(chunk)
		}
		if err != nil {
			return err
		}
	}
	if err := to.Commit(sum); err != nil {
		return err
	}
	return out.Flush()
}

// findReadyCopy returns a disk with a ready copy of what answers to a name: the declared
// generation, unless another one is named.
func (s *Server) findReadyCopy(ctx context.Context, name, uuid string) (*disk.Disk, Copy, *httpError) {
	state, err := s.node.Copies(ctx, name)
	if err != nil {
		return nil, Copy{}, &httpError{http.StatusServiceUnavailable, err.Error()}
	}
	if uuid == "" {
		uuid, _ = s.node.DeclaredUUID(name) // "": any generation, if there is only one
	}
	var why []string
	var found Copy
	var on *disk.Disk
	for _, d := range state.Disks {
		for _, c := range d.Copies {
			open, readable := s.node.Disk(d.Name)
			switch {
			case uuid != "" && c.UUID != uuid, !readable:
			case c.Leaving:
				why = append(why, fmt.Sprintf("%s is leaving disk %s", c.ID(), d.Name))
			case c.State != disk.Ready:
				why = append(why, fmt.Sprintf("%s on disk %s is %s", c.ID(), d.Name, c.State))
			case on == nil:
				on, found = open, c
			case c.UUID != found.UUID:
				return nil, Copy{}, &httpError{http.StatusConflict, name + " is not declared, and there are several generations: name one with ?uuid="}
			}
		}
	}
	switch {
	case on != nil:
		return on, found, nil
	case len(why) > 0:
		return nil, Copy{}, &httpError{http.StatusConflict, strings.Join(why, "; ")}
	case uuid != "":
		return nil, Copy{}, &httpError{http.StatusNotFound, fmt.Sprintf("%s is not on the disks of this node", disk.ID{Name: name, UUID: uuid})}
	}
	return nil, Copy{}, &httpError{http.StatusNotFound, fmt.Sprintf("no image %s is on the disks of this node", name)}
}

// httpError is why something is not sent.
type httpError struct {
	status  int
	message string
}

// errDamaged says that a copy is not what its manifest says.
var errDamaged = errors.New("the copy is damaged")

// verifyingReader reads an image for those who cannot check it themselves: it gives out no
// byte of a chunk that is not as the manifest says. It is an io.ReadSeeker.
type verifyingReader struct {
	*disk.Reader
	manifest *disk.Manifest
	offset   int64
	buf      []byte
	loaded   int64 // the chunk that is in chunk; -1: none
	chunk    []byte
	readErr  error // of a read, which net/http keeps to itself
}

func openVerifyingReader(d *disk.Disk, id disk.ID) (*verifyingReader, error) {
	m, err := d.Manifest(id)
	if err != nil {
		return nil, err
	}
	r, err := d.Open(id)
	if err == nil && r.Size() != m.Size() {
		err = errors.Join(fmt.Errorf("open %s: it has %d bytes, and its manifest is of %d", id, r.Size(), m.Size()), r.Close())
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return &verifyingReader{Reader: r, manifest: m, buf: make([]byte, disk.ChunkSize), loaded: -1}, nil
}

func (v *verifyingReader) Close() error { return errors.Join(v.Reader.Close(), v.manifest.Close()) }

// chunkData reads chunk n, of which nil is returned if it is zeros.
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
		return nil, fmt.Errorf("%w: chunk %d", errDamaged, n)
	}
	v.loaded, v.chunk = n, chunk
	return chunk, nil
}

// Read reads no further than to the end of a chunk.
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

// Seek is for what net/http needs.
func (v *verifyingReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += v.offset
	case io.SeekEnd:
		offset += v.Size()
	}
	if offset < 0 {
		return 0, errors.New("seek before the start")
	}
	v.offset = offset
	return offset, nil
}

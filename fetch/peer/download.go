package peer

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/fetch/outfile"
)

// maxCompressions is the maximum number of concurrent compressed downloads of a node: each needs a
// CPU.
const maxCompressions = 2

// download sends an image to a client that is not a peer (see the package comment).
func (s *Server) download(w http.ResponseWriter, r *http.Request) *httperror.Error {
	name, uuid := r.PathValue("name"), r.URL.Query().Get("uuid")
	packing, err := outfile.ParseCompression(r.URL.Query().Get("compress"))
	if uuid != "" {
		err = errors.Join(err, ident.CheckUUID(uuid))
	}
	if err := errors.Join(ident.CheckName(name), err); err != nil {
		return httperror.New(http.StatusBadRequest, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	on, c, refused := s.findReadyCopy(r.Context(), name, uuid)
	if refused != nil {
		return refused
	}
	ctx, free, refused := s.acquireSlot(r, on)
	if refused != nil {
		return refused
	}
	defer free()
	if packing != outfile.None && r.Method != http.MethodHead {
		select {
		case s.compressions <- struct{}{}:
			defer release(s.compressions)
		default:
			return httperror.New(http.StatusTooManyRequests, "compression limit reached: this node compresses at most %d downloads at once", maxCompressions)
		}
	}
	image, err := openVerifiedImage(on.disk, c.ID, on.disk.Open)
	if err != nil {
		return httperror.New(http.StatusConflict, "%v", err)
	}
	defer image.Close()
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name+fileExtension(c.Format)+packing.Extension()))
	p, done := newPacedWriter(ctx, w, s.pieceTimeout, s.unlessLeaving(on, image.file.Unchanged))
	defer done()
	if packing == outfile.None {
		err = sendFile(w, r, p, image, c)
	} else {
		err = sendCompressed(w, r, p, image, packing, c.SHA512)
	}
	if errors.Is(err, disk.ErrDamaged) {
		s.node.ReportDamage(ctx, c.ID.Name)
	}
	if err != nil {
		panic(http.ErrAbortHandler) // closes the connection, so that the client detects that the body is incomplete
	}
	return nil
}

func fileExtension(f model.Format) string {
	if f == model.QCOW2 {
		return ".qcow2"
	}
	return ".raw"
}

// sendFile sends the uncompressed image. net/http implements ranges and conditions. A request for
// several ranges gets the whole image, as RFC 9110 allows: each range would read and hash a whole
// chunk, and a request can name a thousand ranges.
func sendFile(w http.ResponseWriter, r *http.Request, p *pacedWriter, image *verifiedImage, c model.Copy) error {
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("ETag", `"`+c.SHA512.String()+`"`)
	if sum, err := hex.DecodeString(c.SHA512.String()); err == nil {
		h.Set("Repr-Digest", "sha-512=:"+base64.StdEncoding.EncodeToString(sum)+":") // RFC 9530
	}
	if strings.Contains(r.Header.Get("Range"), ",") {
		r = r.Clone(r.Context())
		r.Header.Del("Range")
	}
	http.ServeContent(pacedResponse{w, p}, r, "", time.Time{}, image)
	return image.readErr
}

// pacedResponse is a response that writes its body through a pacedWriter.
type pacedResponse struct {
	http.ResponseWriter
	body *pacedWriter
}

func (r pacedResponse) Write(b []byte) (int, error) { return r.body.Write(b) }

func (r pacedResponse) ReadFrom(src io.Reader) (int64, error) { return r.body.ReadFrom(src) }

// sendCompressed sends the whole image compressed. It sends no length, because the length is not
// known before the end. It does not support ranges, because another version of the compressor may
// produce different bytes.
func sendCompressed(w http.ResponseWriter, r *http.Request, p *pacedWriter, image *verifiedImage, packing outfile.Compression, digest ident.Digest) error {
	w.Header().Set("Content-Type", "application/"+string(packing))
	if r.Method == http.MethodHead {
		return nil
	}
	out := bufio.NewWriterSize(p, pieceSize)
	to := outfile.NewStreamWriter(out, packing, image.Size())
	for n := range image.manifest.Chunks() {
		chunk, err := image.verified.Chunk(n)
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

// findReadyCopy returns a ready copy of the image with this name, and its place. A uuid of "" selects the declared
// generation. If no generation is declared either, the node must have ready copies of exactly one generation.
func (s *Server) findReadyCopy(ctx context.Context, name, uuid string) (localCopy, model.Copy, *httperror.Error) {
	state, err := s.node.Copies(ctx, name, "")
	if err != nil {
		return localCopy{}, model.Copy{}, httperror.New(http.StatusServiceUnavailable, "%v", err)
	}
	if uuid == "" {
		uuid, _ = s.node.DeclaredUUID(name)
	}
	var rejected []string // why copies of the generation are not ready
	var found model.Copy
	var on localCopy
	for _, diskName := range slices.Sorted(maps.Keys(state.Disks)) {
		copies := state.Disks[diskName].Copies
		for _, id := range slices.SortedFunc(maps.Keys(copies), ident.ID.Compare) {
			c := copies[id]
			open, readable := s.node.Disk(diskName)
			switch {
			case uuid != "" && c.ID.UUID != uuid, !readable:
			case c.Leaving:
				rejected = append(rejected, fmt.Sprintf("%s is leaving disk %s", c.ID, diskName))
			case c.State != model.Ready:
				rejected = append(rejected, fmt.Sprintf("%s on disk %s is %s", c.ID, diskName, c.State))
			case on.disk == nil:
				on, found = localCopy{open, diskName, c.ID}, c
			case c.ID.UUID != found.ID.UUID:
				return localCopy{}, model.Copy{}, httperror.New(http.StatusConflict, "%s is not declared and has several generations on this node: select one with ?uuid=", name)
			}
		}
	}
	switch {
	case on.disk != nil:
		return on, found, nil
	case len(rejected) > 0:
		return localCopy{}, model.Copy{}, httperror.New(http.StatusConflict, "%s", strings.Join(rejected, "; "))
	case uuid != "":
		return localCopy{}, model.Copy{}, httperror.New(http.StatusNotFound, "%s is not on the disks of this node", ident.ID{Name: name, UUID: uuid})
	}
	return localCopy{}, model.Copy{}, httperror.New(http.StatusNotFound, "no image %s is on the disks of this node", name)
}

// verifiedImage reads an image for a client that cannot verify it: it returns no byte of a chunk that
// does not match the chunk manifest. It implements io.ReadSeeker.
type verifiedImage struct {
	*io.SectionReader
	file     *disk.Reader
	manifest *disk.Manifest
	verified *disk.VerifyingReader
	readErr  error // the last error of Read: http.ServeContent does not return it
}

// openVerifiedImage opens the image of a copy. The function open is d.Open or d.OpenUncached.
func openVerifiedImage(d *disk.Disk, id ident.ID, open func(ident.ID) (*disk.Reader, error)) (*verifiedImage, error) {
	m, err := d.Manifest(id)
	if err != nil {
		return nil, err
	}
	r, err := open(id)
	if err == nil && r.Size() != m.Size() {
		err = errors.Join(fmt.Errorf("open %s: the file has %d bytes, but its chunk manifest is for %d bytes", id, r.Size(), m.Size()), r.Close())
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	verified := disk.NewVerifyingReader(id, r, m, 1)
	return &verifiedImage{SectionReader: io.NewSectionReader(verified, 0, m.Size()), file: r, manifest: m, verified: verified}, nil
}

func (v *verifiedImage) Close() error { return errors.Join(v.file.Close(), v.manifest.Close()) }

func (v *verifiedImage) Read(p []byte) (int, error) {
	n, err := v.SectionReader.Read(p)
	if err != nil && err != io.EOF {
		v.readErr = err
	}
	return n, err
}

package export

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/qcow2"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// flat is a volume as one disk, open.
type flat interface {
	qcow2.Source
	io.Closer
	// Fingerprint changes when the bytes do; "": nothing tells whether they did.
	Fingerprint() string
	// Unchanged is an error that is disk.ErrChanging when the bytes were written to
	// since the disk was opened.
	Unchanged() error
}

// Fill puts the image into part, from where part ends if it holds the beginning of the
// same one. The caller commits it. Errors are of type *fetch.Error, or that of ctx, or
// the disk's that part is on.
func (s *Source) Fill(ctx context.Context, part *disk.Part, progress *fetch.Progress) error {
	volume, err := s.open()
	if err != nil {
		return s.failed(err)
	}
	return errors.Join(s.fill(ctx, volume, part, progress), volume.Close())
}

func (s *Source) fill(ctx context.Context, volume flat, part *disk.Part, progress *fetch.Progress) error {
	progress.Total.Store(volume.Size())
	origin := disk.PartSource{ID: s.request.hash(), ETag: volume.Fingerprint()}
	image, err := s.encode(&judged{flat: volume, ctx: ctx, s: s}, &origin)
	if err != nil {
		return err
	}
	if origin.ETag == "" || part.Source() != origin {
		if err := part.Begin(origin); err != nil {
			return fetch.ClassifyDiskError(err)
		}
	}
	if _, err := image.Seek(part.Offset(), io.SeekStart); err != nil {
		return err
	}
	progress.Total.Store(origin.Size)
	progress.Done.Store(part.Offset())
	if _, err := part.ReadFrom(fetch.CountReader(ctx, image, &progress.Done)); err != nil {
		return fetch.ClassifyDiskError(err)
	}
	if err := volume.Unchanged(); err != nil {
		return s.failed(err)
	}
	if part.Offset() != origin.Size {
		return s.failed(fmt.Errorf("%w: %d bytes came of %d", disk.ErrModified, part.Offset(), origin.Size))
	}
	return nil
}

// CanResume reports whether a part of this origin may be the beginning of the image.
func (s *Source) CanResume(o disk.PartSource) bool { return o.ID == s.request.hash() }

// encode returns the file of the image, and puts into o how large it is.
func (s *Source) encode(volume qcow2.Source, o *disk.PartSource) (io.ReadSeeker, error) {
	if s.request.Format != disk.QCOW2 {
		o.Size = volume.Size()
		var err error
		o.Data, err = data(volume)
		return io.NewSectionReader(volume, 0, o.Size), err
	}
	e, err := qcow2.Encode(volume, qcow2.Options{Compress: s.request.Compress})
	if err != nil {
		return nil, fetch.ClassifyDiskError(err)
	}
	o.Size = e.Size()
	return e, nil
}

// data is how much room the chunks take that have data in them: at least a byte, as 0
// would stand for not known.
func data(volume qcow2.Source) (int64, error) {
	const chunk = disk.ChunkSize
	sum, counted := int64(1), int64(0) // chunks before counted are
	for {
		start, end, err := volume.NextData(counted * chunk)
		if errors.Is(err, io.EOF) {
			return sum, nil
		}
		if err != nil {
			return 0, err
		}
		after := (end + chunk - 1) / chunk
		sum += (after - start/chunk) * chunk
		counted = after
	}
}

// hash stands for the request where it is remembered.
func (r Request) hash() string {
	text, err := json.Marshal(r)
	if err != nil {
		panic("export: " + err.Error()) // strings
	}
	sum := sha256.Sum256(text)
	return "export " + hex.EncodeToString(sum[:])
}

// failed gives its class to an error of the volume.
func (s *Source) failed(err error) error {
	var known *fetch.Error
	var format *disk.FormatError
	class := fetch.Refused
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, disk.ErrModified):
		class = fetch.Network // it may rest soon
	case errors.As(err, &format):
		class = fetch.BadSource
	}
	err = explain(err)
	if !strings.HasPrefix(err.Error(), s.name+":") { // a path that was opened names itself
		err = fmt.Errorf("%s: %w", s.name, err)
	}
	return &fetch.Error{Class: class, Err: err}
}

// judged is a volume whose errors have a class, so that they are not taken for those of
// the disk that is written to, and whose reading ends with ctx.
type judged struct {
	flat
	ctx context.Context
	s   *Source
}

func (j *judged) ReadAt(b []byte, offset int64) (int, error) {
	if err := j.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := j.flat.ReadAt(b, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		err = j.s.failed(err)
	}
	return n, err
}

func (j *judged) NextData(offset int64) (start, end int64, err error) {
	if err := j.ctx.Err(); err != nil {
		return 0, 0, err
	}
	start, end, err = j.flat.NextData(offset)
	if err != nil && !errors.Is(err, io.EOF) {
		err = j.s.failed(err)
	}
	return start, end, err
}

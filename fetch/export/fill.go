package export

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/disk/qcow2"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// flatDisk is an open volume as one flat disk.
type flatDisk interface {
	qcow2.Source
	io.Closer
	// Fingerprint changes when the bytes change. It is empty if changes cannot be detected.
	Fingerprint() string
	// Unchanged returns an error that wraps disk.ErrModified if the bytes changed since the disk was
	// opened.
	Unchanged() error
}

// Fill fills part with the image. It resumes at the end of part if its bytes are the beginning of the
// same image. The caller commits part. Errors are *fetch.Error, the error of ctx, or a failure of the
// disk of part.
func (s *Source) Fill(ctx context.Context, part *disk.Part, progress *fetch.Progress) error {
	volume, err := s.open()
	if err != nil {
		return s.classify(err)
	}
	return errors.Join(s.fill(ctx, volume, part, progress), volume.Close())
}

func (s *Source) fill(ctx context.Context, volume flatDisk, part *disk.Part, progress *fetch.Progress) error {
	progress.Total.Store(volume.Size())
	source := disk.PartSource{ID: s.request.id(), ETag: volume.Fingerprint()}
	image, err := s.encode(&classifyingVolume{flatDisk: volume, ctx: ctx, s: s}, &source)
	if err != nil {
		return err
	}
	if source.ETag == "" || part.Source() != source {
		if err := part.Begin(source); err != nil {
			return fetch.ClassifyDiskError(err)
		}
	}
	if _, err := image.Seek(part.Offset(), io.SeekStart); err != nil {
		return err
	}
	progress.Total.Store(source.Size)
	progress.Resume(part.Offset())
	if _, err := part.ReadFrom(fetch.CountReader(ctx, image, &progress.Done)); err != nil {
		return fetch.ClassifyDiskError(err)
	}
	if err := volume.Unchanged(); err != nil {
		return s.classify(err)
	}
	if part.Offset() != source.Size {
		return s.classify(fmt.Errorf("%w: got %d bytes of %d", disk.ErrModified, part.Offset(), source.Size))
	}
	return nil
}

// CanResume reports whether a partial file from this source may be the beginning of the
// image.
func (s *Source) CanResume(o disk.PartSource) bool { return o.ID == s.request.id() }

// encode returns a reader of the image. It sets o.Size, and o.Data for a raw image.
func (s *Source) encode(volume qcow2.Source, o *disk.PartSource) (io.ReadSeeker, error) {
	if s.request.Format != model.QCOW2 {
		o.Size = volume.Size()
		var err error
		o.Data, err = fetch.DataSize(volume.NextData)
		return io.NewSectionReader(volume, 0, o.Size), err
	}
	e, err := qcow2.Encode(volume, qcow2.Options{Compress: s.request.Compress})
	if err != nil {
		return nil, fetch.ClassifyDiskError(err)
	}
	o.Size = e.Size()
	return e, nil
}

// id identifies the request in a disk.PartSource.
func (r Request) id() string {
	text, err := json.Marshal(r)
	if err != nil {
		panic("export: " + err.Error()) // a struct of strings always encodes
	}
	sum := sha256.Sum256(text)
	return "export " + hex.EncodeToString(sum[:])
}

// classify classifies an error of the volume.
func (s *Source) classify(err error) error {
	var known *fetch.Error
	var format *disk.FormatError
	class := fetch.Refused
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, disk.ErrModified):
		class = fetch.Network // perhaps the volume does not change during a later attempt
	case errors.As(err, &format):
		class = fetch.BadSource
	}
	return &fetch.Error{Class: class, Err: fmt.Errorf("%s: %w", s.name, withHint(err))}
}

// classifyingVolume classifies the errors of a volume, so that they can be distinguished from errors
// of the disk of part. Reads fail after ctx ends.
type classifyingVolume struct {
	flatDisk
	ctx context.Context
	s   *Source
}

func (j *classifyingVolume) ReadAt(b []byte, offset int64) (int, error) {
	if err := j.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := j.flatDisk.ReadAt(b, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		err = j.s.classify(err)
	}
	return n, err
}

func (j *classifyingVolume) NextData(offset int64) (start, end int64, err error) {
	if err := j.ctx.Err(); err != nil {
		return 0, 0, err
	}
	start, end, err = j.flatDisk.NextData(offset)
	if err != nil && !errors.Is(err, io.EOF) {
		err = j.s.classify(err)
	}
	return start, end, err
}

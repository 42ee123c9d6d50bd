package upload

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// FillLocal puts the content into a part on a disk of this machine. A part that began with
// the same file is gone on with, whoever began it.
func FillLocal(ctx context.Context, part *disk.Part, o Request, progress *fetch.Progress) error {
	if !o.CanResume(part.Source()) {
		m := o.metadata()
		m.text = m.header()
		if err := part.Begin(disk.PartSource{ID: disk.PartFromUpload, ETag: rand.Text(), Metadata: m.text, Size: o.Content.length(), Data: m.Data}); err != nil {
			return fetch.ClassifyDiskError(err)
		}
	}
	progress.Done.Store(part.Offset())
	for ctx.Err() == nil {
		p, err := o.Content.piece(part.Offset())
		switch {
		case errors.Is(err, io.EOF):
			if err := errors.Join(o.Content.check(), checkLength(part.Offset())); err != nil {
				return &fetch.Error{Class: fetch.BadSource, Err: err}
			}
			return nil
		case err != nil:
			return err
		case p.zeros > 0:
			_, err = appendZeros(ctx, part, progress, p.zeros)
		default:
			_, err = part.ReadFrom(bytes.NewReader(p.data))
			progress.Done.Add(int64(len(p.data)))
		}
		if err != nil {
			return fetch.ClassifyDiskError(err)
		}
	}
	return context.Cause(ctx)
}

// CanResume reports whether a part of this origin is of the same content, whoever began it.
func (o Request) CanResume(had disk.PartSource) bool {
	m, err := parseMetadata(had.Metadata)
	same := err == nil && m.Fingerprint == o.fingerprint()
	return same && had.ID == disk.PartFromUpload && had.Size == o.Content.length() && !o.Restart
}

// fingerprint is that of the content: another digest makes it another upload.
func (o Request) fingerprint() string { return o.Content.fingerprint() + o.Digest.String() }

// metadata is what is said of an upload when it begins.
func (o Request) metadata() metadata {
	m := metadata{Name: o.Image, Digest: o.Digest, Fingerprint: o.fingerprint()}
	if f, ok := o.Content.(*File); ok {
		m.Data = f.dataBytes()
	}
	return m
}

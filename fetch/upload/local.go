package upload

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// FillLocal writes the content to part, on a local disk. It resumes a partial file of the same
// content.
func FillLocal(ctx context.Context, part *disk.Part, r Request, progress *fetch.Progress) error {
	if !r.CanResume(part.Source()) {
		m := r.metadata()
		m.text = m.header()
		if err := part.Begin(disk.PartSource{Kind: model.PartFromUpload, ETag: rand.Text(), Metadata: m.text, Size: r.Content.length(), Data: m.Data}); err != nil {
			return fetch.ClassifyDiskError(err)
		}
	}
	progress.Resume(part.Offset())
	for ctx.Err() == nil {
		p, err := r.Content.piece(part.Offset())
		switch {
		case errors.Is(err, io.EOF):
			if err := errors.Join(r.Content.check(), checkLength(part.Offset())); err != nil {
				return &fetch.Error{Class: fetch.BadSource, Err: err}
			}
			return nil
		case err != nil:
			return err
		}
		next := zeros(p.zeros)
		if p.zeros == 0 {
			next = bytes.NewReader(p.data)
		}
		if _, err := part.ReadFrom(fetch.CountReader(ctx, next, &progress.Done)); err != nil && ctx.Err() == nil {
			return fetch.ClassifyDiskError(err)
		}
	}
	return context.Cause(ctx)
}

// CanResume reports whether a partial file from this source is from the same content. The content may
// have been uploaded to a daemon or written locally.
func (r Request) CanResume(found disk.PartSource) bool {
	m, err := parseMetadata(found.Metadata)
	same := err == nil && m.Fingerprint == r.fingerprint()
	return same && found.Kind == model.PartFromUpload && found.Size == r.Content.length() && !r.Restart
}

// fingerprint identifies the upload: an upload of the same content with another digest is a different
// upload.
func (r Request) fingerprint() string { return r.Content.fingerprint() + r.Digest.String() }

// metadata returns the description of the upload.
func (r Request) metadata() metadata {
	m := metadata{Name: r.Image, Digest: r.Digest, Fingerprint: r.fingerprint()}
	if f, ok := r.Content.(*File); ok {
		m.Data = f.dataBytes()
	}
	return m
}

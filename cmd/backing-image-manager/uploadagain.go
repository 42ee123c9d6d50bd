package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
)

// ready returns the checksum of the image where a daemon says that it is ready, or the
// zero Digest.
func (u *uploading) ready(ctx context.Context) (disk.Digest, error) {
	s, err := u.status(ctx)
	if err != nil {
		return disk.Digest{}, err
	}
	for _, image := range s.Images {
		if image.Name != u.name || !image.Declared {
			continue
		}
		for _, c := range image.Copies {
			if c.State == disk.Ready {
				return c.SHA512, nil
			}
		}
	}
	return disk.Digest{}, nil
}

// over reports whether a refusal may only say that the image is ready otherwise.
func over(status int) bool {
	return status == http.StatusConflict || status == http.StatusNotFound || status == http.StatusGone
}

// isReady asks whether an image became ready although nobody heard it. It may also be
// another one that did meanwhile.
func (u *uploading) isReady(ctx context.Context, c upload.Content, lost error) error {
	ready, err := u.ready(ctx)
	if err != nil {
		return errors.Join(lost, err)
	}
	if ready.IsZero() {
		return lost
	}
	return u.isThere(ctx, c, ready, fmt.Errorf("%w; %s is ready with sha512 %s", lost, u.name, ready))
}

// isThere says that the file is the image that is ready already, with this checksum, or
// fails with the refusal. What comes by a pipe is not read for that.
func (u *uploading) isThere(ctx context.Context, c upload.Content, ready disk.Digest, refusal error) error {
	if ready.IsZero() {
		return refusal
	}
	if !u.readsAgain(c) {
		return fmt.Errorf("%w (what comes by a pipe is not compared with it)", refusal)
	}
	has, err := u.sum(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("read %s: %w", u.file, err)
	case has != ready:
		return fmt.Errorf("%w (it has %s, and %s has %s)", refusal, ready.Short(), u.file, has.Short())
	}
	_, err = fmt.Fprintf(u.out, "%s is there already, with the same bytes\n", u.name)
	return err
}

// readsAgain reports whether the content can be read once more from its file, from which
// it may have been unpacked.
func (u *uploading) readsAgain(c upload.Content) bool {
	if _, file := c.(*upload.File); file {
		return true
	}
	info, err := os.Stat(u.file)
	return u.file != "-" && err == nil && info.Mode().IsRegular()
}

// sum reads the file, and unpacks it if it is packed.
func (u *uploading) sum(ctx context.Context) (disk.Digest, error) {
	f, err := os.Open(u.file)
	if err != nil {
		return disk.Digest{}, err
	}
	defer f.Close()
	r, _, err := fetch.Unpacked(u.file, f)
	if err != nil {
		return disk.Digest{}, err
	}
	defer r.Close()
	h := disk.SHA512.New()
	if _, err := io.Copy(h, untilDone{ctx, r}); err != nil {
		return disk.Digest{}, err
	}
	return disk.SHA512.Sum(h), nil
}

// untilDone ends a long reading with its context.
type untilDone struct {
	ctx context.Context
	r   io.Reader
}

func (u untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}

package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/seed-26586806/backing-image-manager/disk"
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

// isThere says that the file is the image that is ready already, with this checksum, or
// fails with the refusal. What comes by a pipe is not read for that.
func (u *uploading) isThere(ctx context.Context, c upload.Content, ready disk.Digest, refusal error) error {
	if _, file := c.(*upload.File); !file || ready.IsZero() {
		return refusal
	}
	f, err := os.Open(u.file)
	if err != nil {
		return err
	}
	defer f.Close()
	h := disk.SHA512.New()
	if _, err := io.Copy(h, untilDone{ctx, f}); err != nil {
		return fmt.Errorf("read %s: %w", u.file, err)
	}
	if has := disk.SHA512.Sum(h); has != ready {
		return fmt.Errorf("%w (it has %s, and %s has %s)", refusal, ready.Short(), u.file, has.Short())
	}
	_, err = fmt.Fprintf(u.out, "%s is there already, with the same bytes\n", u.name)
	return err
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

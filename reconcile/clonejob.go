package reconcile

import (
	"context"
	"fmt"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/clone"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// clone makes the image from a ready copy of its source on this node. As long as the
// copy is read it cannot be removed.
func (j job) clone(ctx context.Context, id disk.ID) error {
	from, r, err := j.openFrom()
	if err != nil {
		return err
	}
	defer r.Close()
	c := j.image.Source.Clone
	var manifest *disk.Manifest
	if c.Encryption != schema.EncryptionIgnore {
		if manifest, err = j.source.Manifest(j.action.from.ID); err != nil {
			return err // the copy is verified, and has one then
		}
		defer manifest.Close()
	}
	request := clone.Request{
		Source: r, Manifest: manifest, Copy: from, Encryption: clone.Encryption(c.Encryption),
		SecretsDir: j.client.SecretsDir, Secret: c.Secret,
	}
	want := j.image.Checksum
	switch {
	case want.IsZero() && c.Encryption == schema.EncryptionIgnore:
		want = from.SHA512
	case want.IsZero():
		want = j.action.recall.digest
	case c.Encryption == schema.EncryptionIgnore && want.Algorithm() == disk.SHA512 && want != from.SHA512:
		return &disk.ChecksumError{Want: want, Got: from.SHA512} // no need to read it
	}
	return j.fill(ctx, id, want, request.CanResume, func(part *disk.Part) error {
		return clone.Fill(ctx, part, request, j.progress)
	})
}

// openFrom opens the copy that the action reads, and tells what it is. A look that fails
// for a moment knows no checksum, and without one any bytes would do.
func (j job) openFrom() (disk.Copy, *disk.Reader, error) {
	from := j.source.Stat(j.action.from.ID)
	if from.State != disk.Ready {
		return from, nil, fmt.Errorf("open %s: it is %s: %s", from.ID, from.State, from.Message)
	}
	r, err := j.source.Open(from.ID)
	return from, r, err
}

package reconcile

import (
	"cmp"
	"context"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// upload puts into a part what a client sends, for as long as that takes.
func (j job) upload(ctx context.Context, id disk.ID) error {
	session, err := j.uploads.Begin(ctx, id, j.disk.PartSource(id))
	if err != nil {
		return err
	}
	want := cmp.Or(j.image.Checksum, j.action.recall.digest, session.Digest)
	if given := session.Digest; !given.IsZero() && given.Algorithm() == want.Algorithm() && given != want {
		err = &disk.ChecksumError{Want: want, Got: given} // nobody has to send it to know that
	} else {
		err = j.fill(ctx, id, want, session.CanResume, func(part *disk.Part) error {
			return session.Fill(ctx, part, j.image.BandwidthLimit, j.progress)
		})
	}
	j.uploads.End(session, err, j.disk.PartSource(id).ETag == session.ID)
	return err
}

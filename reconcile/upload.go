package reconcile

import (
	"context"
	"errors"
	"net/http"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// Uploads returns what a server for clients that upload images answers with.
func (l *Loop) Uploads() *upload.Server {
	return upload.NewServer(l.reconciler.uploads, uploadHost{l})
}

// uploadHost starts the jobs for which an upload.Server has requests.
type uploadHost struct{ loop *Loop }

func (h uploadHost) Begin(ctx context.Context, image string, digest disk.Digest) error {
	return h.loop.upload(ctx, image, digest)
}

func (h uploadHost) Interrupted(id string) bool { return h.loop.interrupted(id) }

// upload asks for a job that takes the upload of a declared image, on the best of this
// node's disks. The sum, unless it is zero, is what the client says that the image has.
func (l *Loop) upload(ctx context.Context, image string, sum disk.Digest) error {
	v := l.View()
	if v == nil || !v.Loaded {
		return httperror.New(http.StatusServiceUnavailable, "the config directory is not read yet")
	}
	declared, ok := v.Desired.Config.Images[image]
	if !ok {
		return httperror.New(http.StatusNotFound, "no image %s is declared", image)
	}
	key, err := v.Desired.UploadTo(v.Observed, declared, sum)
	if no, ok := errors.AsType[*plan.UploadError](err); ok && no.Temporary {
		return httperror.New(http.StatusServiceUnavailable, "%s", no.Reason)
	} else if err != nil {
		return httperror.New(http.StatusConflict, "%v", err)
	}
	v, err = l.request(ctx, func() { l.uploads[key] = true })
	if err != nil {
		return err
	}
	planned := plan.Action{Image: image, Reason: "the configuration cannot be acted on"}
	for _, a := range v.Plan.Actions {
		if a.CopyRef() == key {
			planned = a
		}
	}
	if planned.Op == plan.Upload {
		return nil
	}
	if _, err := l.request(ctx, func() { delete(l.uploads, key) }); err != nil {
		return err
	}
	return uploadRejected(planned)
}

// uploadRejected refuses an upload where something else is to be done about the copy: for a
// while, if what is there already may turn out to be the image, or if there is a time to
// wait for; until a person does something, otherwise.
func uploadRejected(planned plan.Action) error {
	if settles := planned.Op == plan.Verify || planned.Op == plan.Adopt; settles || !planned.Until.IsZero() {
		return httperror.New(http.StatusServiceUnavailable, "%s cannot be uploaded yet: %s", planned.Image, planned.Reason)
	}
	return httperror.New(http.StatusConflict, "%s cannot be uploaded: %s", planned.Image, planned.Reason)
}

// interrupted reports whether a part of the upload is on a disk of this node and may be
// gone on with, which ends with a ready copy, wherever that is, or whether that cannot be
// told yet.
func (l *Loop) interrupted(id string) bool {
	v := l.View()
	if v == nil || !v.Loaded {
		return true
	}
	for ref, seen := range v.Observed.Disks {
		for image, c := range seen.Copies {
			if !v.Desired.Owns(ref) || c.PartSourceID != disk.PartFromUpload || c.State == disk.Ready {
				continue
			}
			if d, open := l.reconciler.readable(ref.Disk); open && d.PartSource(image).ETag == id {
				declared := v.Desired.Config.Images[image.Name]
				return plan.DeclaresUpload(declared, image) && len(v.Desired.ReadyCopies(v.Observed, declared)) == 0
			}
		}
	}
	return false
}

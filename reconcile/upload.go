package reconcile

import (
	"context"
	"errors"
	"net/http"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// Uploads returns the server for clients that upload images.
func (l *Loop) Uploads() *upload.Server {
	return upload.NewServer(l.reconciler.local.Uploads, uploadHost{l})
}

// uploadHost starts the jobs that an upload.Server needs. It implements upload.Host.
type uploadHost struct{ loop *Loop }

// Begin implements upload.Host.
func (h uploadHost) Begin(ctx context.Context, image string, digest ident.Digest) error {
	_, err := await(ctx, func(done func(struct{}, error)) {
		h.loop.RequestUpload(image, digest, func(_ ident.CopyRef, err error) { done(struct{}{}, err) })
	})
	return err
}

// Interrupted implements upload.Host. An upload is interrupted if a partial file of it is on a
// disk of this node, and the image is not ready on any disk. Interrupted is true before the first
// round, when nothing is known.
func (h uploadHost) Interrupted(id string) bool {
	v := h.loop.View()
	if v == nil || !v.Loaded {
		return true
	}
	for ref, seen := range v.Observed.Disks {
		for image, c := range seen.Copies {
			if !v.Desired.Owns(ref) || c.PartKind != model.PartFromUpload || c.State == model.Ready {
				continue
			}
			if d, open := h.loop.reconciler.served.Disk(ref.Disk); open && d.PartSource(image).ETag == id {
				declared := v.Desired.Config.Images[image.Name]
				return declared.ID == image && declared.Source.Upload != nil && len(plan.NewRound(v.Desired, v.Observed).ReadyCopies(declared)) == 0
			}
		}
	}
	return false
}

// RequestUpload requests a job that receives the upload of a declared image, on the best disk of
// this node. digest is the digest of the file, zero if the client does not know it. done is called
// with the copy when the job is planned, or with an *httperror.Error, at once or by the next Step.
func (l *Loop) RequestUpload(image string, digest ident.Digest, done func(ident.CopyRef, error)) {
	v := l.View()
	declared, err := declaredImage(v, image)
	if errors.Is(err, errNotLoaded) {
		done(ident.CopyRef{}, httperror.New(http.StatusServiceUnavailable, "%v", err))
		return
	} else if err != nil {
		done(ident.CopyRef{}, httperror.New(http.StatusNotFound, "no image %s is declared", image))
		return
	}
	key, err := plan.NewRound(v.Desired, v.Observed).UploadTo(declared, digest)
	if no, ok := errors.AsType[*plan.UploadError](err); ok && no.Temporary {
		done(ident.CopyRef{}, httperror.New(http.StatusServiceUnavailable, "%s", no.Text))
		return
	} else if err != nil {
		done(ident.CopyRef{}, httperror.New(http.StatusConflict, "%v", err))
		return
	}
	l.queue.add(request{
		note: func(r *requested) { r.uploads[key] = true },
		planned: func(v *status.View) {
			a, ok := plannedFor(v, key)
			if a.Op == model.Upload {
				done(key, nil)
				return
			}
			if !ok {
				a = plan.Action{Image: image, Reason: model.Reason{Code: plan.CodeObserveOnly, Text: "the manager is in observe-only mode"}}
			}
			// The state changed since the last round. The client receives the rejection only when
			// its request is withdrawn, so that no job starts after that.
			l.queue.add(request{
				note:    func(r *requested) { delete(r.uploads, key) },
				planned: func(*status.View) { done(ident.CopyRef{}, uploadRejected(a)) },
			})
		},
	})
}

// uploadRejected returns the error for an upload where another action is planned for the copy. The
// error is temporary if the existing file may turn out to be the image, or if the action waits until a
// known time or for another node for some seconds. After any other error, a person has to act first.
func uploadRejected(planned plan.Action) error {
	if checks := planned.Op == model.Verify || planned.Op == model.Adopt; checks || plan.IsBrief(planned.Code) || !planned.Until.IsZero() {
		return httperror.New(http.StatusServiceUnavailable, "%s cannot be uploaded yet: %s", planned.Image, planned.Text)
	}
	return httperror.New(http.StatusConflict, "%s cannot be uploaded: %s", planned.Image, planned.Text)
}

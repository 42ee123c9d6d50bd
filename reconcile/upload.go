package reconcile

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/schema"
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
	if no, ok := errors.AsType[*UploadError](err); ok && no.Temporary {
		return httperror.New(http.StatusServiceUnavailable, "%s", no.Reason)
	} else if err != nil {
		return httperror.New(http.StatusConflict, "%v", err)
	}
	v, err = l.ask(ctx, func() { l.uploads[key] = true })
	if err != nil {
		return err
	}
	planned := Action{Image: image, Reason: "the configuration cannot be acted on"}
	for _, a := range v.Plan.Actions {
		if a.Key() == key {
			planned = a
		}
	}
	if planned.Kind == Upload {
		return nil
	}
	if _, err := l.ask(ctx, func() { delete(l.uploads, key) }); err != nil {
		return err
	}
	return notTaken(planned)
}

// notTaken refuses an upload where something else is to be done about the copy: for a
// while, if what is there already may turn out to be the image, or if there is a time to
// wait for; until a person does something, otherwise.
func notTaken(planned Action) error {
	if settles := planned.Kind == Verify || planned.Kind == Adopt; settles || !planned.Until.IsZero() {
		return httperror.New(http.StatusServiceUnavailable, "%s cannot be uploaded yet: %s", planned.Image, planned.Reason)
	}
	return httperror.New(http.StatusConflict, "%s cannot be uploaded: %s", planned.Image, planned.Reason)
}

// UploadError says why a node does not accept an upload of an image.
type UploadError struct {
	Reason string
	// Temporary: the node may accept the upload later without a change of the configuration.
	Temporary bool
}

func (e *UploadError) Error() string { return e.Reason }

func noUpload(format string, args ...any) error {
	return &UploadError{Reason: fmt.Sprintf(format, args...)}
}

// UploadTo returns the copy that an upload of the image creates on this node. sum is the
// digest of the file, zero if the client does not know it. Its error is an *UploadError.
func (d Desired) UploadTo(o Observed, image schema.Image, sum disk.Digest) (Key, error) {
	return d.scene(o).look(image).uploadTo(sum)
}

// uploadTo is where this node takes an upload of the image, or why it does not.
func (v imageView) uploadTo(sum disk.Digest) (Key, error) {
	name, declared := v.image.ID.Name, v.image.Checksum
	by := v.suspension(v.image, v.o.Now)
	switch {
	case by != nil && !by.Until.IsZero():
		return Key{}, noUpload("%s cannot be uploaded before %s: it is %s", name, by.Until.Format(time.RFC3339), suspended(by))
	case by != nil:
		return Key{}, noUpload("%s cannot be uploaded: it is %s", name, suspended(by))
	case v.image.Source.Upload == nil:
		return Key{}, noUpload("%s is not for upload: its source is %s", name, v.image.Source.Kind())
	case len(v.ready) > 0:
		return Key{}, noUpload("%s is ready on %s: another file needs another checksum, uuid or name", name, v.ready[0].Disk)
	case !sum.IsZero() && !declared.IsZero() && sum.Algorithm() != declared.Algorithm():
		return Key{}, noUpload("the declared checksum of %s is a %s: give one of that, or none", name, declared.Algorithm())
	case !sum.IsZero() && !declared.IsZero() && sum != declared:
		return Key{}, noUpload("the declared checksum of %s is %s, and the file has %s", name, declared, sum)
	}
	for _, key := range v.all(name) {
		goesOn := v.mine(key.Disk) && slices.Contains(v.forUpload(), key.Disk) && v.copy(key).PartSourceID == UploadOrigin && v.refuses(key.Disk).why == ""
		if goesOn && key.ID == v.image.ID && !v.o.Running[key] {
			return Key{}, &UploadError{fmt.Sprintf("an upload of %s was interrupted, and goes on in a moment", name), true}
		}
	}
	for key, running := range v.o.Running {
		if running && key.ID == v.image.ID && !v.mine(key.Disk) {
			return Key{}, noUpload("%s is under way on %s: go on with it at %s", name, key.Disk, v.address(key.Disk.Node))
		}
	}
	why := []string{}
	for _, ref := range v.forUpload() {
		if !v.mine(ref) {
			continue
		}
		r := v.refuses(ref)
		if r.why == "" {
			return Key{ref, v.image.ID}, nil
		}
		why = append(why, fmt.Sprintf("%s: %s", ref, r.why))
	}
	return Key{}, noUpload("%s cannot be taken here (%s)%s", name, v.notHere(why), v.elsewhere())
}

// forUpload are the disks that an upload can go to, best first: the ranked ones, or, when
// there are none that can, the one that the image names.
func (v imageView) forUpload() []schema.DiskRef {
	var refs []schema.DiskRef
	for i := range v.places.ranked.len() {
		refs = append(refs, v.places.ranked.at(i))
	}
	if want := v.places.want; len(want) > 0 && !slices.Contains(refs, want[0]) {
		refs = append(refs, want[0])
	}
	return refs
}

// notHere says why no disk of this node takes an upload.
func (v imageView) notHere(why []string) string {
	if len(why) == 0 {
		return "no disk of node " + v.Node + " is for it"
	}
	return strings.Join(why, "; ")
}

// elsewhere names the nodes that take an upload which this one does not.
func (v imageView) elsewhere() string {
	var nodes []string
	for _, ref := range v.forUpload() {
		if v.mine(ref) || !v.answers(ref) || v.refuses(ref).why != "" {
			continue
		}
		node := v.address(ref.Node)
		if !slices.Contains(nodes, node) {
			nodes = append(nodes, node)
		}
	}
	if len(nodes) == 0 {
		return ""
	}
	return ": upload it at " + listed(nodes)
}

// address names a node and how it is asked.
func (v imageView) address(node string) string {
	if at := v.Config.Nodes[node].Address; at != "" {
		return node + " (--url " + at + ")"
	}
	return node
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
			if !v.Desired.mine(ref) || c.PartSourceID != UploadOrigin || c.State == disk.Ready {
				continue
			}
			if d, open := l.reconciler.readable(ref.Disk); open && d.PartSource(image).ETag == id {
				declared := v.Desired.Config.Images[image.Name]
				return declaredUpload(declared, image) && len(v.Desired.ReadyCopies(v.Observed, declared)) == 0
			}
		}
	}
	return false
}

// declaredUpload reports whether what was begun of an upload can be gone on with.
func declaredUpload(now schema.Image, id disk.ID) bool {
	return now.ID == id && now.Source.Upload != nil
}

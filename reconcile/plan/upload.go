package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// UploadTo returns the copy that an upload of the image creates on this node. digest is the
// digest of the file; zero: the client does not know it. Its error is an *UploadError.
func (r *Round) UploadTo(image schema.Image, digest ident.Digest) (ident.CopyRef, error) {
	d := r.Desired
	p := newImagePlanner(r, image)
	disks := uploadDisks(p.placement)
	if err := acceptsUpload(p.state, disks, digest); err != nil {
		return ident.CopyRef{}, err
	}
	var rejected []string
	for _, ref := range disks {
		if !d.Owns(ref) {
			continue
		}
		why := rejects(p.state, ref)
		if why.IsZero() {
			why.Reason, _ = delay(p.state, ref)
		}
		if why.IsZero() {
			return p.state.on(ref), nil
		}
		rejected = append(rejected, fmt.Sprintf("%s: %s", ref, why.Text))
	}
	if len(rejected) == 0 {
		rejected = []string{fmt.Sprintf("no disk of node %s is desired for it", d.Node)}
	}
	text := fmt.Sprintf("%s cannot be uploaded here (%s)", image.ID.Name, strings.Join(rejected, "; "))
	if nodes := otherUploadNodes(p.state, disks); len(nodes) > 0 {
		text += ": upload it to " + JoinMax(nodes, ", ", 5)
	}
	return ident.CopyRef{}, rejectUpload("%s", text)
}

// UploadError is the reason why a node does not accept an upload of an image.
type UploadError struct {
	Text string
	// Temporary: the node may accept the upload later without a change of the configuration.
	Temporary bool
}

// Error returns the text.
func (e *UploadError) Error() string { return e.Text }

func rejectUpload(format string, args ...any) error {
	return &UploadError{Text: fmt.Sprintf(format, args...)}
}

// uploadDisks returns the disks that may accept an upload, best first: the ranked disks, and the
// first target if it is not ranked.
func uploadDisks(pl placement) []ident.DiskRef {
	var refs []ident.DiskRef
	for i := range pl.ranked.len() {
		refs = append(refs, pl.ranked.at(i))
	}
	if len(pl.targets) > 0 && !slices.Contains(refs, pl.targets[0]) {
		refs = append(refs, pl.targets[0])
	}
	return refs
}

// acceptsUpload returns why no node, or only another node, accepts an upload with the digest.
func acceptsUpload(s *imageState, disks []ident.DiskRef, digest ident.Digest) error {
	name, declared, d, o := s.image.ID.Name, s.image.Checksum, s.ix.Desired, s.ix.Observed
	by := d.SuspensionOf(s.image, o.Now)
	switch {
	case by != nil && !by.Until.IsZero():
		return rejectUpload("%s cannot be uploaded before %s: it is %s", name, by.Until.Format(time.RFC3339), suspendedText(by))
	case by != nil:
		return rejectUpload("%s cannot be uploaded: it is %s", name, suspendedText(by))
	case s.image.Source.Upload == nil:
		return rejectUpload("%s cannot be uploaded: its source is %s", name, s.image.Source.Kind())
	case len(s.ready) == 0 && !s.lacksVerify().IsZero():
		return rejectUpload("%s cannot be uploaded: %s", name, s.lacksVerify().Text)
	case len(s.ready) > 0:
		return rejectUpload("%s is ready on %s: another file needs another checksum, uuid or name", name, s.ready[0].Disk)
	case !digest.IsZero() && s.digestDeclared() && digest.Algorithm() != declared.Algorithm():
		return rejectUpload("the declared checksum of %s is a %s: give a checksum of the same kind, or no checksum", name, declared.Algorithm())
	case !digest.IsZero() && s.digestDeclared() && digest != declared:
		return rejectUpload("the declared checksum of %s is %s, and the file has %s: upload another file, or declare another checksum", name, declared, digest)
	}
	// A partial upload without a job: the next round starts the job that receives the rest.
	for _, ref := range s.ix.copiesNamed(name) {
		resumes := d.Owns(ref.Disk) && slices.Contains(disks, ref.Disk) && s.ix.copyAt(ref).PartKind == model.PartFromUpload && rejects(s, ref.Disk).IsZero()
		if resumes && ref.ID == s.image.ID && !o.Running[ref] {
			return &UploadError{fmt.Sprintf("an upload of %s was interrupted and resumes in a moment", name), true}
		}
	}
	for ref, running := range o.Running {
		if running && ref.ID == s.image.ID && !d.Owns(ref.Disk) {
			return rejectUpload("an upload of %s is running on %s: resume it at %s", name, ref.Disk, nodeAddress(d.Config.Nodes, ref.Disk.Node))
		}
	}
	return nil
}

// otherUploadNodes returns the other nodes that accept an upload.
func otherUploadNodes(s *imageState, disks []ident.DiskRef) []string {
	var nodes []string
	for _, ref := range disks {
		if s.ix.Desired.Owns(ref) || !s.ix.isCurrent(ref) || !rejects(s, ref).IsZero() {
			continue
		}
		if reason, _ := delay(s, ref); !reason.IsZero() {
			continue
		}
		if node := nodeAddress(s.ix.Desired.Config.Nodes, ref.Node); !slices.Contains(nodes, node) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// nodeAddress returns the name of a node, followed by the --url option that reaches it if it has an
// address.
func nodeAddress(nodes map[string]schema.Node, node string) string {
	if address := nodes[node].Address; address != "" {
		return node + " (--url " + address + ")"
	}
	return node
}

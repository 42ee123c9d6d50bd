package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// UploadTo returns the copy that an upload of the image creates on this node. digest is that
// of the file, zero if the client does not know it. Its error is an *UploadError.
func (d Desired) UploadTo(o Observed, image schema.Image, digest disk.Digest) (CopyRef, error) {
	p := d.newIndex(o).newImagePlanner(image)
	if err := p.acceptsUpload(digest); err != nil {
		return CopyRef{}, err
	}
	var rejected []string
	for _, ref := range p.uploadDisks() {
		if !d.Owns(ref) {
			continue
		}
		r := p.rejects(ref)
		if r.IsZero() {
			return p.on(ref), nil
		}
		rejected = append(rejected, fmt.Sprintf("%s: %s", ref, r.Text))
	}
	if len(rejected) == 0 {
		rejected = []string{fmt.Sprintf("no disk of node %s is desired for it", d.Node)}
	}
	text := fmt.Sprintf("%s cannot be uploaded here (%s)", image.ID.Name, strings.Join(rejected, "; "))
	if nodes := p.otherUploadNodes(); len(nodes) > 0 {
		text += ": upload it to " + JoinMax(nodes, ", ", 5)
	}
	return CopyRef{}, rejectUpload("%s", text)
}

// UploadError says why a node does not accept an upload of an image.
type UploadError struct {
	Text string
	// Temporary: the node may accept the upload later without a change of the configuration.
	Temporary bool
}

func (e *UploadError) Error() string { return e.Text }

func rejectUpload(format string, args ...any) error {
	return &UploadError{Text: fmt.Sprintf(format, args...)}
}

// acceptsUpload returns why no node, or only another one, accepts an upload with the digest.
func (p imagePlanner) acceptsUpload(digest disk.Digest) error {
	name, declared, d, o := p.image.ID.Name, p.image.Checksum, p.ix.desired, p.ix.observed
	by := d.SuspensionOf(p.image, o.Now)
	switch {
	case by != nil && !by.Until.IsZero():
		return rejectUpload("%s cannot be uploaded before %s: it is %s", name, by.Until.Format(time.RFC3339), suspendedText(by))
	case by != nil:
		return rejectUpload("%s cannot be uploaded: it is %s", name, suspendedText(by))
	case p.image.Source.Upload == nil:
		return rejectUpload("%s cannot be uploaded: its source is %s", name, p.image.Source.Kind())
	case len(p.ready) > 0:
		return rejectUpload("%s is ready on %s: another file needs another checksum, uuid or name", name, p.ready[0].Disk)
	case !digest.IsZero() && p.digestDeclared() && digest.Algorithm() != declared.Algorithm():
		return rejectUpload("the declared checksum of %s is a %s: give a checksum of that kind, or none", name, declared.Algorithm())
	case !digest.IsZero() && p.digestDeclared() && digest != declared:
		return rejectUpload("the declared checksum of %s is %s, and the file has %s", name, declared, digest)
	}
	for _, ref := range p.ix.copiesNamed(name) {
		resumes := d.Owns(ref.Disk) && slices.Contains(p.uploadDisks(), ref.Disk) && p.ix.copyAt(ref).PartSourceID == disk.PartFromUpload && p.rejects(ref.Disk).IsZero()
		if resumes && ref.ID == p.image.ID && !o.Running[ref] {
			return &UploadError{fmt.Sprintf("an upload of %s was interrupted and resumes in a moment", name), true}
		}
	}
	for ref, running := range o.Running {
		if running && ref.ID == p.image.ID && !d.Owns(ref.Disk) {
			return rejectUpload("an upload of %s is running on %s: resume it at %s", name, ref.Disk, p.nodeAddress(ref.Disk.Node))
		}
	}
	return nil
}

// uploadDisks returns the disks that accept an upload, best first: the ranked disks, and if none
// of them can, the first disk that the image names.
func (p imagePlanner) uploadDisks() []schema.DiskRef {
	var refs []schema.DiskRef
	for i := range p.placement.ranked.len() {
		refs = append(refs, p.placement.ranked.at(i))
	}
	if targets := p.placement.targets; len(targets) > 0 && !slices.Contains(refs, targets[0]) {
		refs = append(refs, targets[0])
	}
	return refs
}

// otherUploadNodes returns the other nodes that accept an upload.
func (p imagePlanner) otherUploadNodes() []string {
	var nodes []string
	for _, ref := range p.uploadDisks() {
		if p.ix.desired.Owns(ref) || !p.ix.isCurrent(ref) || !p.rejects(ref).IsZero() {
			continue
		}
		if node := p.nodeAddress(ref.Node); !slices.Contains(nodes, node) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// nodeAddress returns a node with the option that addresses it.
func (p imagePlanner) nodeAddress(node string) string {
	if address := p.ix.desired.Config.Nodes[node].Address; address != "" {
		return node + " (--url " + address + ")"
	}
	return node
}

// DeclaresUpload reports whether a partial upload with the identity id is still declared.
func DeclaresUpload(image schema.Image, id disk.ID) bool {
	return image.ID == id && image.Source.Upload != nil
}

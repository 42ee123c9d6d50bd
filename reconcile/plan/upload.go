package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// uploadTo is where this node takes an upload of the image, or why it does not.
func (v imagePlanner) uploadTo(sum disk.Digest) (CopyRef, error) {
	name, declared := v.image.ID.Name, v.image.Checksum
	by := v.ix.desired.SuspensionOf(v.image, v.ix.observed.Now)
	switch {
	case by != nil && !by.Until.IsZero():
		return CopyRef{}, noUpload("%s cannot be uploaded before %s: it is %s", name, by.Until.Format(time.RFC3339), suspendedText(by))
	case by != nil:
		return CopyRef{}, noUpload("%s cannot be uploaded: it is %s", name, suspendedText(by))
	case v.image.Source.Upload == nil:
		return CopyRef{}, noUpload("%s is not for upload: its source is %s", name, v.image.Source.Kind())
	case len(v.ready) > 0:
		return CopyRef{}, noUpload("%s is ready on %s: another file needs another checksum, uuid or name", name, v.ready[0].Disk)
	case !sum.IsZero() && !declared.IsZero() && sum.Algorithm() != declared.Algorithm():
		return CopyRef{}, noUpload("the declared checksum of %s is a %s: give one of that, or none", name, declared.Algorithm())
	case !sum.IsZero() && !declared.IsZero() && sum != declared:
		return CopyRef{}, noUpload("the declared checksum of %s is %s, and the file has %s", name, declared, sum)
	}
	for _, key := range v.ix.copiesNamed(name) {
		goesOn := v.ix.desired.Owns(key.Disk) && slices.Contains(v.uploadDisks(), key.Disk) && v.ix.copyAt(key).PartSourceID == disk.PartFromUpload && v.rejects(key.Disk).Reason == ""
		if goesOn && key.ID == v.image.ID && !v.ix.observed.Running[key] {
			return CopyRef{}, &UploadError{fmt.Sprintf("an upload of %s was interrupted, and goes on in a moment", name), true}
		}
	}
	for key, running := range v.ix.observed.Running {
		if running && key.ID == v.image.ID && !v.ix.desired.Owns(key.Disk) {
			return CopyRef{}, noUpload("%s is under way on %s: go on with it at %s", name, key.Disk, v.address(key.Disk.Node))
		}
	}
	why := []string{}
	for _, ref := range v.uploadDisks() {
		if !v.ix.desired.Owns(ref) {
			continue
		}
		r := v.rejects(ref)
		if r.Reason == "" {
			return CopyRef{ref, v.image.ID}, nil
		}
		why = append(why, fmt.Sprintf("%s: %s", ref, r.Reason))
	}
	return CopyRef{}, noUpload("%s cannot be taken here (%s)%s", name, v.whyNotHere(why), v.elsewhere())
}

// uploadDisks are the disks that an upload can go to, best first: the ranked ones, or, when
// there are none that can, the one that the image names.
func (v imagePlanner) uploadDisks() []schema.DiskRef {
	var refs []schema.DiskRef
	for i := range v.Placement.ranked.Len() {
		refs = append(refs, v.Placement.ranked.At(i))
	}
	if want := v.Placement.Targets; len(want) > 0 && !slices.Contains(refs, want[0]) {
		refs = append(refs, want[0])
	}
	return refs
}

// whyNotHere says why no disk of this node takes an upload.
func (v imagePlanner) whyNotHere(why []string) string {
	if len(why) == 0 {
		return "no disk of node " + v.ix.desired.Node + " is for it"
	}
	return strings.Join(why, "; ")
}

// elsewhere names the nodes that take an upload which this one does not.
func (v imagePlanner) elsewhere() string {
	var nodes []string
	for _, ref := range v.uploadDisks() {
		if v.ix.desired.Owns(ref) || !v.ix.isCurrent(ref) || v.rejects(ref).Reason != "" {
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
	return ": upload it at " + joinWords(nodes)
}

// address names a node and how it is asked.
func (v imagePlanner) address(node string) string {
	if at := v.ix.desired.Config.Nodes[node].Address; at != "" {
		return node + " (--url " + at + ")"
	}
	return node
}

// DeclaresUpload reports whether what was begun of an upload can be gone on with.
func DeclaresUpload(now schema.Image, id disk.ID) bool {
	return now.ID == id && now.Source.Upload != nil
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
func (d Desired) UploadTo(o Observed, image schema.Image, sum disk.Digest) (CopyRef, error) {
	return d.NewIndex(o).NewImagePlanner(image).uploadTo(sum)
}

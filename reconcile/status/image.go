package status

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// ImageStatus is one generation of an image that is declared, planned, or on a disk.
type ImageStatus struct {
	Name     string `json:"name"`
	UUID     string `json:"uuid"`
	Declared bool   `json:"declared"`
	Title    string `json:"title,omitempty"` // for people; text from outside
	// Removed: it is confirmed that the image was removed from the configuration (C13).
	Removed bool   `json:"removed,omitempty"`
	Source  string `json:"source,omitempty"`
	// Declaration is a hash of the declared bytes and their source, without the placement. When it
	// changes, earlier failures do not count any more.
	Declaration string       `json:"declaration,omitempty"`
	Checksum    ident.Digest `json:"checksum"`          // as declared
	Desired     int          `json:"desired"`           // desired copies on all nodes together
	Ready       int          `json:"ready"`             // ready copies on all nodes that respond
	Message     string       `json:"message,omitempty"` // about the image as a whole
	Code        model.Code   `json:"code,omitempty"`    // of Message
	// Suspended is the suspension that applies to the image, from its declaration or the
	// settings; nil: there is none. It may be over.
	Suspended *plan.Suspension `json:"suspended,omitempty"`
	// CannotPrepare is why this node cannot create the first copy; "": it can, or need not.
	CannotPrepare string `json:"cannotPrepare,omitempty"`
	// BackedUp: the record of a copy on this node says that the declared backup is complete.
	BackedUp bool         `json:"backedUp,omitempty"`
	Copies   []CopyStatus `json:"copies"` // existing and desired copies, on any node
	// NamedWithout are the disks, NODE/DISK, that the declaration names and that have no ready copy.
	NamedWithout []string `json:"namedWithout,omitempty"`
	// PassedOver has the disks that take no copy, by reason, if fewer copies are ready than
	// are desired.
	PassedOver []PassedOver `json:"passedOver,omitempty"`
}

// ID returns the generation.
func (image ImageStatus) ID() ident.ID { return ident.ID{Name: image.Name, UUID: image.UUID} }

// AllReady reports whether as many copies are ready as are desired, and whether each disk that the
// declaration names has a ready copy.
func (image ImageStatus) AllReady() bool {
	return image.Desired > 0 && image.Missing() == 0
}

// Missing returns how many desired copies are not ready. A surplus copy does not replace a copy on a disk
// that the declaration names.
func (image ImageStatus) Missing() int {
	return max(image.Desired-image.Ready, len(image.NamedWithout))
}

// PassedOver is one reason why disks take no copy of an image.
type PassedOver struct {
	Reason string     `json:"reason"`
	Code   model.Code `json:"code"`
	Count  int        `json:"count"` // of disks
	// Disks are the names of these disks, NODE/DISK, sorted. Beyond maxPassedOver names, disks are
	// only counted.
	Disks []string `json:"disks,omitempty"`
}

// image returns the status of a generation that is in the document.
func (b *builder) image(id ident.ID) ImageStatus {
	s := ImageStatus{Name: id.Name, UUID: id.UUID, Copies: []CopyStatus{}, Removed: b.view.Desired.IsRemoved(id.Name)}
	places := b.disksByImage[id]
	if image, ok := b.view.Desired.Config.Images[id.Name]; ok && image.ID == id {
		now := b.placements[id]
		s.Declared, s.Title, s.Source, s.Checksum, s.Declaration = true, image.Title, string(image.Source.Kind()), image.Checksum, now.declaration
		s.Desired, s.Ready, s.PassedOver = now.Desired(), len(now.Ready), now.passedOver
		by := cmp.Or(b.view.Desired.SuspensionOf(image, b.view.Observed.Now), image.Suspend)
		s.Suspended = plan.NewSuspension(by, b.view.Observed.Now)
		for _, ref := range now.Targets {
			places[ref] = true
		}
		for _, ref := range now.NamedWithout {
			places[ref], s.NamedWithout = true, append(s.NamedWithout, ref.String())
		}
	}
	s.CannotPrepare, s.BackedUp = b.view.Observed.CannotPrepare[id], b.view.Observed.BackedUp[id]
	about := b.planned[ident.CopyRef{Disk: ident.DiskRef{Node: b.view.Desired.Node}, ID: id}]
	s.Message, s.Code = about.Text, about.Code
	for _, ref := range slices.SortedFunc(maps.Keys(places), ident.DiskRef.Compare) {
		s.Copies = append(s.Copies, b.copyStatus(ident.CopyRef{Disk: ref, ID: id}))
	}
	return s
}

// imagePlacement is the placement of a declared image. It has PassedOver only in groups: a map of all disks may have thousands of entries.
type imagePlacement struct {
	plan.Placement
	declaration string
	passedOver  []PassedOver
}

// PlacementCache has the placements of one view. They cost as much as planning, and many calls
// read one view. The zero value is empty. It may be used concurrently.
type PlacementCache struct {
	once    sync.Once
	byImage map[ident.ID]imagePlacement
}

// maxPassedOver is how many disks a status names at most in all PassedOver lists together. Without
// this limit, a thousand images on a thousand disks would make the document unreadable.
const maxPassedOver = 100_000

// declaration returns ImageStatus.Declaration of an image.
func declaration(image schema.Image) string {
	b, err := json.Marshal(plan.Basis(image))
	if err != nil {
		panic("status: encode a declaration: " + err.Error()) // impossible: the declaration was decoded from text
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// groupPassedOver groups disks by reason, the most frequent reason first. It names at most *names
// disks, and subtracts their number from *names.
func groupPassedOver(disks map[ident.DiskRef]model.Reason, names *int) []PassedOver {
	byReason := map[model.Reason][]string{}
	for ref, reason := range disks {
		byReason[reason] = append(byReason[reason], ref.String())
	}
	var groups []PassedOver
	for reason, disks := range byReason {
		groups = append(groups, PassedOver{Reason: reason.Text, Code: reason.Code, Count: len(disks), Disks: disks})
	}
	slices.SortFunc(groups, func(a, b PassedOver) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Reason, b.Reason))
	})
	for i, g := range groups {
		slices.Sort(g.Disks)
		groups[i].Disks = g.Disks[:min(len(g.Disks), *names)]
		*names -= len(groups[i].Disks)
	}
	return groups
}

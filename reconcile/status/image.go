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

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// ImageStatus is one generation of an image: declared, or one of which copies are
// left.
type ImageStatus struct {
	Name     string `json:"name"`
	UUID     string `json:"uuid"`
	Declared bool   `json:"declared"`
	// Removed: it is confirmed that no image of that name is declared any more.
	Removed bool   `json:"removed,omitempty"`
	Source  string `json:"source,omitempty"`
	// Declaration changes with the declared bytes and the way to them, and not with
	// where copies should be: what failed under another one means nothing.
	Declaration string      `json:"declaration,omitempty"`
	Expected    disk.Digest `json:"expectedChecksum"`
	Wanted      int         `json:"wanted"`            // copies declared; on all nodes together
	Ready       int         `json:"ready"`             // copies that are ready, on all nodes that answer
	Message     string      `json:"message,omitempty"` // about the image, whatever its copies are
	// Suspended is what suspends the image, its own suspension or that of everything. One
	// that is over suspends nothing.
	Suspended *plan.Suspension `json:"suspended,omitempty"`
	// Unable says why this node cannot make the first copy, where that is so.
	Unable string `json:"unable,omitempty"`
	// BackedUp: this node has seen a whole backup of its copy where one is declared.
	BackedUp bool         `json:"backedUp,omitempty"`
	Copies   []CopyStatus `json:"copies"` // those that are there or wanted, on any node
	// PassedOver says, of an image that has fewer copies than it should, which disks
	// get none, and why.
	PassedOver []PassedOver `json:"passedOver,omitempty"`
}

// PassedOver is a reason for which disks get no copy of an image.
type PassedOver struct {
	Why   string `json:"why"`
	Count int    `json:"count"` // of disks
	// Disks are their names, NODE/DISK, sorted. Where very many disks are passed over
	// for very many images, some are only counted.
	Disks []string `json:"disks,omitempty"`
}

func (t *builder) image(id disk.ID) ImageStatus {
	s := ImageStatus{Name: id.Name, UUID: id.UUID, Copies: []CopyStatus{}, Removed: t.Desired.IsRemoved(id.Name)}
	places := t.disksByImage[id]
	if image, ok := t.Desired.Config.Images[id.Name]; ok && image.ID == id {
		now := t.placements[id]
		s.Declared, s.Source, s.Expected, s.Declaration = true, string(image.Source.Kind()), image.Checksum, now.declaration
		s.Wanted, s.Ready, s.PassedOver = now.wanted, now.ready, now.passed
		by := cmp.Or(t.Desired.SuspensionOf(image, t.Observed.Now), image.Suspend)
		s.Suspended = plan.NewSuspension(by, t.Observed.Now)
		for _, ref := range now.want {
			places[ref] = true
		}
	}
	s.Unable, s.BackedUp = t.Observed.CannotPrepare[id], t.Observed.BackedUp[id]
	s.Message = t.plan[plan.CopyRef{Disk: schema.DiskRef{Node: t.Desired.Node}, ID: id}].Reason
	for _, ref := range slices.SortedFunc(maps.Keys(places), plan.CompareDisks) {
		s.Copies = append(s.Copies, t.copyStatus(plan.CopyRef{Disk: ref, ID: id}))
	}
	return s
}

// imagePlacement is what a look at a declared image tells, whatever is under way.
type imagePlacement struct {
	declaration   string
	want          []schema.DiskRef
	wanted, ready int
	passed        []PassedOver
}

// PlacementCache has the looks at all declared images of one view. They cost as much as
// planning, and a view is asked about many times.
type PlacementCache struct {
	once sync.Once
	at   map[disk.ID]imagePlacement
}

// maxPassedOver is how many disks a status names at most as passed over.
const maxPassedOver = 100_000

func declaration(image schema.Image) string {
	b, err := json.Marshal(plan.WithoutPolicy(image))
	if err != nil {
		panic("encode a declaration: " + err.Error()) // it was decoded from text
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// passedBy groups the disks that were passed over by reason, those reasons first that
// most disks have. Where enough disks can take a copy only those are told of that should,
// but cannot. It names as many of them as names says, and takes them off.
func passedBy(disks map[schema.DiskRef]string, names *int) []PassedOver {
	by := map[string][]string{}
	for ref, why := range disks {
		by[why] = append(by[why], ref.String())
	}
	var groups []PassedOver
	for why, disks := range by {
		groups = append(groups, PassedOver{Why: why, Count: len(disks), Disks: disks})
	}
	slices.SortFunc(groups, func(a, b PassedOver) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Why, b.Why))
	})
	for i, g := range groups {
		slices.Sort(g.Disks)
		groups[i].Disks = g.Disks[:min(len(g.Disks), *names)]
		*names -= len(groups[i].Disks)
	}
	return groups
}

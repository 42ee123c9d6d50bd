package reconcile

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
	"github.com/seed-26586806/backing-image-manager/schema"
)

// imageLook is what a look at a declared image tells, whatever is under way.
type imageLook struct {
	declaration   string
	want          []schema.DiskRef
	wanted, ready int
	passed        []PassedOver
}

// overview has the looks at all declared images of one view. They cost as much as
// planning, and a view is asked about many times.
type overview struct {
	once sync.Once
	at   map[disk.ID]imageLook
}

func (v View) look() map[disk.ID]imageLook {
	l := v.overview
	if l == nil {
		l = &overview{}
	}
	l.once.Do(func() { l.at = v.lookAll() })
	return l.at
}

// passedMost is how many disks a status names at most as passed over.
const passedMost = 100_000

func (v View) lookAll() map[disk.ID]imageLook {
	names := passedMost
	placements := v.Desired.Placements(v.Observed)
	all := make(map[disk.ID]imageLook, len(placements))
	for _, name := range slices.Sorted(maps.Keys(v.Desired.Config.Images)) {
		image := v.Desired.Config.Images[name]
		p := placements[image.ID]
		all[image.ID] = imageLook{
			declaration: declaration(image), want: p.Targets, ready: len(p.Ready), wanted: p.Desired(),
			passed: passedBy(p.PassedOver, &names),
		}
	}
	return all
}

func declaration(image schema.Image) string {
	b, err := json.Marshal(bytesOf(image))
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

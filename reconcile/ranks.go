package reconcile

import (
	"slices"
	"sync"

	"github.com/seed-26586806/backing-image-manager/schema"
)

// ranks keep how the disks of one configuration are ranked, so that a round in which
// nothing changed need not rank them again. Any goroutine may ask.
type ranks struct {
	mu   sync.Mutex
	list diskList
	of   map[string]ranking // by name of the image
	room int                // for places
}

// mostKept is for how many places there is room: 48 MiB.
const mostKept = 2 << 20

func newRanks(nodes map[string]schema.Node, room int) *ranks {
	return &ranks{list: newDiskList(nodes), of: map[string]ranking{}, room: room}
}

// rank ranks the disks for an image of the configuration. places is memory that may be
// used where the ranking is not kept.
func (k *ranks) rank(image schema.Image, places []place) (r *ranking, kept bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if one, ok := k.of[image.ID.Name]; ok {
		return &one, true
	}
	if k.room == 0 {
		return k.list.rank(image, places), false
	}
	r = k.list.rank(image, nil)
	r.places = slices.Clip(r.places)
	if most := r.len() - 1; most >= 0 {
		if !image.AllDisks && image.Copies <= few {
			most = min(few-1, most) // more are not looked at, mostly
		}
		r.at(most)
	}
	r.shared = true
	k.room = max(0, k.room-r.len())
	k.of[image.ID.Name] = *r
	one := *r
	return &one, true
}

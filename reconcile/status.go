package reconcile

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Status is the cluster as one node sees it: declared, observed, and what lies
// between. It is a stable interface: fields are added, and none changes its meaning.
// It has all that the node's plan follows from, so that another one can be made from
// it later (Observed).
type Status struct {
	Node   string        `json:"node"`
	Time   time.Time     `json:"time"` // of the look
	Config ConfigStatus  `json:"config"`
	Peers  []PeerStatus  `json:"peers"` // those of the other nodes that are asked, sorted
	Disks  []DiskStatus  `json:"disks"` // declared ones, and those that were seen, sorted
	Images []ImageStatus `json:"images"`
	Plan   Plan          `json:"plan"` // of this node
}

// ConfigStatus tells how the config directory was understood.
type ConfigStatus struct {
	Digest string `json:"digest"` // "" while anything is broken
	// Revision is the commit of the git checkout that the directory is, "" for others.
	// What was changed in the checkout since is not looked for: Digest tells.
	Revision string `json:"revision,omitempty"`
	Allowed  string `json:"allowed"`
	Fault    string `json:"fault,omitempty"` // of the directory as a whole
	// Skew says on which other nodes the configuration differs, if it does on any.
	Skew string `json:"skew,omitempty"`
	// Suspended is the suspension of everything, if there is one.
	Suspended *Suspension `json:"suspended,omitempty"`
	Errors    []string    `json:"errors"`
	Warnings  []string    `json:"warnings"`
}

// Status shows the view together with what is under way.
func (v View) Status(under map[Key]Transfer) Status {
	s := Status{
		Node: v.Desired.Node, Time: v.Observed.Now, Plan: v.Plan,
		Peers: v.peers(), Disks: []DiskStatus{}, Images: []ImageStatus{},
	}
	s.Config = ConfigStatus{
		Digest: v.Config.Digest, Revision: v.Config.Revision, Allowed: v.Desired.May.String(), Fault: v.Fault, Skew: skewText(s.Peers),
		Errors: texts(v.Config.Errors), Warnings: texts(v.Config.WarningsAt(v.Observed.Now)),
		Suspended: tellSuspension(v.Desired.Config.Settings.Suspend, v.Observed.Now),
	}
	for _, ref := range slices.SortedFunc(maps.Keys(v.disks()), compareRefs) {
		s.Disks = append(s.Disks, v.diskStatus(ref))
	}
	t := v.telling(under)
	for _, id := range slices.SortedFunc(maps.Keys(t.at), compareIDs) {
		s.Images = append(s.Images, t.image(id))
	}
	return s
}

// Missing counts the copies that this node's disks should have and that are not
// ready, whatever they wait for. A disk that is wanting is none of them, nor is
// anything as long as too much of the configuration is not known.
func (d Desired) Missing(o Observed) int {
	if d.May == schema.ObserveOnly {
		return 0
	}
	missing, now := 0, d.scene(o)
	for _, image := range d.Config.Images {
		for _, ref := range now.look(image).places.want {
			if _, ready := o.Disks[ref].ready(image.ID); d.mine(ref) && !ready {
				missing++
			}
		}
	}
	return missing
}

func texts(problems []document.Problem) []string {
	out := []string{}
	for _, p := range problems {
		out = append(out, p.String())
	}
	return out
}

// telling is a view with what is needed to tell of one image after the other.
type telling struct {
	View
	seen  map[disk.ID]imageLook
	plan  map[Key]Action
	under map[Key]Transfer
	// at has the generations to tell of: those that are declared, lie on a disk, or
	// are in the plan, each with the disks that have something to do with it.
	at map[disk.ID]map[schema.DiskRef]bool
}

func (v View) telling(under map[Key]Transfer) *telling {
	t := &telling{
		View: v, seen: v.look(), under: under,
		plan: map[Key]Action{}, at: map[disk.ID]map[schema.DiskRef]bool{},
	}
	for _, image := range v.Desired.Config.Images {
		t.at[image.ID] = map[schema.DiskRef]bool{}
	}
	for _, a := range v.Plan.Actions {
		t.plan[a.Key()] = a
		t.note(Key{ID: a.Key().ID}) // broken declarations are only there
	}
	for ref, seen := range v.Observed.Disks {
		for id := range seen.Copies {
			t.note(Key{ref, id})
		}
	}
	for key := range v.Observed.Tries {
		t.note(key)
	}
	for key := range v.Observed.Running {
		t.note(key)
	}
	return t
}

func (t *telling) note(key Key) {
	if t.at[key.ID] == nil {
		t.at[key.ID] = map[schema.DiskRef]bool{}
	}
	if key.Disk != (schema.DiskRef{}) {
		t.at[key.ID][key.Disk] = true
	}
}

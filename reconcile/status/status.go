package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
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
	Plan   plan.Plan     `json:"plan"` // of this node
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
	Suspended *plan.Suspension `json:"suspended,omitempty"`
	Errors    []string         `json:"errors"`
	Warnings  []string         `json:"warnings"`
}

// DiskStatus is one disk of any node. Sizes are in bytes.
type DiskStatus struct {
	Node string `json:"node"`
	Disk string `json:"disk"`
	Path string `json:"path"`
	UUID string `json:"uuid"`
	// Seen: something is known of it. Of a disk that is only declared nothing is, and
	// what is here of it are zeros.
	Observed bool `json:"seen"`
	// Problem says why it cannot be used.
	Problem string `json:"problem,omitempty"`
	// ProblemSince is since when, for all that is known.
	ProblemSince time.Time `json:"problemSince,omitzero"`
	// UsageUnknown says why it cannot be told what is used on it; all its copies then
	// count as used.
	UsageUnknown string `json:"unclear,omitempty"`
	// Unreachable says that its node does not answer: what is here is what that said last.
	Unreachable string `json:"silent,omitempty"`
	// ClockStepped: the wall clock was set since the times beside its copies were
	// written, so that intervals that go by it begin anew.
	ClockStepped bool     `json:"clockStepped,omitempty"`
	Total        int64    `json:"total"`
	Free         int64    `json:"free"`
	Reserved     int64    `json:"reserved"`
	Unmanaged    []string `json:"foreign"` // not ours, left alone; only of this node's disks
}

func texts(problems []document.Problem) []string {
	out := []string{}
	for _, p := range problems {
		out = append(out, p.String())
	}
	return out
}

// builder is a view with what is needed to tell of one image after the other.
type builder struct {
	View
	placements map[disk.ID]imagePlacement
	plan       map[plan.CopyRef]plan.Action
	transfers  map[plan.CopyRef]job.Transfer
	// disksByImage has the generations to tell of: those that are declared, lie on a disk, or
	// are in the plan, each with the disks that have something to do with it.
	disksByImage map[disk.ID]map[schema.DiskRef]bool
}

func (t *builder) add(key plan.CopyRef) {
	if t.disksByImage[key.ID] == nil {
		t.disksByImage[key.ID] = map[schema.DiskRef]bool{}
	}
	if key.Disk != (schema.DiskRef{}) {
		t.disksByImage[key.ID][key.Disk] = true
	}
}

// View is what a loop saw and planned in its last round. It is not changed any
// more.
type View struct {
	Desired  plan.Desired
	Observed plan.Observed
	Plan     plan.Plan
	// Fault says what is wrong with the config directory as a whole, or that this node
	// is not in it; Config has the mistakes in its files.
	Fault  string
	Config schema.Result
	// Loaded says that some configuration was taken; before, there is only a Fault.
	Loaded bool
	Rounds int // since the start

	Placements *PlacementCache // for Status; nil: it looks each time anew
}

// Status shows the view together with what is under way.
func (v View) Status(under map[plan.CopyRef]job.Transfer) Status {
	s := Status{
		Node: v.Desired.Node, Time: v.Observed.Now, Plan: v.Plan,
		Peers: v.peers(), Disks: []DiskStatus{}, Images: []ImageStatus{},
	}
	s.Config = ConfigStatus{
		Digest: v.Config.Digest, Revision: v.Config.Revision, Allowed: v.Desired.Allowed.String(), Fault: v.Fault, Skew: skewText(s.Peers),
		Errors: texts(v.Config.Errors), Warnings: texts(v.Config.WarningsAt(v.Observed.Now)),
		Suspended: plan.NewSuspension(v.Desired.Config.Settings.Suspend, v.Observed.Now),
	}
	for _, ref := range slices.SortedFunc(maps.Keys(v.disks()), plan.CompareDisks) {
		s.Disks = append(s.Disks, v.diskStatus(ref))
	}
	t := v.newBuilder(under)
	for _, id := range slices.SortedFunc(maps.Keys(t.disksByImage), plan.CompareIDs) {
		s.Images = append(s.Images, t.image(id))
	}
	return s
}

func (v View) newBuilder(under map[plan.CopyRef]job.Transfer) *builder {
	t := &builder{
		View: v, placements: v.placements(), transfers: under,
		plan: map[plan.CopyRef]plan.Action{}, disksByImage: map[disk.ID]map[schema.DiskRef]bool{},
	}
	for _, image := range v.Desired.Config.Images {
		t.disksByImage[image.ID] = map[schema.DiskRef]bool{}
	}
	for _, a := range v.Plan.Actions {
		t.plan[a.CopyRef()] = a
		t.add(plan.CopyRef{ID: a.CopyRef().ID}) // broken declarations are only there
	}
	for ref, seen := range v.Observed.Disks {
		for id := range seen.Copies {
			t.add(plan.CopyRef{Disk: ref, ID: id})
		}
	}
	for key := range v.Observed.Failures {
		t.add(key)
	}
	for key := range v.Observed.Running {
		t.add(key)
	}
	return t
}

// disks are those that are declared or were seen.
func (v View) disks() map[schema.DiskRef]bool {
	refs := map[schema.DiskRef]bool{}
	for node, declared := range v.Desired.Config.Nodes {
		for name := range declared.Disks {
			refs[schema.DiskRef{Node: node, Disk: name}] = true
		}
	}
	for ref := range v.Observed.Disks {
		refs[ref] = true
	}
	return refs
}

func (v View) diskStatus(ref schema.DiskRef) DiskStatus {
	seen, known := v.Observed.Disks[ref]
	declared, _ := v.Desired.Disk(ref)
	var since time.Time
	if seen.ProblemFor > 0 {
		since = v.Observed.Now.Add(-seen.ProblemFor)
	}
	return DiskStatus{
		ProblemSince: since,
		Node:         ref.Node, Disk: ref.Disk, Path: cmp.Or(seen.Path, declared.Path), UUID: seen.UUID,
		Observed: known, Problem: seen.Problem, UsageUnknown: seen.UsageUnknown, Unreachable: v.unreachable(ref.Node).Text, ClockStepped: seen.ClockStepped,
		Total: seen.Space.Total, Free: seen.Space.Free, Reserved: declared.StorageReserved,
		Unmanaged: append([]string{}, seen.Unmanaged...),
	}
}

func (v View) placements() map[disk.ID]imagePlacement {
	l := v.Placements
	if l == nil {
		l = &PlacementCache{}
	}
	l.once.Do(func() { l.byImage = v.computePlacements() })
	return l.byImage
}

func (v View) computePlacements() map[disk.ID]imagePlacement {
	names := maxPassedOver
	placements := v.Desired.Placements(v.Observed)
	all := make(map[disk.ID]imagePlacement, len(placements))
	for _, name := range slices.Sorted(maps.Keys(v.Desired.Config.Images)) {
		image := v.Desired.Config.Images[name]
		p := placements[image.ID]
		all[image.ID] = imagePlacement{
			declaration: declaration(image), targets: p.Targets, ready: len(p.Ready), desired: p.Desired(),
			passedOver: groupPassedOver(p.PassedOver, &names),
		}
	}
	return all
}

func (v View) peers() []PeerStatus {
	peers := []PeerStatus{}
	for _, name := range slices.Sorted(maps.Keys(v.Observed.Peers)) {
		p := v.Observed.Peers[name]
		s := PeerStatus{
			Node: name, Address: v.Desired.Config.Nodes[name].Address, Queried: p.Queried, Responds: p.Responds(),
			LastResponse: p.LastResponse, Problem: p.Problem, Config: p.ConfigDigest, Skew: skewOf(v.Desired, p),
		}
		if p.Problem != "" {
			s.UnreachableSince = v.Observed.Now.Add(-p.UnreachableFor)
		}
		peers = append(peers, s)
	}
	return peers
}

// unreachable returns how long and why a node has not responded, zero if the observed state of
// its disks is current.
func (v View) unreachable(node string) plan.Reason {
	if node == v.Desired.Node {
		return plan.Reason{}
	}
	p, queried := v.Observed.Peers[node]
	switch {
	case p.Responds():
		return plan.Reason{}
	case !queried:
		return plan.Reason{Code: plan.CodePeerUnqueried, Text: fmt.Sprintf("node %s was not queried", node)}
	case !p.Queried:
		return plan.Reason{Code: plan.CodePeerUnqueried, Text: fmt.Sprintf("node %s has not responded yet", node)}
	}
	return plan.Reason{Code: plan.CodePeerUnreachable, Text: fmt.Sprintf("node %s has not responded for %v: %s", node, p.UnreachableFor.Round(time.Second), p.Problem)}
}

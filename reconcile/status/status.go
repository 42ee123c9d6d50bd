// Package status has the status document: the state of the cluster as one node sees it. A View is
// one round of a loop, and View.Status makes the document of it. Its JSON is a stable interface of
// commands, the HTTP API and saved files.
//
// The document has the whole input of the planner. Therefore saved documents can be planned again
// without the cluster: see SavedCluster.
//
// Reading order: status.go, image.go, copy.go and peer.go make the document; ready.go and select.go
// answer questions about it; change.go compares documents; decode.go and saved.go read saved documents.
package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// Status is the state of the cluster as one node sees it: what is declared, what is observed, and
// what the node plans. Its JSON is a stable interface: fields may be added, and no field changes
// its meaning.
type Status struct {
	Version int           `json:"version"` // model.Version
	Node    string        `json:"node"`
	Time    time.Time     `json:"time"` // of the observation
	Config  ConfigStatus  `json:"config"`
	Peers   []PeerStatus  `json:"peers"`  // the other declared nodes, sorted by name
	Disks   []DiskStatus  `json:"disks"`  // the declared and the observed disks, sorted by name
	Images  []ImageStatus `json:"images"` // sorted by name and uuid
	Plan    plan.Plan     `json:"plan"`   // of this node
	// Report and Notify are the outcomes of the messages for settings.report and settings.notify. They are null without the
	// setting, and in a reported document.
	Report *Delivery `json:"report,omitempty"`
	Notify *Delivery `json:"notify,omitempty"`
}

// Delivery is the outcome of the messages that a daemon sends to one server.
type Delivery struct {
	// Server is the scheme and host of the address, or the bucket.
	Server string `json:"server"`
	// LastSuccess is when the server last accepted a message. Zero: it has accepted none since the start of the process.
	LastSuccess time.Time `json:"lastSuccess,omitzero"`
	// Problem is why the server did not accept the last message; "": it accepted the message. ProblemSince is when the
	// first failed attempt ended.
	Problem      string    `json:"problem,omitempty"`
	ProblemSince time.Time `json:"problemSince,omitzero"`
}

// ConfigStatus is the configuration that the node applies, and what is wrong with it.
type ConfigStatus struct {
	Digest string `json:"digest"` // the config digest; "" while any part is invalid
	// Revision is the commit if the directory is a git checkout, "" otherwise. It does not show
	// uncommitted changes; Digest does.
	Revision string `json:"revision,omitempty"`
	Allowed  string `json:"allowed"`         // what the node may do: a schema.Allowed
	Fault    string `json:"fault,omitempty"` // why the directory cannot be used, or that it does not declare this node
	// LoadingSince is when the load of changed files began; zero: none runs. During a load, the rest
	// of the document is about the last valid configuration, and the plan has no deletions.
	LoadingSince time.Time `json:"loadingSince,omitzero"`
	// Skew says on which other nodes the configuration differs; "": on none.
	Skew string `json:"skew,omitempty"`
	// Suspended is the suspension in the settings, which applies to all images; nil without one.
	Suspended *plan.Suspension `json:"suspended,omitempty"`
	Errors    []string         `json:"errors"`
	Warnings  []string         `json:"warnings"`
}

// DiskStatus is one disk of any node. Its copies are with their images.
type DiskStatus struct {
	Node string `json:"node"`
	Name string `json:"name"`
	// Observed is false for a disk that is only declared. The fields that would be observed are
	// zero then.
	Observed bool `json:"observed"`
	// Unreachable is why the node of the disk does not respond; "": it responds. While it does not,
	// the other fields have its last response.
	Unreachable string `json:"unreachable,omitempty"`
	Reserved    int64  `json:"reserved"` // storageReserved, in bytes
	// Disk is the disk without its copies. ProblemSince is when the node of the status first observed the problem, also for a
	// disk of another node. Unmanaged has entries only for disks of this node.
	model.Disk
}

func texts(problems []document.Problem) []string {
	out := []string{}
	for _, p := range problems {
		out = append(out, p.String())
	}
	return out
}

// View is one round of a loop: its inputs, its observation and its plan. It does not change.
type View struct {
	Desired  plan.Desired
	Observed plan.Observed
	Plan     plan.Plan
	// Fault is why the config directory cannot be used, or that the configuration does not declare
	// this node; "": neither. Config has the errors in the files.
	Fault  string
	Config load.Result
	// Loaded is true if any configuration was applied. Otherwise there is only a Fault.
	Loaded bool
	// LoadingSince is when the load of a newer configuration began; zero: none runs.
	LoadingSince time.Time
	Rounds       int // since the start of the process

	Placements *PlacementCache // for Status; nil: each call computes the placements
}

// Status returns the document of the view together with the jobs that run now.
func (v *View) Status(transfers map[ident.CopyRef]job.Transfer) Status {
	s := Status{
		Version: model.Version, Node: v.Desired.Node, Time: v.Observed.Now, Plan: v.Plan,
		Peers: v.peers(), Disks: []DiskStatus{}, Images: []ImageStatus{},
	}
	s.Config = ConfigStatus{
		Digest: v.Config.Digest, Revision: v.Config.Revision, Allowed: v.Desired.Allowed.String(), Fault: v.Fault, LoadingSince: v.LoadingSince,
		Skew:   skewText(s.Peers),
		Errors: texts(v.Config.Errors), Warnings: texts(v.Config.WarningsAt(v.Observed.Now)),
		Suspended: plan.NewSuspension(v.Desired.Config.Settings.Suspend, v.Observed.Now),
	}
	for _, ref := range slices.SortedFunc(maps.Keys(v.disks()), ident.DiskRef.Compare) {
		s.Disks = append(s.Disks, v.diskStatus(ref))
	}
	b := v.newBuilder(transfers)
	for _, id := range slices.SortedFunc(maps.Keys(b.disksByImage), ident.ID.Compare) {
		s.Images = append(s.Images, b.image(id))
	}
	return s
}

// AddSends adds how many peers and clients read each copy of this node now. sends returns the number for a
// copy on a disk.
func (s *Status) AddSends(sends func(diskName string, id ident.ID) int) {
	for _, image := range s.Images {
		for i := range image.Copies {
			if c := &image.Copies[i]; c.Node == s.Node {
				c.Sends = sends(c.Disk, image.ID())
			}
		}
	}
}

// builder makes the ImageStatus of one generation after the other.
type builder struct {
	view       *View
	placements map[ident.ID]imagePlacement
	planned    map[ident.CopyRef]plan.Action
	transfers  map[ident.CopyRef]job.Transfer
	// disksByImage has an entry for each generation in the document. Its value has the disks with a
	// copy, a need, a failure or a job of the generation, and those that this node waits for.
	disksByImage map[ident.ID]map[ident.DiskRef]bool
}

func (v *View) newBuilder(transfers map[ident.CopyRef]job.Transfer) *builder {
	b := &builder{
		view: v, placements: v.placements(), transfers: transfers,
		planned: map[ident.CopyRef]plan.Action{}, disksByImage: map[ident.ID]map[ident.DiskRef]bool{},
	}
	for _, image := range v.Desired.Config.Images {
		b.disksByImage[image.ID] = map[ident.DiskRef]bool{}
	}
	for _, a := range v.Plan.Actions {
		b.planned[a.CopyRef()] = a
		b.add(ident.CopyRef{ID: a.CopyRef().ID}) // only the plan has an image with an invalid declaration
	}
	for ref, seen := range v.Observed.Disks {
		for id := range seen.Copies {
			b.add(ident.CopyRef{Disk: ref, ID: id})
		}
		for id := range seen.Needs {
			b.add(ident.CopyRef{Disk: ref, ID: id})
		}
	}
	for key := range v.Observed.Failures {
		b.add(key)
	}
	for key := range v.Observed.Running {
		b.add(key)
	}
	for key := range v.Observed.Awaited {
		b.add(key)
	}
	return b
}

// add adds the generation of key to the document. Unless the disk of key is zero, it adds that disk to those of the generation.
func (b *builder) add(key ident.CopyRef) {
	if b.disksByImage[key.ID] == nil {
		b.disksByImage[key.ID] = map[ident.DiskRef]bool{}
	}
	if key.Disk != (ident.DiskRef{}) {
		b.disksByImage[key.ID][key.Disk] = true
	}
}

// disks returns the disks that are declared or observed.
func (v *View) disks() map[ident.DiskRef]bool {
	refs := map[ident.DiskRef]bool{}
	for node, declared := range v.Desired.Config.Nodes {
		for name := range declared.Disks {
			refs[ident.DiskRef{Node: node, Disk: name}] = true
		}
	}
	for ref := range v.Observed.Disks {
		refs[ref] = true
	}
	return refs
}

// diskStatus returns the status of a disk, which is declared, observed or both.
func (v *View) diskStatus(ref ident.DiskRef) DiskStatus {
	seen, known := v.Observed.Disks[ref]
	declared, _ := v.Desired.Disk(ref)
	seen.Path, seen.Copies, seen.Needs = cmp.Or(seen.Path, declared.Path), nil, nil
	return DiskStatus{Node: ref.Node, Name: ref.Disk, Observed: known, Unreachable: v.unreachable(ref.Node).Text, Reserved: declared.StorageReserved, Disk: seen}
}

// placements returns the placements of the declared images. Concurrent calls compute them once.
func (v *View) placements() map[ident.ID]imagePlacement {
	cache := v.Placements
	if cache == nil {
		cache = &PlacementCache{}
	}
	cache.once.Do(func() { cache.byImage = v.computePlacements() })
	return cache.byImage
}

func (v *View) computePlacements() map[ident.ID]imagePlacement {
	names := maxPassedOver
	placements := plan.NewRound(v.Desired, v.Observed).Placements()
	all := make(map[ident.ID]imagePlacement, len(placements))
	for _, name := range slices.Sorted(maps.Keys(v.Desired.Config.Images)) {
		image := v.Desired.Config.Images[name]
		p := placements[image.ID]
		groups := groupPassedOver(p.PassedOver, &names)
		p.PassedOver = nil
		all[image.ID] = imagePlacement{p, declaration(image), groups}
	}
	return all
}

// peers returns the status of the other nodes.
func (v *View) peers() []PeerStatus {
	peers := []PeerStatus{}
	for _, name := range slices.Sorted(maps.Keys(v.Observed.Peers)) {
		p := v.Observed.Peers[name]
		peers = append(peers, PeerStatus{Node: name, Address: v.Desired.Config.Nodes[name].Address, Peer: p, Responds: p.Responds(), Skew: skewOf(v.Desired, p)})
	}
	return peers
}

// unreachable returns since when and why a node has not responded; zero: the observed state of its
// disks is current. The text has no duration, because that would change the status in each round.
func (v *View) unreachable(node string) model.Reason {
	if node == v.Desired.Node {
		return model.Reason{}
	}
	p, queried := v.Observed.Peers[node]
	switch {
	case p.Responds():
		return model.Reason{}
	case !queried:
		return model.Reason{Code: plan.CodePeerUnqueried, Text: fmt.Sprintf("node %s was not queried", node)}
	case !p.Queried:
		return model.Reason{Code: plan.CodePeerUnqueried, Text: fmt.Sprintf("node %s has not responded yet", node)}
	}
	since := v.Observed.Now.Add(-p.UnreachableFor(v.Observed.Now)).Round(time.Second).UTC()
	return model.Reason{Code: plan.CodePeerUnreachable, Text: fmt.Sprintf("node %s has not responded since %s: %s", node, since.Format(time.RFC3339), p.Problem)}
}

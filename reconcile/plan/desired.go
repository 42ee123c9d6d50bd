package plan

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Desired is the desired state as one node acts on it: the configuration, what the node may do,
// and what operators requested. It is a value; a round does not change it.
type Desired struct {
	// Node is the name of the node that plans for its own disks.
	Node string
	// OnlyDisks are the names of the node's disks that this process manages; nil: all disks.
	// The process treats the node's other disks like disks of another node.
	OnlyDisks map[string]bool
	// Config is the configuration. Config.Nodes has Node.
	Config schema.Config
	// Digest is the config digest. "" means that a part of the configuration is invalid.
	// Nodes with the same digest plan alike.
	Digest string
	// Revision is the commit of the configuration. "" means that it is not known.
	Revision string
	// Allowed is how much of a plan may be executed.
	Allowed schema.Allowed
	// Loading: Allowed is less than the configuration allows because a newer configuration is being loaded.
	Loading bool
	// Offline: Allowed is less than the configuration allows because no peer is queried.
	Offline bool
	// Invalid are the images with an invalid declaration, by name.
	Invalid map[string]schema.InvalidImage
	// Undecided are the documents that are skipped and may be meant to declare an image that
	// is not in Config. The copies of such an image are kept.
	Undecided schema.Undecided
	// Removed reports whether it is confirmed that the configuration has no image of that
	// name any more (C13); nil: nothing is confirmed. See [AlwaysConfirmed].
	Removed func(name string) bool
	// Verify are ready copies whose verification an operator requested.
	Verify map[ident.CopyRef]bool
	// Cleanup are surplus copies whose deletion an operator requested before the clean-up
	// interval has passed.
	Cleanup map[ident.CopyRef]bool
	// DespiteNeed has, for copies in Cleanup, the nodes whose claims of a use or a need do not count, because an operator said so (U8).
	DespiteNeed map[ident.CopyRef][]string
	// Uploads are copies on this node that a client has started to upload; nil: this process
	// accepts no uploads.
	Uploads map[ident.CopyRef]bool
	// Only is a saved plan to which the execution is restricted; nil: no restriction.
	Only *SavedPlan
}

// NewDesired returns the desired state of a node from a loaded configuration.
//
// Without declared nodes the node is alone, and paths are its disks, named disk1, disk2 and so
// on. With declared nodes, paths select among the declared disks of the node, by path or
// name, or all if there are no paths. After an error the result may be used to observe, but not to act.
func NewDesired(r schema.Loaded, node string, paths []string) (Desired, error) {
	d := Desired{Node: node, Config: r.Config, Digest: r.Digest, Revision: r.Revision, Allowed: r.Allowed,
		Undecided: r.Undecided, Invalid: map[string]schema.InvalidImage{}}
	for _, h := range r.Invalid {
		d.Invalid[h.Name] = h
	}
	d.Config.Nodes = maps.Clone(r.Config.Nodes)
	if len(d.Config.Nodes) == 0 {
		d.Config.Nodes = map[string]schema.Node{node: {AllowScheduling: true, Disks: disksAt(paths)}}
		if len(paths) == 0 {
			return d, fmt.Errorf("no disks: declare them under \"nodes\", or name them with --disk")
		}
		return d, nil
	}
	own, declared := d.Config.Nodes[node]
	if !declared {
		return d, fmt.Errorf("node %q is not declared: the configuration has %s; choose one with --node",
			node, strings.Join(slices.Sorted(maps.Keys(d.Config.Nodes)), ", "))
	}
	if len(paths) > 0 {
		var err error
		if d.OnlyDisks, err = selectDisks(own.Disks, paths); err != nil {
			return d, err
		}
	}
	return d, nil
}

func disksAt(paths []string) map[string]schema.Disk {
	disks := map[string]schema.Disk{}
	for i, path := range paths {
		disks[fmt.Sprintf("disk%d", i+1)] = schema.Disk{Path: absolute(path), AllowScheduling: true}
	}
	return disks
}

func selectDisks(declared map[string]schema.Disk, paths []string) (map[string]bool, error) {
	selected := map[string]bool{}
	for _, path := range paths {
		found := false
		for name, d := range declared {
			if d.Path == absolute(path) || name == path {
				selected[name], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("disk %s is not declared for this node: choose one of %s",
				path, strings.Join(slices.Sorted(maps.Keys(declared)), ", "))
		}
	}
	return selected, nil
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path // without a working directory, opening the disk fails with the reason
}

// Owns reports whether this process manages the disk.
func (d Desired) Owns(ref ident.DiskRef) bool {
	return ref.Node == d.Node && (d.OnlyDisks == nil || d.OnlyDisks[ref.Disk])
}

// Disk returns the declaration of a disk.
func (d Desired) Disk(ref ident.DiskRef) (schema.Disk, bool) {
	declared, ok := d.Config.Nodes[ref.Node].Disks[ref.Disk]
	return declared, ok
}

func (d Desired) evicting(ref ident.DiskRef) bool {
	node := d.Config.Nodes[ref.Node]
	return node.EvictionRequested || node.Disks[ref.Disk].EvictionRequested
}

// invalidReason returns why nothing is done for an image: its declaration is invalid, and no
// valid one came before.
func (d Desired) invalidReason(name string) model.Reason {
	if h, invalid := d.Invalid[name]; invalid && !h.Stale {
		return because(CodeInvalidImage, "its declaration is invalid: %s", h.Reason.String())
	}
	return model.Reason{}
}

// IsRemoved reports whether it is confirmed that the image is not declared any more.
func (d Desired) IsRemoved(name string) bool {
	_, declared := d.Config.Images[name]
	return !declared && d.invalidReason(name).IsZero() && d.Removed != nil && d.Removed(name)
}

// AlwaysConfirmed is [Desired.Removed] of a process that reads the configuration only once: an image
// that is not in Config has been removed.
func AlwaysConfirmed(string) bool { return true }

// deletionsOff returns the reason with an addition: why this process deletes nothing.
func (d Desired) deletionsOff(reason model.Reason) model.Reason {
	if d.Offline {
		return reason.With(CodeDeletionsOff, ", but nothing is deleted without querying the other nodes (--offline)")
	}
	if d.Loading {
		return reason.With(CodeConfigLoading, ", but nothing is deleted while a newer configuration is loaded")
	}
	return reason.With(CodeDeletionsOff, ", but nothing is deleted while the configuration is invalid")
}

// WhileLoading returns the desired state while a newer configuration is being loaded: it allows no
// deletions.
func (d Desired) WhileLoading() Desired {
	if d.Allowed == schema.Everything {
		d.Allowed, d.Loading = schema.NoDeletions, true
	}
	return d
}

// PublishedDigest returns the config digest that other nodes see. valid is false while any part of the
// configuration is invalid, and in observe-only mode, so that other nodes do not count on this node.
func (d Desired) PublishedDigest() (digest string, valid bool) {
	if d.Digest == "" || d.Allowed == schema.ObserveOnly {
		return "", false
	}
	return d.Digest, true
}

// differsFrom reports whether a peer has another configuration, or an invalid one. It is false while
// this node has no config digest to compare.
func (d Desired) differsFrom(p model.Peer) bool { return d.Digest != "" && p.ConfigDigest != d.Digest }

// ObserveOnly returns the desired state of a node that the configuration does not declare, or
// declares wrongly: it observes the disks of the last valid state, and does nothing else (X3).
func (d Desired) ObserveOnly(last Desired) Desired {
	d.Allowed, d.OnlyDisks = schema.ObserveOnly, last.OnlyDisks
	d.Config.Nodes = maps.Clone(d.Config.Nodes)
	delete(d.Config.Nodes, d.Node)
	if node, ok := last.Config.Nodes[d.Node]; ok {
		d.Config.Nodes[d.Node] = node
	}
	return d
}

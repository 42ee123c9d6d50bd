package plan

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema"
)

// Desired is what the configuration says, and how far it may be acted on.
type Desired struct {
	// Node is the node that plans for its own disks.
	Node string
	// OnlyDisks are the node's disks that are its to look after, by name; nil: all of
	// them. The others are as those of another node.
	OnlyDisks map[string]bool
	// Config has this node among its nodes.
	Config schema.Config
	// Digest is that of the configuration as it was declared, "" while anything of it
	// is broken. Nodes that have the same one plan alike.
	Digest string
	// Revision is the commit that the configuration is of, "" if that is not known.
	Revision string
	Allowed  schema.Allowed
	// Offline says that May is less than the configuration allows because nobody
	// else is asked.
	Offline bool
	// Invalid are images of which something is wrong, by name.
	Invalid map[string]schema.Held
	// Undecided are the documents that may be meant to declare an image that is not in
	// Config. The copies of such an image are kept.
	Undecided schema.Undecided
	// Removed reports whether it is confirmed that the configuration has no image of
	// that name any more; nil: an image that is not in Config has been removed.
	Removed func(name string) bool
	// Verify are ready copies that somebody asked to have read again.
	Verify map[CopyRef]bool
	// Cleanup are surplus copies that somebody asked to have removed before their
	// interval is over.
	Cleanup map[CopyRef]bool
	// Uploads are copies on this node that a client has begun to upload; nil: nobody
	// can, as in a run that does not stay.
	Uploads map[CopyRef]bool

	// Only is a plan of which nothing else is done; nil: whatever is planned is done.
	Only *SavedPlan

	RankCache *RankCache // of Config; nil: they are worked out anew each time
}

// whyNoDeletions says when nothing is deleted, for messages.
func (d Desired) whyNoDeletions() string {
	if d.Offline {
		return "without asking the other nodes (--offline)"
	}
	return "while the configuration has errors"
}

// Owns reports whether a disk is this process's to look after.
func (d Desired) Owns(ref schema.DiskRef) bool {
	return ref.Node == d.Node && (d.OnlyDisks == nil || d.OnlyDisks[ref.Disk])
}

// invalidReason says why an image that cannot be understood is left alone.
func (d Desired) invalidReason(name string) string {
	if h, held := d.Invalid[name]; held && !h.Stale {
		return "its declaration is broken: " + h.Why.String()
	}
	return ""
}

// IsRemoved reports whether it is sure that name is not declared any more.
func (d Desired) IsRemoved(name string) bool {
	_, declared := d.Config.Images[name]
	return !declared && d.invalidReason(name) == "" && (d.Removed == nil || d.Removed(name))
}

// NewDesired makes of a loaded configuration what is desired of one node. Where no
// nodes are declared the node is alone, and paths are its disks, called disk1,
// disk2 and so on. Where nodes are declared, paths pick among the disks of this
// one; no paths pick all. The error says what cannot be; the result may then be
// observed, but not acted on.
func NewDesired(r schema.Result, node string, paths []string) (Desired, error) {
	d := Desired{Node: node, Config: r.Config, Digest: r.Digest, Revision: r.Revision, Allowed: r.May,
		Undecided: r.Undecided(), Invalid: map[string]schema.Held{}}
	for _, h := range r.Held {
		d.Invalid[h.Name] = h
	}
	d.Config.Nodes = maps.Clone(r.Config.Nodes)
	if len(d.Config.Nodes) == 0 {
		d.Config.Nodes = map[string]schema.Node{node: {AllowScheduling: true, Disks: disksAt(paths)}}
		if len(paths) == 0 {
			return d, fmt.Errorf("no disks: declare them under \"nodes\", or name them with --disk")
		}
		d.RankCache = NewRankCache(d.Config.Nodes, MaxCachedRanks)
		return d, nil
	}
	d.RankCache = NewRankCache(d.Config.Nodes, MaxCachedRanks)
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
	picked := map[string]bool{}
	for _, path := range paths {
		found := false
		for name, d := range declared {
			if d.Path == absolute(path) || name == path {
				picked[name], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("disk %s is not declared for this node: it has %s",
				path, strings.Join(slices.Sorted(maps.Keys(declared)), ", "))
		}
	}
	return picked, nil
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path // the working directory is gone: opening the disk will say so
}

// PublishedDigest is the digest that others hear: none from a node that would not do its part.
func (d Desired) PublishedDigest() string {
	if d.Allowed == schema.ObserveOnly {
		return ""
	}
	return d.Digest
}

// ObserveOnly is what is desired of a node that the configuration does not know, or
// not rightly: to keep its disks as they were declared last, and look.
func (d Desired) ObserveOnly(last Desired) Desired {
	d.Allowed, d.OnlyDisks, d.RankCache = schema.ObserveOnly, last.OnlyDisks, nil
	d.Config.Nodes = maps.Clone(d.Config.Nodes)
	delete(d.Config.Nodes, d.Node)
	if node, ok := last.Config.Nodes[d.Node]; ok {
		d.Config.Nodes[d.Node] = node
	}
	return d
}

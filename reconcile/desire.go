package reconcile

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema"
)

// Desire makes of a loaded configuration what is desired of one node. Where no
// nodes are declared the node is alone, and paths are its disks, called disk1,
// disk2 and so on. Where nodes are declared, paths pick among the disks of this
// one; no paths pick all. The error says what cannot be; the result may then be
// observed, but not acted on.
func Desire(r schema.Result, node string, paths []string) (Desired, error) {
	d := Desired{Node: node, Config: r.Config, Digest: r.Digest, Revision: r.Revision, May: r.May, Held: map[string]schema.Held{}}
	for _, h := range r.Held {
		d.Held[h.Name] = h
	}
	for _, s := range r.Skipped {
		if s.Image != "" {
			if d.Unsure == nil {
				d.Unsure = map[string]schema.Skipped{}
			}
			d.Unsure[s.Image] = s
		}
	}
	d.Config.Nodes = maps.Clone(r.Config.Nodes)
	if len(d.Config.Nodes) == 0 {
		d.Config.Nodes = map[string]schema.Node{node: {AllowScheduling: true, Disks: disksAt(paths)}}
		if len(paths) == 0 {
			return d, fmt.Errorf("no disks: declare them under \"nodes\", or name them with --disk")
		}
		d.ranks = newRanks(d.Config.Nodes, mostKept)
		return d, nil
	}
	d.ranks = newRanks(d.Config.Nodes, mostKept)
	own, declared := d.Config.Nodes[node]
	if !declared {
		return d, fmt.Errorf("node %q is not declared: the configuration has %s; choose one with --node",
			node, strings.Join(slices.Sorted(maps.Keys(d.Config.Nodes)), ", "))
	}
	if len(paths) > 0 {
		var err error
		if d.Picked, err = pick(own.Disks, paths); err != nil {
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

func pick(declared map[string]schema.Disk, paths []string) (map[string]bool, error) {
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

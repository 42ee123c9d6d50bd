package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// warnings finds what is valid and surely not meant: selectors that no disk
// satisfies, more copies than disks, nodes that the others cannot ask, and checksums
// that cannot be known.
func (a *assembly) warnings(c Config) []document.Problem {
	found := append(a.ignored(c), a.ofManifests()...)
	if len(c.Nodes) == 0 {
		return found
	}
	found = append(found, a.mute(c)...)
	matching := map[string]int{} // by selectors: they repeat from image to image
	for _, name := range sortedKeys(c.Images) {
		m, t := c.Images[name], a.holds[key{imagesSection, name}]
		if a.stale(t) {
			continue // its place is not where it was
		}
		selectors := strings.Join(m.NodeSelector, ",") + "/" + strings.Join(m.DiskSelector, ",")
		n, counted := matching[selectors]
		if !counted {
			n = c.matching(m)
			matching[selectors] = n
		}
		if f, is := c.doubt(m, n); is {
			found = append(found, t.found(f))
		}
	}
	return found
}

// ofManifests finds what a manifest says that is taken for something else.
func (a *assembly) ofManifests() []document.Problem {
	var found []document.Problem
	add := func(t *thing) {
		for _, f := range t.verdict.translation.warnings {
			found = append(found, t.problem(f))
		}
	}
	for _, t := range a.holds {
		if t.form != nil && !a.stale(t) {
			add(t)
		}
	}
	for k, claims := range a.claims {
		for _, t := range claims {
			if len(t.allProblems()) == 0 && !slices.Contains(a.fresh[k], t) {
				add(t)
			}
		}
	}
	return found
}

// ignored finds checksums of what is encrypted.
func (a *assembly) ignored(c Config) []document.Problem {
	var found []document.Problem
	for _, name := range sortedKeys(c.Images) {
		t := a.holds[key{imagesSection, name}]
		if c.Images[name].ChecksumIgnored && !a.stale(t) {
			found = append(found, t.found(document.Problem{Path: document.Path{"checksum"}, Message: "is not used: each time that an image is encrypted it has other bytes",
				Hint: "remove it"}))
		}
	}
	return found
}

// mute finds nodes of several that have no address.
func (a *assembly) mute(c Config) []document.Problem {
	var found []document.Problem
	for _, name := range sortedKeys(c.Nodes) {
		t := a.holds[key{nodesSection, name}]
		if len(c.Nodes) == 1 || c.Nodes[name].Address != "" || a.stale(t) {
			continue
		}
		found = append(found, t.found(document.Problem{AtName: true, Message: "has no address, so the other nodes cannot ask it",
			Hint: "they copy nothing from it, and delete nothing that it may use"}))
	}
	return found
}

func (c Config) doubt(m Image, disks int) (document.Problem, bool) {
	if disks == 0 {
		return c.nowhere(m), true
	}
	if m.Copies > disks && !m.AllDisks {
		return document.Problem{Path: document.Path{"minNumberOfCopies"}, AtName: true,
			Message: fmt.Sprintf("asks for %d copies, and %d of the declared disks can hold one", m.Copies, disks)}, true
	}
	return document.Problem{}, false
}

// matching counts the disks that are ranked for an image.
func (c Config) matching(m Image) int {
	n := 0
	for _, node := range c.Nodes {
		if node.EvictionRequested || !has(node.Tags, m.NodeSelector) {
			continue
		}
		for _, d := range node.Disks {
			if !d.EvictionRequested && has(d.Tags, m.DiskSelector) {
				n++
			}
		}
	}
	return n
}

func has(tags, wanted []string) bool {
	return !slices.ContainsFunc(wanted, func(w string) bool { return !slices.Contains(tags, w) })
}

// nowhere says why no declared disk is ranked for an image.
func (c Config) nowhere(m Image) document.Problem {
	ofNodes, ofDisks := c.tags()
	if tag, is := notAmong(m.NodeSelector, ofNodes); is {
		f := unknownTag("node", tag, ofNodes)
		if _, is := c.Nodes[tag]; is {
			f.Hint = "it is the name of a node: give that the tag"
		} else if slices.Contains(ofDisks, tag) {
			f.Hint = "disks have it: write it in diskSelector"
		}
		return f
	}
	if tag, is := notAmong(m.DiskSelector, ofDisks); is {
		f := unknownTag("disk", tag, ofDisks)
		if slices.Contains(ofNodes, tag) {
			f.Hint = "nodes have it: write it in nodeSelector"
		}
		return f
	}
	if len(m.NodeSelector)+len(m.DiskSelector) == 0 {
		return document.Problem{AtName: true, Message: "no declared disk can hold a copy"}
	}
	f := document.Problem{Path: document.Path{"nodeSelector"}, AtName: true, Message: "no declared disk has all that the selectors ask for", Hint: "no copy is made"}
	if len(m.NodeSelector) == 0 {
		f.Path = document.Path{"diskSelector"}
	}
	if c.suits(m) {
		f.Message = "the declared disks that have what the selectors ask for are all evicted"
	}
	return f
}

func unknownTag(of, tag string, known []string) document.Problem {
	f := document.Problem{Path: document.Path{of + "Selector"}, AtName: true,
		Message: fmt.Sprintf("no declared %s has the tag %.60q, so no copy is made", of, tag)}
	if near, ok := document.Nearest(tag, known); ok {
		f.Hint = fmt.Sprintf("did you mean %.60q?", near)
	}
	return f
}

func notAmong(wanted, known []string) (string, bool) {
	for _, tag := range wanted {
		if !slices.Contains(known, tag) {
			return tag, true
		}
	}
	return "", false
}

// suits reports whether some disk has what the selectors of an image ask for, evicted or
// not.
func (c Config) suits(m Image) bool {
	for _, node := range c.Nodes {
		for _, d := range node.Disks {
			if has(node.Tags, m.NodeSelector) && has(d.Tags, m.DiskSelector) {
				return true
			}
		}
	}
	return false
}

// tags returns what selectors may name.
func (c Config) tags() (ofNodes, ofDisks []string) {
	for _, name := range sortedKeys(c.Nodes) {
		node := c.Nodes[name]
		ofNodes = append(ofNodes, node.Tags...)
		for _, disk := range sortedKeys(node.Disks) {
			ofDisks = append(ofDisks, node.Disks[disk].Tags...)
		}
	}
	return ofNodes, ofDisks
}

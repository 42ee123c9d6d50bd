package load

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// linter finds what is valid and certainly a mistake: selectors that no disk matches, more copies than
// disks, nodes that have no address, and checksums that are not used.
type linter struct {
	merged             *merger       // with the positions of the definitions
	config             schema.Config // the result of the merge
	nodeTags, diskTags []string      // of all nodes and disks, sorted
}

func newLinter(m *merger, c schema.Config) linter {
	l := linter{merged: m, config: c}
	for _, node := range c.Nodes {
		l.nodeTags = append(l.nodeTags, node.Tags...)
		for _, d := range node.Disks {
			l.diskTags = append(l.diskTags, d.Tags...)
		}
	}
	slices.Sort(l.nodeTags)
	slices.Sort(l.diskTags)
	l.nodeTags, l.diskTags = slices.Compact(l.nodeTags), slices.Compact(l.diskTags)
	return l
}

// warnings returns all warnings that do not depend on the time.
func (l linter) warnings() []document.Problem {
	c := l.config
	found := append(l.ignoredChecksums(), l.manifestWarnings()...)
	if len(c.Nodes) == 0 {
		return found
	}
	found = append(found, l.nodesWithoutAddress()...)
	matching := map[string]int{} // by selectors: many images have the same
	disks, compared := len(c.Nodes)+countDisks(c), 0
	for _, name := range sortedKeys(c.Images) {
		image, d := c.Images[name], l.merged.current[key{imagesSection, name}]
		if l.merged.stale(d) {
			continue // its position may be wrong
		}
		selectors := strings.Join(image.NodeSelector, ",") + "/" + strings.Join(image.DiskSelector, ",")
		n, counted := matching[selectors]
		if !counted {
			// A warning for each of very many selectors and disks is not worth the time.
			if compared += disks; compared > maxMatched {
				break
			}
			n = matchingDisks(c, image, false)
			matching[selectors] = n
		}
		if p, ok := l.placementWarning(image, n); ok {
			found = append(found, d.placeNative(p))
		}
	}
	return found
}

// maxMatched limits how many disks are compared with selectors to find warnings: about half a second.
const maxMatched = 10_000_000

// manifestWarnings returns the warnings of the conversions of manifests.
func (l linter) manifestWarnings() []document.Problem {
	var found []document.Problem
	add := func(d *definition) {
		for _, p := range d.checked.conversion.Warnings {
			found = append(found, d.place(p))
		}
	}
	for _, d := range l.merged.current {
		if d.kind != nil && !l.merged.stale(d) {
			add(d)
		}
	}
	for k, refs := range l.merged.references {
		for _, d := range refs {
			if len(d.allProblems()) == 0 && !slices.Contains(l.merged.declared[k], d) {
				add(d)
			}
		}
	}
	return found
}

// ignoredChecksums finds checksums of images that this program encrypts.
func (l linter) ignoredChecksums() []document.Problem {
	var found []document.Problem
	for _, name := range sortedKeys(l.config.Images) {
		d := l.merged.current[key{imagesSection, name}]
		if l.config.Images[name].ChecksumIgnored && !l.merged.stale(d) {
			found = append(found, d.placeNative(document.Problem{Path: document.Path{"checksum"},
				Message: "is not used: the bytes differ each time an image is encrypted", Hint: "remove it"}))
		}
	}
	return found
}

// nodesWithoutAddress finds nodes without an address, if there are several nodes.
func (l linter) nodesWithoutAddress() []document.Problem {
	var found []document.Problem
	for _, name := range sortedKeys(l.config.Nodes) {
		d := l.merged.current[key{nodesSection, name}]
		if len(l.config.Nodes) == 1 || l.config.Nodes[name].Address != "" || l.merged.stale(d) {
			continue
		}
		found = append(found, d.placeNative(document.Problem{AtName: true, Message: "has no address, so the other nodes cannot query it",
			Hint: "they copy nothing from it, and delete nothing that it may use"}))
	}
	return found
}

// placementWarning returns a warning if fewer disks match than the image has copies.
func (l linter) placementWarning(image schema.Image, disks int) (document.Problem, bool) {
	if disks == 0 {
		return l.noDisk(image), true
	}
	if image.Copies > disks && !image.AllDisks {
		return document.Problem{Path: document.Path{"minNumberOfCopies"}, AtName: true,
			Message: fmt.Sprintf("is %d, but only %d of the declared disks can have a copy", image.Copies, disks)}, true
	}
	return document.Problem{}, false
}

func hasAll(tags, selector []string) bool {
	return !slices.ContainsFunc(selector, func(tag string) bool { return !slices.Contains(tags, tag) })
}

// noDisk explains why an image has no ranked disk.
func (l linter) noDisk(image schema.Image) document.Problem {
	if tag, ok := unknownTag(image.NodeSelector, l.nodeTags); ok {
		p := l.unknownTagProblem("node", tag, l.nodeTags)
		if _, ok := l.config.Nodes[tag]; ok {
			p.Hint = "it is the name of a node: add it to the tags of that node"
		} else if has(l.diskTags, tag) {
			p.Hint = "it is a tag of disks: move it to diskSelector"
		}
		return p
	}
	if tag, ok := unknownTag(image.DiskSelector, l.diskTags); ok {
		p := l.unknownTagProblem("disk", tag, l.diskTags)
		if has(l.nodeTags, tag) {
			p.Hint = "it is a tag of nodes: move it to nodeSelector"
		}
		return p
	}
	if len(image.NodeSelector)+len(image.DiskSelector) == 0 {
		return document.Problem{AtName: true, Message: "no declared disk can have a copy"}
	}
	p := document.Problem{Path: document.Path{"nodeSelector"}, AtName: true, Message: "no declared disk matches all selectors", Hint: "no copy will be made"}
	if len(image.NodeSelector) == 0 {
		p.Path = document.Path{"diskSelector"}
	}
	if matchingDisks(l.config, image, true) > 0 {
		p.Message = "all declared disks that match the selectors are being evicted"
	}
	return p
}

func (l linter) unknownTagProblem(of, tag string, known []string) document.Problem {
	p := document.Problem{Path: document.Path{of + "Selector"}, AtName: true,
		Message: fmt.Sprintf("no declared %s has the tag %.60q, so no copy is made", of, tag)}
	if near, ok := l.merged.suggestions.Nearest(tag, known); ok {
		p.Hint = fmt.Sprintf("did you mean %.60q?", near)
	}
	return p
}

func unknownTag(selector, known []string) (string, bool) {
	for _, tag := range selector {
		if !has(known, tag) {
			return tag, true
		}
	}
	return "", false
}

// has reports whether a sorted list has a tag.
func has(known []string, tag string) bool {
	_, found := slices.BinarySearch(known, tag)
	return found
}

package load

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// linter finds what is valid but certainly a mistake, for example selectors that no disk matches, more copies than
// disks, nodes that have no address, and checksums that are not used.
type linter struct {
	merged             *merger       // with the positions of the definitions
	config             schema.Config // the result of the merge
	nodeTags, diskTags []string      // of all nodes and disks, sorted
	found              []document.Problem
}

// warnings returns all warnings about a configuration that do not depend on the time.
func (m *merger) warnings(c schema.Config) []document.Problem {
	l := linter{merged: m, config: c}
	l.warnOfManifests()
	for _, d := range m.all(imagesSection) {
		if c.Images[d.name].ChecksumIgnored {
			l.warn(d, document.Problem{Path: document.Path{"checksum"},
				Message: "is not used: the bytes differ each time an image is encrypted", Hint: "remove it"})
		}
	}
	for _, d := range m.all(nodesSection) {
		if len(c.Nodes) > 1 && c.Nodes[d.name].Address == "" {
			l.warn(d, document.Problem{AtName: true, Message: "has no address, so the other nodes cannot query it",
				Hint: "set it: without it they copy nothing from this node, and delete nothing that it may use"})
		}
	}
	if len(c.Nodes) > 0 {
		l.warnOfPlacement()
	}
	return l.found
}

// warn adds a warning about a present definition. It ignores a last valid definition, whose position may be wrong.
func (l *linter) warn(d *definition, p document.Problem) {
	if !l.merged.stale(d) {
		l.found = append(l.found, d.placeNative(p))
	}
}

// warnOfManifests adds the warnings of the conversions of manifests.
func (l *linter) warnOfManifests() {
	add := func(d *definition) {
		for _, p := range d.checked.conversion.Warnings {
			l.found = append(l.found, d.place(p))
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
}

// maxMatched limits how many disks are compared with selectors to find warnings: about half a second.
const maxMatched = 10_000_000

// warnOfPlacement warns of images with more copies than disks that match.
func (l *linter) warnOfPlacement() {
	c := l.config
	for _, node := range c.Nodes {
		l.nodeTags = append(l.nodeTags, node.Tags...)
		for _, d := range node.Disks {
			l.diskTags = append(l.diskTags, d.Tags...)
		}
	}
	slices.Sort(l.nodeTags)
	slices.Sort(l.diskTags)
	l.nodeTags, l.diskTags = slices.Compact(l.nodeTags), slices.Compact(l.diskTags)
	matching := map[string]int{} // by selectors: many images have the same selectors
	disks, compared := len(c.Nodes)+countDisks(c), 0
	for _, d := range l.merged.all(imagesSection) {
		image := c.Images[d.name]
		if l.merged.stale(d) {
			continue
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
		if n == 0 {
			l.warn(d, l.noDisk(image))
		} else if image.Copies > n && !image.AllDisks {
			l.warn(d, document.Problem{Path: document.Path{"minNumberOfCopies"}, AtName: true,
				Message: fmt.Sprintf("is %d, but only %d of the declared disks can have a copy", image.Copies, n)})
		}
	}
}

func hasAll(tags, selector []string) bool {
	return !slices.ContainsFunc(selector, func(tag string) bool { return !slices.Contains(tags, tag) })
}

// noDisk explains why an image has no ranked disk.
func (l *linter) noDisk(image schema.Image) document.Problem {
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

func (l *linter) unknownTagProblem(of, tag string, known []string) document.Problem {
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

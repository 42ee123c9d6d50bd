package load

import (
	"fmt"
	"slices"

	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// checkAddresses finds nodes with the same address. The state of the manager at
// this address would count twice.
func (m *merger) checkAddresses() {
	first := map[string]*definition{}
	for _, d := range m.all(nodesSection) {
		address := d.checked.node.Address
		if other := first[address]; address != "" && other != nil {
			m.rejectNative(d, document.Problem{Path: document.Path{"address"},
				Message: fmt.Sprintf("is also the address of node %q", other.name), Hint: "each node needs its own address"})
			continue
		}
		first[address] = d
	}
}

// rejectNative records a problem that only the whole configuration shows. Its path is relative to the native form.
func (m *merger) rejectNative(d *definition, p document.Problem) { m.reject(d.key, d.placeNative(p)) }

// checkImages checks the images against the settings, the nodes and each other. If the own
// validation of an image found problems, checkImages checks its valid part.
func (m *merger) checkImages() {
	if !m.settings.AllowLoopbackSources {
		m.checkLoopback()
	}
	nodes, images := names(m.all(nodesSection)), names(m.all(imagesSection))
	check := func(d *definition, image *schema.Image) {
		if len(nodes) > 0 && !m.placesUnknown {
			m.checkDisks(d, image, nodes)
		}
		m.checkClone(d, image.Source.Clone, images)
	}
	for _, defined := range m.declared {
		for _, d := range defined {
			if len(d.problems) == 0 && len(d.checked.problems) > 0 && d.checked.image != nil {
				check(d, d.checked.image)
			}
		}
	}
	for _, d := range m.all(imagesSection) {
		if !m.stale(d) {
			check(d, d.checked.image)
		}
	}
	m.checkCycles()
}

func (m *merger) checkLoopback() {
	for k, defined := range m.declared {
		if k.section != imagesSection {
			continue // checkDestination has rejected it
		}
		for _, d := range defined {
			for _, p := range d.checked.loopback {
				m.reject(k, d.place(p))
			}
		}
	}
}

// dropLoopback removes the last valid definitions of images that the settings no longer
// allow.
func (m *merger) dropLoopback() {
	if m.settings.AllowLoopbackSources {
		return
	}
	for k, d := range m.current {
		if k.section == imagesSection && len(d.checked.loopback) > 0 {
			delete(m.current, k)
		}
	}
}

// checkDisks finds disks that the image names and no node has.
func (m *merger) checkDisks(d *definition, image *schema.Image, nodes []string) {
	disks, _ := d.native().Find(document.Path{"disks"}, d.pos)
	for _, ref := range image.Disks {
		var p document.Problem
		n := m.current[key{nodesSection, ref.Node}]
		if n == nil {
			p.Message, p.Hint = fmt.Sprintf("node %q is not declared", ref.Node), m.suggestions.DidYouMean(ref.Node, nodes)
		} else if _, ok := n.checked.node.Disks[ref.Disk]; !ok {
			p.Message, p.Hint = fmt.Sprintf("node %q has no disk %q", ref.Node, ref.Disk), m.suggestions.DidYouMean(ref.Disk, sortedKeys(n.checked.node.Disks))
		} else {
			continue
		}
		text := ref.String()
		i := slices.IndexFunc(disks.Items, func(item *document.Value) bool { return item.Text == text })
		p.Path = document.Path{"disks"}.WithIndex(i)
		m.rejectNative(d, p)
	}
}

package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// checkAddresses finds nodes with the same address: the state of one of them
// would count twice.
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

// rejectNative records a problem of a definition that only the whole configuration shows.
func (m *merger) rejectNative(d *definition, p document.Problem) { m.reject(d.key, d.placeNative(p)) }

// checkImages checks the images that are valid by themselves against the
// settings, the nodes and each other.
func (m *merger) checkImages() {
	if !m.settings.AllowLoopbackSources {
		m.checkLoopback()
	}
	nodes := names(m.all(nodesSection))
	for _, d := range m.all(imagesSection) {
		if m.stale(d) {
			continue
		}
		if len(nodes) > 0 && !m.placesUnknown {
			m.checkDisks(d, nodes)
		}
		m.checkClone(d)
	}
	m.checkCycles()
}

func (m *merger) checkLoopback() {
	for k, defined := range m.declared {
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
func (m *merger) checkDisks(d *definition, nodes []string) {
	disks, _ := d.native().Find(document.Path{"disks"}, d.pos)
	for _, ref := range d.checked.image.Disks {
		i := slices.IndexFunc(disks.Items, func(item *document.Value) bool { return item.Text == ref.String() })
		p := document.Problem{Path: document.Path{"disks"}.WithIndex(i)}
		n := m.current[key{nodesSection, ref.Node}]
		if n == nil {
			p.Message, p.Hint = fmt.Sprintf("node %q is not declared", ref.Node), document.DidYouMean(ref.Node, nodes)
			m.rejectNative(d, p)
		} else if _, ok := n.checked.node.Disks[ref.Disk]; !ok {
			p.Message, p.Hint = fmt.Sprintf("node %q has no disk %q", ref.Node, ref.Disk), document.DidYouMean(ref.Disk, sortedKeys(n.checked.node.Disks))
			m.rejectNative(d, p)
		}
	}
}

// checkClone finds a source image that is not declared, and an encryption or decryption
// that was done before.
func (m *merger) checkClone(d *definition) {
	c := d.checked.image.Source.Clone
	if c == nil {
		return
	}
	source := key{imagesSection, c.BackingImage}
	at := document.Path{"source", "clone"}
	if m.current[source] == nil && m.declared[source] == nil {
		if !m.fileUnknown { // otherwise it may be in a file that cannot be read
			m.rejectNative(d, document.Problem{Path: at.With("backingImage"),
				Message: fmt.Sprintf("image %q is not declared", c.BackingImage), Hint: document.DidYouMean(c.BackingImage, names(m.all(imagesSection)))})
		}
		return
	}
	switch before := m.encryption(c.BackingImage); {
	case before == Encrypt && c.Encryption == Encrypt:
		m.rejectNative(d, document.Problem{Path: at.With("encryption"), Message: fmt.Sprintf("cannot re-encrypt: %q is encrypted already", c.BackingImage)})
	case before == Decrypt && c.Encryption == Decrypt:
		m.rejectNative(d, document.Problem{Path: at.With("encryption"), Message: fmt.Sprintf("cannot re-decrypt: %q is decrypted already", c.BackingImage)})
	}
}

// encryption returns what the last of the clones that led to an image did to its bytes. It
// is EncryptionIgnore for an image that is no clone, whether it is encrypted or not.
func (m *merger) encryption(name string) Encryption {
	if e, known := m.encryptions[name]; known {
		return e
	}
	m.encryptions[name] = EncryptionIgnore // ends a cycle, which checkCycles reports
	d := m.current[key{imagesSection, name}]
	if d == nil || d.checked.image.Source.Clone == nil {
		return EncryptionIgnore
	}
	e := d.checked.image.Source.Clone.Encryption
	if e == EncryptionIgnore {
		e = m.encryption(d.checked.image.Source.Clone.BackingImage)
	}
	m.encryptions[name] = e
	return e
}

// checkCycles finds images that are clones of themselves, through other images.
func (m *merger) checkCycles() {
	done := map[string]bool{}
	for _, d := range m.all(imagesSection) {
		var chain []string
		at := map[string]int{}
		for name, ok := d.name, true; ok && !done[name]; name, ok = m.clonedFrom(name) {
			if i, again := at[name]; again {
				m.rejectCycle(chain[i:])
				break
			}
			at[name] = len(chain)
			chain = append(chain, name)
		}
		for _, name := range chain {
			done[name] = true
		}
	}
}

// clonedFrom returns the source of a clone, and false if the image is no clone.
func (m *merger) clonedFrom(name string) (string, bool) {
	d := m.current[key{imagesSection, name}]
	if d == nil || m.stale(d) || d.checked.image.Source.Clone == nil {
		return "", false
	}
	return d.checked.image.Source.Clone.BackingImage, true
}

func (m *merger) rejectCycle(members []string) {
	for i, name := range members {
		around := slices.Concat(members[i:], members[:i+1])
		if len(around) > 10 {
			around = append(around[:9], "…", name)
		}
		m.rejectNative(m.current[key{imagesSection, name}], document.Problem{Path: document.Path{"source", "clone", "backingImage"},
			Message: "is a clone of itself: " + strings.Join(around, " from "), Hint: "give one of them another source"})
	}
}

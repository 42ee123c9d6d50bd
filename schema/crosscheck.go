package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// checkAddresses finds nodes that answer at one address: what one of them says
// would count twice.
func (a *assembly) checkAddresses() {
	first := map[string]*thing{}
	for _, t := range a.of(nodesSection) {
		address := t.verdict.node.Address
		if other := first[address]; address != "" && other != nil {
			a.fault(t, document.Problem{Path: document.Path{"address"}, Message: fmt.Sprintf("is the address of node %q too", other.name), Hint: "every node has an address of its own"})
			continue
		}
		first[address] = t
	}
}

// fault records a fault that only the whole configuration shows.
func (a *assembly) fault(t *thing, f document.Problem) { a.mistake(t.key, t.found(f)) }

// checkImages checks the images that are valid by themselves against the
// settings, the nodes and each other.
func (a *assembly) checkImages() {
	if !a.settings.AllowLoopbackSources {
		a.checkLoopback()
	}
	nodes := names(a.of(nodesSection))
	for _, t := range a.of(imagesSection) {
		if a.stale(t) {
			continue
		}
		if len(nodes) > 0 && !a.placesUnknown {
			a.checkDisks(t, nodes)
		}
		a.checkClone(t)
	}
	a.checkCycles()
}

func (a *assembly) checkLoopback() {
	for k, defined := range a.fresh {
		for _, t := range defined {
			for _, f := range t.verdict.loopback {
				a.mistake(k, t.problem(f))
			}
		}
	}
}

// stale reports whether t holds as last said and not as it is defined now.
func (a *assembly) stale(t *thing) bool {
	_, wrong := a.wrong[t.key]
	return wrong
}

// dropLoopback ends what was last said of images that the settings no longer
// allow.
func (a *assembly) dropLoopback() {
	if a.settings.AllowLoopbackSources {
		return
	}
	for k, t := range a.holds {
		if k.section == imagesSection && len(t.verdict.loopback) > 0 {
			delete(a.holds, k)
		}
	}
}

// checkDisks finds disks that the image names and no node has.
func (a *assembly) checkDisks(t *thing, nodes []string) {
	for _, ref := range t.verdict.image.Disks {
		f := document.Problem{Path: document.Path{"disks", t.indexOf(ref.String())}}
		n := a.holds[key{nodesSection, ref.Node}]
		if n == nil {
			f.Message, f.Hint = fmt.Sprintf("node %q is not declared", ref.Node), document.DidYouMean(ref.Node, nodes)
			a.fault(t, f)
		} else if _, ok := n.verdict.node.Disks[ref.Disk]; !ok {
			f.Message, f.Hint = fmt.Sprintf("node %q has no disk %q", ref.Node, ref.Disk), document.DidYouMean(ref.Disk, sortedKeys(n.verdict.node.Disks))
			a.fault(t, f)
		}
	}
}

// indexOf returns where the image's disks have the text.
func (t *thing) indexOf(text string) string {
	v, _ := t.native().Find(document.Path{"disks"}, t.pos)
	return fmt.Sprintf("[%d]", slices.IndexFunc(v.Items, func(i *document.Value) bool { return i.Text == text }))
}

func names(things []*thing) []string {
	var all []string
	for _, t := range things {
		all = append(all, t.name)
	}
	return all
}

// checkClone finds a source that is nowhere, and work that is done already.
func (a *assembly) checkClone(t *thing) {
	c := t.verdict.image.Source.Clone
	if c == nil {
		return
	}
	source := key{imagesSection, c.BackingImage}
	at := document.Path{"source", "clone"}
	if a.holds[source] == nil && a.fresh[source] == nil {
		// It may be in what could not be read.
		if !a.fileUnknown {
			a.fault(t, document.Problem{Path: at.With("backingImage"), Message: fmt.Sprintf("image %q is not declared", c.BackingImage), Hint: document.DidYouMean(c.BackingImage, names(a.of(imagesSection)))})
		}
		return
	}
	switch before := a.encryption(c.BackingImage); {
	case before == Encrypt && c.Encryption == Encrypt:
		a.fault(t, document.Problem{Path: at.With("encryption"), Message: fmt.Sprintf("cannot re-encrypt: %q is encrypted already", c.BackingImage)})
	case before == Decrypt && c.Encryption == Decrypt:
		a.fault(t, document.Problem{Path: at.With("encryption"), Message: fmt.Sprintf("cannot re-decrypt: %q is decrypted already", c.BackingImage)})
	}
}

// encryption returns what was last done to the bytes of an image by the clones
// that led to it. What is no clone may be encrypted or not: EncryptionIgnore.
func (a *assembly) encryption(name string) Encryption {
	if e, known := a.encryptions[name]; known {
		return e
	}
	a.encryptions[name] = EncryptionIgnore // ends a cycle, which is told elsewhere
	t := a.holds[key{imagesSection, name}]
	if t == nil || t.verdict.image.Source.Clone == nil {
		return EncryptionIgnore
	}
	e := t.verdict.image.Source.Clone.Encryption
	if e == EncryptionIgnore {
		e = a.encryption(t.verdict.image.Source.Clone.BackingImage)
	}
	a.encryptions[name] = e
	return e
}

// checkCycles finds images that are cloned from themselves by way of others.
func (a *assembly) checkCycles() {
	done := map[string]bool{}
	for _, t := range a.of(imagesSection) {
		var chain []string
		at := map[string]int{}
		for name := t.name; name != "" && !done[name]; name = a.clonedFrom(name) {
			if i, again := at[name]; again {
				a.cycle(chain[i:])
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

// clonedFrom returns the source of an image that is a clone, or "".
func (a *assembly) clonedFrom(name string) string {
	t := a.holds[key{imagesSection, name}]
	if t == nil || a.stale(t) || t.verdict.image.Source.Clone == nil {
		return ""
	}
	return t.verdict.image.Source.Clone.BackingImage
}

func (a *assembly) cycle(members []string) {
	for i, name := range members {
		around := slices.Concat(members[i:], members[:i+1])
		if len(around) > 10 {
			around = append(around[:9], "…", name)
		}
		a.fault(a.holds[key{imagesSection, name}], document.Problem{Path: document.Path{"source", "clone", "backingImage"},
			Message: "is a clone of itself: " + strings.Join(around, " from "), Hint: "one of them needs another source"})
	}
}

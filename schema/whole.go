package schema

import (
	"fmt"
	"slices"
	"strings"
)

// checkAddresses finds nodes that answer at one address: what one of them says
// would count twice.
func (a *assembly) checkAddresses() {
	first := map[string]*thing{}
	for _, t := range a.of(nodesSection) {
		address := t.verdict.node.Address
		if other := first[address]; address != "" && other != nil {
			a.fault(t, fault{path: fieldPath{"address"}, msg: fmt.Sprintf("is the address of node %q too", other.name), hint: "every node has an address of its own"})
			continue
		}
		first[address] = t
	}
}

// fault records a fault that only the whole configuration shows.
func (a *assembly) fault(t *thing, f fault) { a.mistake(t.key, t.problem(f)) }

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
		f := fault{path: fieldPath{"disks", t.indexOf(ref.String())}}
		n := a.holds[key{nodesSection, ref.Node}]
		if n == nil {
			f.msg, f.hint = fmt.Sprintf("node %q is not declared", ref.Node), didYouMean(ref.Node, nodes)
			a.fault(t, f)
		} else if _, ok := n.verdict.node.Disks[ref.Disk]; !ok {
			f.msg, f.hint = fmt.Sprintf("node %q has no disk %q", ref.Node, ref.Disk), didYouMean(ref.Disk, sortedKeys(n.verdict.node.Disks))
			a.fault(t, f)
		}
	}
}

// indexOf returns where the image's disks have the text.
func (t *thing) indexOf(text string) string {
	v, _ := t.value.find(fieldPath{"disks"}, t.pos)
	return fmt.Sprintf("[%d]", slices.IndexFunc(v.items, func(i *value) bool { return i.text == text }))
}

func names(things []*thing) []string {
	var all []string
	for _, t := range things {
		all = append(all, t.name)
	}
	return all
}

func didYouMean(name string, candidates []string) string {
	if near := nearest(name, candidates); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	if len(candidates) == 0 || len(candidates) > 20 {
		return ""
	}
	return "there are: " + strings.Join(candidates, ", ")
}

// checkClone finds a source that is nowhere, and work that is done already.
func (a *assembly) checkClone(t *thing) {
	c := t.verdict.image.Source.Clone
	if c == nil {
		return
	}
	source := key{imagesSection, c.BackingImage}
	at := fieldPath{"source", "clone"}
	if a.holds[source] == nil && a.fresh[source] == nil {
		// It may be in what could not be read.
		if !a.fileUnknown {
			a.fault(t, fault{path: at.with("backingImage"), msg: fmt.Sprintf("image %q is not declared", c.BackingImage), hint: didYouMean(c.BackingImage, names(a.of(imagesSection)))})
		}
		return
	}
	encrypted, known := a.encrypted(c.BackingImage, 0)
	switch {
	case known && encrypted && c.Encryption == Encrypt:
		a.fault(t, fault{path: at.with("encryption"), msg: fmt.Sprintf("cannot re-encrypt: %q is encrypted already", c.BackingImage)})
	case known && !encrypted && c.Encryption == Decrypt:
		a.fault(t, fault{path: at.with("encryption"), msg: fmt.Sprintf("cannot re-decrypt: %q is decrypted already", c.BackingImage)})
	}
}

// encrypted tells what the declarations say of an image: what is not a clone
// may be either.
func (a *assembly) encrypted(name string, depth int) (encrypted, known bool) {
	t := a.holds[key{imagesSection, name}]
	if t == nil || depth > len(a.holds) || t.verdict.image.Source.Clone == nil {
		return false, false
	}
	switch c := t.verdict.image.Source.Clone; c.Encryption {
	case Encrypt:
		return true, true
	case Decrypt:
		return false, true
	default:
		return a.encrypted(c.BackingImage, depth+1)
	}
}

// checkCycles finds images that are cloned from themselves by way of others.
func (a *assembly) checkCycles() {
	done := map[string]bool{}
	for _, t := range a.of(imagesSection) {
		var chain []string
		for name := t.name; !done[name]; {
			if i := slices.Index(chain, name); i >= 0 {
				a.cycle(chain[i:])
				break
			}
			chain = append(chain, name)
			next := a.holds[key{imagesSection, name}]
			if next == nil || a.stale(next) || next.verdict.image.Source.Clone == nil {
				break
			}
			name = next.verdict.image.Source.Clone.BackingImage
		}
		for _, name := range chain {
			done[name] = true
		}
	}
}

func (a *assembly) cycle(members []string) {
	for i, name := range members {
		around := append(slices.Clone(members[i:]), members[:i+1]...)
		t := a.holds[key{imagesSection, name}]
		a.fault(t, fault{path: fieldPath{"source", "clone", "backingImage"},
			msg: "is a clone of itself: " + strings.Join(around, " from "), hint: "one of them needs another source"})
	}
}

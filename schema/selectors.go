package schema

import (
	"fmt"
	"slices"
)

// nowhere says why no declared disk is ranked for an image.
func (c Config) nowhere(m Image) fault {
	ofNodes, ofDisks := c.tags()
	if tag, is := notAmong(m.NodeSelector, ofNodes); is {
		f := unknownTag("node", tag, ofNodes)
		if _, is := c.Nodes[tag]; is {
			f.hint = "it is the name of a node: give that the tag"
		} else if slices.Contains(ofDisks, tag) {
			f.hint = "disks have it: write it in diskSelector"
		}
		return f
	}
	if tag, is := notAmong(m.DiskSelector, ofDisks); is {
		f := unknownTag("disk", tag, ofDisks)
		if slices.Contains(ofNodes, tag) {
			f.hint = "nodes have it: write it in nodeSelector"
		}
		return f
	}
	if len(m.NodeSelector)+len(m.DiskSelector) == 0 {
		return fault{atName: true, msg: "no declared disk can hold a copy"}
	}
	f := fault{path: fieldPath{"nodeSelector"}, atName: true, msg: "no declared disk has all that the selectors ask for", hint: "no copy is made"}
	if len(m.NodeSelector) == 0 {
		f.path = fieldPath{"diskSelector"}
	}
	if c.suits(m) {
		f.msg = "the declared disks that have what the selectors ask for are all evicted"
	}
	return f
}

func unknownTag(of, tag string, known []string) fault {
	f := fault{path: fieldPath{of + "Selector"}, atName: true,
		msg: fmt.Sprintf("no declared %s has the tag %.60q, so no copy is made", of, tag)}
	if near := nearest(tag, known); near != "" {
		f.hint = fmt.Sprintf("did you mean %.60q?", near)
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

package schema

import (
	"fmt"
	"slices"
	"strings"
)

var snapshotContentForm = &form{
	group: snapshotGroup, versions: snapshotVersions, kind: "VolumeSnapshotContent", definition: "#VolumeSnapshotContent",
	common: true, claims: true, imageAt: handleAt.with(handleImage),
	take: (*content).snapshotContent, translate: translateSnapshotContent,
}

var handleAt = at("spec.source.snapshotHandle")

// snapshotContent reads a VolumeSnapshotContent, which says something of an image if it
// has a handle of one.
func (c *content) snapshotContent(f *form, doc *value) {
	handle, _ := doc.find(handleAt, doc.pos)
	driver := doc.textAt("spec", "driver")
	by, _ := doc.find(fieldPath{"spec", "driver"}, doc.pos)
	switch {
	case c.nearProvisioner("driver", fieldPath{"spec", "driver"}, by):
		return
	case driver != "" && driver != provisioner:
		c.skip(doc, "is of another driver than "+provisioner)
		return
	case handle == nil && doc.textAt("spec", "source", "volumeHandle") != "":
		c.skip(doc, "was made by Kubernetes for a VolumeSnapshot")
		return
	case handle != nil && ofVolume(handle.text):
		c.skip(doc, "is of a snapshot or backup of a volume")
		return
	}
	m, ok := c.named(f, doc)
	switch {
	case !ok:
	case handle == nil || handle.kind != textKind:
		p := noHandle(doc).problem(nil, doc, m.pos)
		c.problem(p.Position, handleAt, p.Message, p.Hint)
	default:
		m.pos = handle.pos
		c.handle(m, handle)
	}
}

// noHandle says what is wrong with a VolumeSnapshotContent that has no text as its
// handle.
func noHandle(doc *value) fault {
	f := fault{path: handleAt, msg: "is missing", hint: handleForm}
	if handle, _ := doc.find(handleAt, doc.pos); handle != nil {
		f.msg = "has to be a text, not " + handle.kind.describe()
	} else if source, _ := doc.find(handleAt.parent(), doc.pos); source != nil {
		for _, given := range source.fields {
			if nearest(given.name, []string{"snapshotHandle"}) != "" {
				f.hint = fmt.Sprintf("%q is not known there", printable(given.name))
			}
		}
	}
	return f
}

// handle puts the mapping of what a handle says in the place of its text.
func (c *content) handle(m manifest, v *value) {
	h, faults := parseHandle(v.text)
	for i := range faults {
		faults[i].path = handleAt
	}
	if len(faults) == 0 {
		for _, f := range h.faults() {
			f.path = append(slices.Clip(handleAt), f.path...)
			faults = append(faults, f)
		}
	}
	if h.BackingImage == "" { // nobody knows of which image it is
		for _, f := range faults {
			c.problem(v.pos, f.path, f.msg, f.hint)
		}
		return
	}
	*v = *h.value(v.pos)
	t := c.claim(m, key{imagesSection, longhornName(h.BackingImage)})
	t.sum = t.value.sum()
	if len(faults) > 0 {
		if t.verdict == nil {
			t.verdict = &verdict{}
		}
		t.verdict.faults = append(t.verdict.faults, faults...)
	}
}

// The parameters of the source, in the mapping that a handle is.
const handleParameters = "parameters"

// value is the handle as a mapping, all of it at one place.
func (h Handle) value(pos Position) *value {
	v := &value{kind: mapKind, pos: pos}
	add := func(to *value, name, text string) {
		to.fields = append(to.fields, field{name: name, pos: pos, value: &value{kind: textKind, text: text, pos: pos}})
	}
	add(v, handleImage, h.BackingImage)
	add(v, handleType, h.SourceType)
	add(v, handleChecksum, h.Checksum)
	if len(h.Parameters) > 0 {
		parameters := &value{kind: mapKind, pos: pos}
		for _, name := range sortedKeys(h.Parameters) {
			add(parameters, name, h.Parameters[name])
		}
		v.fields = append(v.fields, field{name: handleParameters, pos: pos, value: parameters})
	}
	return v
}

// faults are what no handle of an image that can be says, by their paths in the
// handle. What is said of the values elsewhere, too, is not among them.
func (h Handle) faults() []fault {
	var all []fault
	i := slices.IndexFunc(longhornSources, func(s longhornSource) bool { return s.name == h.SourceType })
	if i < 0 {
		var known []string
		for _, s := range longhornSources {
			known = append(known, s.name)
		}
		return []fault{{path: fieldPath{handleType}, msg: "unknown kind of source " + shownKey(h.SourceType), hint: didYouMean(h.SourceType, known)}}
	}
	for _, name := range sortedKeys(h.Parameters) {
		at := fieldPath{handleParameters, name}
		switch {
		case name == "checksum":
			all = append(all, fault{path: at, msg: "is no parameter of a source, and equal to that of no image", hint: "write " + handleChecksum})
		case !slices.ContainsFunc(longhornSources[i].parameters, func(p parameter) bool { return p.longhorn == name }):
			all = append(all, fault{path: at, msg: "is no parameter of " + h.SourceType, hint: longhornSources[i].known() + "; a & in a value is written %26"})
		case strings.Contains(h.Parameters[name], " "):
			all = append(all, fault{path: at, msg: "has a space in it", hint: "a + is a space in a handle: write %2B"})
		}
	}
	return all
}

// Check says why no configuration may have the handle, whatever images there are. It has
// a line for each mistake.
func (h Handle) Check() error {
	faults := h.faults()
	if err := checkThingName(key{imagesSection, longhornName(h.BackingImage)}); err != nil {
		faults = append(faults, fault{path: fieldPath{handleImage}, msg: err.Error()})
	}
	return errorOf(faults)
}

// Declares reports whether the handle is meant to declare its image where nothing else
// does. Any other but names one that is there.
func (h Handle) Declares() bool {
	return len(h.Parameters) > 0 && (h.SourceType == "download" || h.SourceType == "export-from-volume")
}

func translateSnapshotContent(tr *translation) {
	image := handleAt.with(handleImage)
	tr.rename(image, tr.text(image))
	tr.claims(handleAt.with(handleType), handleAt.with(handleParameters), handleAt.with(handleChecksum))
	c := tr.claim
	if c.cannot == "" && c.kind == "export-from-volume" && c.parameters["export-type"] == "" {
		c.cannot = "export-type is not provided"
	}
	if ref := at("volumeSnapshotRef"); tr.get(ref) != nil {
		tr.warn(ref, "does not stand in spec, where Kubernetes wants it", fmt.Sprintf("indent it like %q", "source"))
	}
}

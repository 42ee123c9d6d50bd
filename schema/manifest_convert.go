package schema

import (
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// translation is what a manifest says, said natively. It remembers where each
// value comes from, so that whatever is found wrong with it later is told in
// the words of the manifest.
type translation struct {
	doc   *value // the manifest
	value *value
	from  map[string]fieldPath // by native path, also of what is not there
	// faults and warnings are in the words of the manifest.
	faults, warnings []fault
	claim            *claim // nil where it is a definition
}

func newTranslation(doc *value) *translation {
	return &translation{doc: doc, value: &value{kind: mapKind, pos: doc.pos}, from: map[string]fieldPath{}}
}

// at is the path of fields whose names have no dots.
func at(path string) fieldPath { return strings.Split(path, ".") }

func (p fieldPath) key() string { return strings.Join(p, "\x00") }

// get returns what the manifest has at a path, nil for nothing and for "".
func (tr *translation) get(path fieldPath) *value {
	v, _ := tr.doc.find(path, Position{})
	if v == nil || v.kind == textKind && v.text == "" {
		return nil
	}
	return v
}

// text is the text that the manifest has at a path, or "".
func (tr *translation) text(path fieldPath) string {
	if v := tr.get(path); v != nil {
		return v.text
	}
	return ""
}

// carry lets the native value be what the manifest has at a path, if it has it.
func (tr *translation) carry(native, from fieldPath) { tr.set(native, from, tr.get(from)) }

// set sets a native value that comes from a path in the manifest. nil sets
// nothing, but what is missing is then told as missing there.
func (tr *translation) set(native, from fieldPath, v *value) {
	tr.from[native.key()] = from
	if v == nil {
		return
	}
	parent := tr.value
	for _, step := range native.parent() {
		f := parent.child(step)
		if f == nil {
			parent.fields = append(parent.fields, field{name: step, pos: v.pos, value: &value{kind: mapKind, pos: v.pos}})
			f = &parent.fields[len(parent.fields)-1]
		}
		parent = f.value
	}
	parent.fields = append(parent.fields, field{name: native[len(native)-1], pos: v.pos, value: v})
}

// number is like carry for a number that the manifest has as a text.
func (tr *translation) number(native, from fieldPath) {
	v := tr.get(from)
	if v != nil {
		w := *v
		v = &w
		if n, err := strconv.ParseInt(v.text, 10, 64); err == nil {
			v.kind, v.number = numberKind, n
		}
	}
	tr.set(native, from, v)
}

// split is like carry for a list that the manifest has as a text with commas.
func (tr *translation) split(native, from fieldPath) {
	v := tr.get(from)
	if v == nil {
		return
	}
	list := &value{kind: listKind, pos: v.pos}
	for i, part := range strings.Split(v.text, ",") {
		list.items = append(list.items, &value{kind: textKind, text: part, pos: v.pos})
		tr.from[native.with(fmt.Sprintf("[%d]", i)).key()] = from
	}
	tr.set(native, from, list)
}

// name is like carry for the name of an image, which is rewritten as Longhorn
// does it.
func (tr *translation) name(native, from fieldPath) {
	v := tr.get(from)
	if v != nil {
		w := *v
		w.text = tr.rename(from, v.text)
		v = &w
	}
	tr.set(native, from, v)
}

// rename rewrites the name of an image that stands at a path.
func (tr *translation) rename(from fieldPath, name string) string {
	renamed := longhornName(name)
	if renamed != name {
		tr.warn(from, fmt.Sprintf("is %q here, as in Longhorn", renamed), "names are in lower case and have at most 40 characters")
	}
	return renamed
}

func (tr *translation) fault(from fieldPath, msg, hint string) {
	tr.faults = append(tr.faults, fault{path: from, msg: msg, hint: hint})
}

func (tr *translation) warn(from fieldPath, msg, hint string) {
	tr.warnings = append(tr.warnings, fault{path: from, msg: msg, hint: hint})
}

// origin returns the path in the manifest that a native path comes from.
func (tr *translation) origin(native fieldPath) fieldPath {
	for n := len(native); n > 0; n-- {
		if from, is := tr.from[native[:n].key()]; is {
			return append(from[:len(from):len(from)], native[n:]...)
		}
	}
	return fieldPath{"metadata", "name"}
}

// told is f, whose path is native, in the words of the manifest.
func (tr *translation) told(f fault) fault {
	f.path, f.atName = tr.origin(f.path), f.atName && len(f.path) > 0
	return f
}

func (tr *translation) toldAll(faults []fault) []fault {
	for i := range faults {
		faults[i] = tr.told(faults[i])
	}
	return faults
}

// longestName is the most that the name of an image may have.
const longestName = 40

// longhornName is the name that Longhorn gives an image that is to have one that
// is too long or has upper-case letters.
func longhornName(name string) string {
	renamed := strings.ToLower(name)
	if len(name) <= longestName {
		return renamed
	}
	sum := sha512.Sum512([]byte(name))
	end := "-" + hex.EncodeToString(sum[:4])
	return strings.TrimRight(renamed[:min(len(renamed), longestName-len(end))], "-") + end
}

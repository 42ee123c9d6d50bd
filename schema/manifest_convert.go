package schema

import (
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// translation is what a manifest says, said natively. It remembers where each
// value comes from, so that whatever is found wrong with it later is told in
// the words of the manifest.
type translation struct {
	doc   *document.Value // the manifest
	value *document.Value
	from  map[string]document.Path // by native path, also of what is not there
	// faults and warnings are in the words of the manifest.
	faults, warnings []document.Problem
	claim            *claim // nil where it is a definition
}

func newTranslation(doc *document.Value) *translation {
	return &translation{doc: doc, value: &document.Value{Kind: document.Map, Pos: doc.Pos}, from: map[string]document.Path{}}
}

// at is the path of fields whose names have no dots.
func at(path string) document.Path { return strings.Split(path, ".") }

func pathKey(p document.Path) string { return strings.Join(p, "\x00") }

// get returns what the manifest has at a path, nil for nothing and for "".
func (tr *translation) get(path document.Path) *document.Value {
	v, _ := tr.doc.Find(path, document.Position{})
	if v == nil || v.Kind == document.Text && v.Text == "" {
		return nil
	}
	return v
}

// text is the text that the manifest has at a path, or "".
func (tr *translation) text(path document.Path) string {
	if v := tr.get(path); v != nil {
		return v.Text
	}
	return ""
}

// carry lets the native value be what the manifest has at a path, if it has it.
func (tr *translation) carry(native, from document.Path) { tr.set(native, from, tr.get(from)) }

// set sets a native value that comes from a path in the manifest. nil sets
// nothing, but what is missing is then told as missing there.
func (tr *translation) set(native, from document.Path, v *document.Value) {
	tr.from[pathKey(native)] = from
	if v == nil {
		return
	}
	parent := tr.value
	for _, step := range native.Parent() {
		f := parent.Field(step)
		if f == nil {
			parent.Fields = append(parent.Fields, document.Field{Name: step, Pos: v.Pos, Value: &document.Value{Kind: document.Map, Pos: v.Pos}})
			f = &parent.Fields[len(parent.Fields)-1]
		}
		parent = f.Value
	}
	parent.Fields = append(parent.Fields, document.Field{Name: native[len(native)-1], Pos: v.Pos, Value: v})
}

// number is like carry for a number that the manifest has as a text.
func (tr *translation) number(native, from document.Path) {
	v := tr.get(from)
	if v != nil {
		w := *v
		v = &w
		if n, err := strconv.ParseInt(v.Text, 10, 64); err == nil {
			v.Kind, v.Number = document.Number, n
		}
	}
	tr.set(native, from, v)
}

// split is like carry for a list that the manifest has as a text with commas.
func (tr *translation) split(native, from document.Path) {
	v := tr.get(from)
	if v == nil {
		return
	}
	list := &document.Value{Kind: document.List, Pos: v.Pos}
	for i, part := range strings.Split(v.Text, ",") {
		list.Items = append(list.Items, &document.Value{Kind: document.Text, Text: part, Pos: v.Pos})
		tr.from[pathKey(native.WithIndex(i))] = from
	}
	tr.set(native, from, list)
}

// name is like carry for the name of an image, which is rewritten as Longhorn
// does it.
func (tr *translation) name(native, from document.Path) {
	v := tr.get(from)
	if v != nil {
		w := *v
		w.Text = tr.rename(from, v.Text)
		v = &w
	}
	tr.set(native, from, v)
}

// rename rewrites the name of an image that stands at a path.
func (tr *translation) rename(from document.Path, name string) string {
	renamed := longhornName(name)
	if renamed != name {
		tr.warn(from, fmt.Sprintf("is %q here, as in Longhorn", renamed), "names are in lower case and have at most 40 characters")
	}
	return renamed
}

func (tr *translation) fault(from document.Path, msg, hint string) {
	tr.faults = append(tr.faults, document.Problem{Path: from, Message: msg, Hint: hint})
}

func (tr *translation) warn(from document.Path, msg, hint string) {
	tr.warnings = append(tr.warnings, document.Problem{Path: from, Message: msg, Hint: hint})
}

// origin returns the path in the manifest that a native path comes from.
func (tr *translation) origin(native document.Path) document.Path {
	for n := len(native); n > 0; n-- {
		if from, is := tr.from[pathKey(native[:n])]; is {
			return append(from[:len(from):len(from)], native[n:]...)
		}
	}
	return document.Path{"metadata", "name"}
}

// told is f, whose path is native, in the words of the manifest.
func (tr *translation) told(f document.Problem) document.Problem {
	f.Path, f.AtName = tr.origin(f.Path), f.AtName && len(f.Path) > 0
	return f
}

func (tr *translation) toldAll(faults []document.Problem) []document.Problem {
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

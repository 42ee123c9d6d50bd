package schema

import (
	"fmt"
	"slices"
	"strings"
)

// A document that is nearly one of ours must not be skipped: what it declares would be
// taken for gone, and be cleaned up. Here is what is looked at before anything is.

// slipped reports, and tells, that nobody can tell what a document with apiVersion and kind
// is about.
func (c *content) slipped(f *form, doc *value) bool {
	apiVersion, kind := doc.child("apiVersion"), doc.child("kind")
	for _, pair := range [][2]*field{{apiVersion, kind}, {kind, apiVersion}} {
		other, v := pair[0].value, pair[1].value
		if other.kind != textKind || other.text == "" || v.text != "" {
			continue
		}
		msg := "has to be a text, not " + v.kind.describe()
		if v.kind == textKind {
			msg = "is empty"
		}
		c.problem(v.pos, fieldPath{pair[1].name}, msg, "a document of Kubernetes has both apiVersion and kind")
		return true
	}
	twice, at := doc.repeated(f)
	if twice != nil {
		c.problem(twice.pos, at, "is given twice", "keep one of them")
	}
	return twice != nil
}

// sectionInside returns a section of ours in a document of another program, nil if it has
// none. Others have fields of these names, too, but not with the like in them.
func sectionInside(doc *value) *field {
	has := map[string]string{imagesSection.String(): "source", nodesSection.String(): "disks"}
	i := slices.IndexFunc(doc.fields, func(f field) bool {
		return slices.ContainsFunc(f.value.fields, func(one field) bool { return has[f.name] != "" && one.value.child(has[f.name]) != nil })
	})
	if i < 0 {
		return nil
	}
	return &doc.fields[i]
}

// decisive are the fields at the top of a manifest that say what it is about.
var decisive = []string{"metadata", "spec", "parameters", "driver", "provisioner", "value", "items", "data", "binaryData"}

// repeated returns a field of a manifest of a form that is there already, and where it is.
// What is in a list and in the files of a ConfigMap is looked at by itself; a manifest that
// always declares something is told with all else that is wrong with it.
func (v *value) repeated(f *form) (*field, fieldPath) {
	if f == nil || f == backingImageForm || f == nodeForm {
		return nil, nil
	}
	if twice := v.again(decisive...); twice != nil {
		return twice, fieldPath{twice.name}
	}
	for _, name := range decisive {
		if below := v.child(name); below != nil && name != "data" && name != "items" {
			if twice, at := below.value.repeatedBelow(fieldPath{name}); twice != nil {
				return twice, at
			}
		}
	}
	return nil, nil
}

func (v *value) repeatedBelow(at fieldPath) (*field, fieldPath) {
	seen := map[string]bool{}
	for i, f := range v.fields {
		if seen[f.name] {
			return &v.fields[i], at.with(f.name)
		}
		seen[f.name] = true
		if twice, where := f.value.repeatedBelow(at.with(f.name)); twice != nil {
			return twice, where
		}
	}
	return nil, nil
}

// listOfOurs returns the kind that a list of our manifests should have, "" where it is none.
func listOfOurs(apiVersion, kind string) string {
	const suffix = "list"
	if len(kind) <= len(suffix) || !strings.EqualFold(kind[len(kind)-len(suffix):], suffix) {
		return nearlyList(apiVersion, kind)
	}
	of := kind[:len(kind)-len(suffix)]
	switch f, wrong := formOf(apiVersion, of); {
	case f != nil:
		return f.kind + "List"
	case wrong != nil && wrong.path[0] == "kind":
		return forms[slices.IndexFunc(forms, func(f *form) bool { return nearly(of, f.kind) })].kind + "List"
	case wrong != nil:
		return of + "List"
	}
	return ""
}

// nearlyList is listOfOurs for a kind that ends in List but for a slip.
func nearlyList(apiVersion, kind string) string {
	group, _, _ := strings.Cut(apiVersion, "/")
	for _, f := range forms {
		if f.group != "" && nearGroup(group, f.group) && !nearly(kind, f.kind) && nearly(kind, f.kind+"List") {
			return f.kind + "List"
		}
	}
	return ""
}

// nearProvisioner tells that a manifest names nearly the driver whose manifests are ours.
func (c *content) nearProvisioner(what string, at fieldPath, v *value) bool {
	near := v != nil && v.text != provisioner && nearly(v.text, provisioner)
	if near {
		c.problem(v.pos, at, fmt.Sprintf("unknown %s %q", what, printable(v.text)), fmt.Sprintf("did you mean %q?", provisioner))
	}
	return near
}

// misplaced finds a field of a manifest that was meant to be, or to be in, the mapping
// that is known by name.
func (v *value) misplaced(name string, inside []string) (*field, string) {
	for i, f := range v.fields {
		switch {
		case f.name == name:
		case nearly(f.name, name):
			return &v.fields[i], fmt.Sprintf("did you mean %q?", name)
		case slices.Contains(inside, f.name):
			return &v.fields[i], fmt.Sprintf("it belongs in %q: indent it", name)
		}
	}
	return nil, ""
}

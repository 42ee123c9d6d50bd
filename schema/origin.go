package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Origin is where something of a configuration is declared.
type Origin struct {
	Position        // of its name
	Section  string // settings, nodes or images
	Name     string
	Kind     string // of the manifest that declares it, "" for the native form
	// Values are all that it declares, in the order of their paths; the rest of
	// the configuration is defaults.
	Values []ValueOrigin
}

// ValueOrigin is where a value is declared.
type ValueOrigin struct {
	Position
	Path string // as the native form has it, such as "source.download.url"
	From string // as the manifest has it, such as "spec.sourceParameters.url"; "" for the native form
}

// Origins returns where all of r.Config was declared, sorted by section and name.
// What holds as it was last said has the place that it had then.
func (r Result) Origins() []Origin {
	origins := make([]Origin, 0, len(r.things))
	for _, t := range r.things {
		o := Origin{Position: t.pos, Section: t.section.String(), Name: t.name}
		if t.form != nil {
			o.Kind = t.form.kind
		}
		t.native().each(nil, func(path fieldPath, v *value) {
			o.Values = append(o.Values, t.valueOrigin(path, v))
		})
		slices.SortStableFunc(o.Values, func(x, y ValueOrigin) int { return strings.Compare(x.Path, y.Path) })
		origins = append(origins, o)
	}
	slices.SortFunc(origins, func(x, y Origin) int {
		return cmp.Or(strings.Compare(x.Section, y.Section), strings.Compare(x.Name, y.Name))
	})
	return origins
}

func (t *thing) valueOrigin(path fieldPath, v *value) ValueOrigin {
	o := ValueOrigin{Position: v.pos, Path: path.String()}
	if t.form != nil {
		from := t.verdict.translation.origin(path)
		o.From = from.String()
		// The translation is of any manifest that says the same: the place is not in it.
		found, pos := t.value.find(from, t.pos)
		if found != nil {
			pos = found.pos
		}
		o.Position = pos
	}
	return o
}

// each calls do with all below v that holds nothing else: scalars, empty lists
// and empty mappings.
func (v *value) each(path fieldPath, do func(fieldPath, *value)) {
	if len(v.fields)+len(v.items) == 0 {
		do(path, v)
	}
	for _, f := range v.fields {
		f.value.each(path.with(f.name), do)
	}
	for i, item := range v.items {
		item.each(path.with(fmt.Sprintf("[%d]", i)), do)
	}
}

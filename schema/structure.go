package schema

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// structure checks what CUE would say badly or hide behind another mistake:
// fields that are not known or given twice, values left out, texts without
// quotes. What it finds is left out of the result, and CUE checks the rest.
type structure struct {
	root   *shape
	faults []fault
}

// fault records f. A file of nonsense has enough of them.
func (s *structure) fault(f fault) {
	if len(s.faults) < maxProblems {
		s.faults = append(s.faults, f)
	}
}

// maxElements bounds a list, and a mapping from names: CUE cannot be stopped,
// so it gets nothing that takes it long.
const maxElements = 1000

// plain returns v as CUE takes it, and false where nothing is left of it.
func (s *structure) plain(v *value, sh *shape, at fieldPath) (any, bool) {
	switch {
	case v.kind == nullKind:
		s.fault(fault{path: at, atName: true, msg: "has no value", hint: emptyHint(sh, at)})
	case sh.kind == mapKind && v.kind != mapKind:
		s.fault(fault{path: at, msg: "has to be a mapping, not " + v.kind.describe(), hint: mappingHint(sh)})
	case sh.kind == listKind && v.kind != listKind:
		s.fault(fault{path: at, msg: wrong(sh, v), hint: listHint(sh, v)})
	case sh.kind == textKind && (v.kind == numberKind || v.kind == boolKind):
		s.fault(quoteIt(v, sh, at))
	case v.kind == numberKind && v.number == nil:
		s.fault(fault{path: at, msg: wrong(sh, v)})
	case sh.scalar() && !v.scalar():
		s.fault(fault{path: at, msg: wrong(sh, v)})
	case max(len(v.items), len(v.fields)) > maxElements:
		s.fault(fault{path: at, msg: fmt.Sprintf("has more than %d elements", maxElements)})
	case v.kind == mapKind:
		return s.mapping(v, sh, at), true
	case v.kind == listKind:
		return s.list(v, sh, at), true
	default:
		return v.plainScalar(), true
	}
	return nil, false
}

func (v *value) plainScalar() any {
	switch v.kind {
	case numberKind:
		return v.number
	case boolKind:
		return v.text == "true"
	}
	return v.text
}

func (s *structure) list(v *value, sh *shape, at fieldPath) []any {
	list := make([]any, 0, len(v.items))
	for i, item := range v.items {
		if p, ok := s.plain(item, sh.elements, at.with(fmt.Sprintf("[%d]", i))); ok {
			list = append(list, p)
		}
	}
	return list
}

func listIndex(step string) (int, bool) {
	i, err := strconv.Atoi(strings.Trim(step, "[]"))
	return i, err == nil && i >= 0
}

func (s *structure) mapping(v *value, sh *shape, at fieldPath) map[string]any {
	m := make(map[string]any, len(v.fields))
	first := make(map[string]Position, len(v.fields))
	for _, f := range v.fields {
		below := at.with(f.name)
		if _, twice := first[f.name]; twice {
			s.fault(fault{path: below, atName: true, msg: "is given twice", hint: "keep one of them"})
			continue
		}
		first[f.name] = f.pos
		fieldShape, known := sh.fields[f.name]
		if !known && sh.elements != nil {
			fieldShape, known = sh.elements, true
			if err := checkPlaceName(f.name); err != nil {
				s.fault(fault{path: below, atName: true, msg: err.Error()})
				continue
			}
		}
		if !known && sh.open {
			continue
		}
		if !known {
			s.fault(fault{path: below, atName: true, msg: "unknown field", hint: s.unknownHint(f.name, sh)})
			continue
		}
		if p, ok := s.plain(f.value, fieldShape, below); ok {
			m[f.name] = p
		}
	}
	return m
}

func (s *structure) unknownHint(name string, sh *shape) string {
	if near := nearest(name, sh.names); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	if at := s.root.whereIs(name); len(at) > 0 {
		return fmt.Sprintf("%q belongs in %s", name, at)
	}
	if name == "sourceType" || name == "sourceParameters" {
		return "write \"source: {download: {url: …}}\""
	}
	if len(sh.names) == 0 {
		return "no field may stand here"
	}
	return "known here: " + strings.Join(sh.names, ", ")
}

// whereIs returns the path to the mapping that knows a field of that name.
func (sh *shape) whereIs(name string) fieldPath {
	for _, n := range sh.names {
		below := sh.fields[n]
		if slices.Contains(below.names, name) {
			return fieldPath{n}
		}
		if at := below.whereIs(name); len(at) > 0 {
			return append(fieldPath{n}, at...)
		}
	}
	return nil
}

func emptyHint(sh *shape, at fieldPath) string {
	if sh.kind == mapKind && len(sh.names) == 0 && len(at) > 0 {
		return fmt.Sprintf("write \"%s: {}\"", at[len(at)-1])
	}
	return "give it one, or remove the line"
}

func mappingHint(sh *shape) string {
	if sh.elements != nil {
		return "give each a name: \"name: {…}\""
	}
	if len(sh.names) == 0 {
		return "write {}"
	}
	return "known there: " + strings.Join(sh.names, ", ")
}

func listHint(sh *shape, v *value) string {
	if v.kind != textKind || sh.private || !showable(v.text) {
		return ""
	}
	return fmt.Sprintf("write [%s]", v.text)
}

// quoteIt is what to say of a text without quotes that YAML takes for
// something else: 00000224 is 148 there.
func quoteIt(v *value, sh *shape, at fieldPath) fault {
	f := fault{path: at, msg: fmt.Sprintf("has to be a text, and without quotes it is %s", v.kind.describe())}
	if !sh.private {
		f.hint = fmt.Sprintf("quote it: %q", v.text)
	}
	return f
}

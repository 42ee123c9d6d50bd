package schema

import (
	"fmt"
	"slices"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/errors"
)

// valid returns v as the schema has it, with every default, what is wrong with it, and
// whether what is left beside that is as it should be.
func (c compiled) valid(definition cue.Value, sh *shape, v *value) (cue.Value, *structure, bool) {
	s := &structure{root: sh}
	plain, ok := s.plain(v, sh, nil)
	if !ok {
		return cue.Value{}, s, false
	}
	unified, wrong := c.unify(definition, plain, v)
	if len(wrong) == 0 {
		return unified, s, true
	}
	for _, at := range wrong {
		if !s.explains(at, sh, v) {
			s.fault(explain(sh, v, at))
		}
		prune(plain, at)
	}
	unified, wrong = c.unify(definition, plain, v)
	return unified, s, len(wrong) == 0
}

// unify returns what the schema makes of plain, and the paths where it is wrong.
func (c compiled) unify(definition cue.Value, plain any, v *value) (cue.Value, []fieldPath) {
	unified := definition.Unify(c.context.Encode(plain))
	return unified, mistakes(unified.Validate(cue.Concrete(true), cue.Final()), v)
}

// prune removes the field at a path, or the nearest one around it.
func prune(plain any, at fieldPath) {
	for i, step := range at {
		fields, is := plain.(map[string]any)
		if !is {
			return
		}
		if _, deeper := fields[step].(map[string]any); !deeper || i == len(at)-1 {
			delete(fields, step)
			return
		}
		plain = fields[step]
	}
}

// explains reports whether what CUE says of a path follows from a fault that
// is known already: a source whose only field is misspelled is empty, too.
func (s *structure) explains(at fieldPath, root *shape, v *value) bool {
	found, _ := v.find(at, Position{})
	if found != nil && found.knownFields(root.at(at)) > 1 {
		return false // it has too many, whatever is wrong with them
	}
	return slices.ContainsFunc(s.faults, func(f fault) bool {
		if found == nil {
			return slices.Equal(f.path.parent(), at.parent())
		}
		return f.path.within(at)
	})
}

func (v *value) knownFields(sh *shape) int {
	n := 0
	for _, f := range v.fields {
		if sh.fields[f.name] != nil {
			n++
		}
	}
	return n
}

// mistakes returns the paths that a CUE error is about, each once. The
// messages of CUE speak of the schema, so we say it ourselves.
func mistakes(err error, root *value) []fieldPath {
	var paths []fieldPath
	for _, e := range errors.Errors(err) {
		paths = append(paths, userPath(e.Path(), root))
	}
	slices.SortFunc(paths, func(a, b fieldPath) int { return slices.Compare(a, b) })
	paths = slices.CompactFunc(paths, slices.Equal)
	// A mapping is wrong because of what is in it: that alone is told.
	return slices.DeleteFunc(slices.Clone(paths), func(p fieldPath) bool {
		return slices.ContainsFunc(paths, func(q fieldPath) bool { return len(q) > len(p) && q.within(p) })
	})
}

// userPath drops the definition that CUE's path begins with, and marks the
// elements of lists.
func userPath(p []string, v *value) fieldPath {
	if len(p) > 0 && strings.HasPrefix(p[0], "#") {
		p = p[1:]
	}
	at := make(fieldPath, 0, len(p))
	for _, step := range p {
		if v != nil && v.kind == listKind {
			step = fmt.Sprintf("[%s]", step)
		}
		at = append(at, strings.Trim(step, `"`))
		if v != nil {
			v, _ = v.step(at[len(at)-1])
		}
	}
	return at
}

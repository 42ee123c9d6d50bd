package load

import (
	"bytes"
	_ "embed"
	"fmt"
	"slices"
	"sync"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/parser"

	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/manifest"
)

//go:embed schema.cue
var schemaCUE []byte

// CUE returns a copy of the schema of the native form and of manifests. The caller may
// change it.
func CUE() []byte {
	clause := []byte("package schema\n")
	return slices.Concat(schemaCUE, []byte("\n"), bytes.Replace(manifest.CUE(), clause, nil, 1))
}

// sectionDefinitions has the name of the definition in schema.cue for each section.
var sectionDefinitions = [sections]string{"#Settings", "#Node", "#Image"}

// compile compiles the schema, and returns the value with its definitions.
func compile(context *cue.Context) cue.Value {
	file, err := parser.ParseFile("schema.cue", CUE())
	if err != nil {
		panic(fmt.Sprintf("load: parse schema.cue and manifest.cue: %v", err))
	}
	return context.BuildFile(file)
}

// spec describes a field of the schema for messages. CUE itself checks the values.
type spec struct {
	kind     document.Kind // Text: only a string; Null: several kinds of scalars
	want     string        // what the value must be
	missing  string        // the message for a missing value; "": the usual message
	private  bool          // no message contains the value
	foreign  bool          // the value has another format than the usual field of this name: checkFormat does not apply
	names    []string      // of fields, in the order of the schema
	fields   map[string]*spec
	elements *spec  // of a list, or of a mapping with any names
	open     bool   // the schema ignores other fields
	reserved string // the prefix of fields of this program. An unknown field with it is never ignored silently; "": none
	grows    bool   // a later version of the program that has this kind of manifest may add fields: they are ignored with a warning
	required bool   // the mapping around it must have it
	fallback any    // the default of a scalar or a list; nil: none
	one      bool   // a mapping with exactly one field
}

// readSpecs returns the specs of the sections and of the kinds of manifests, by the names of their definitions in the schema.
// It reads them once per process. The caller must not change them.
var readSpecs = sync.OnceValue(func() map[string]*spec {
	names := sectionDefinitions[:]
	for _, k := range manifest.Kinds() {
		names = append(names, k.Definition)
	}
	root, all := compile(cuecontext.New()), map[string]*spec{}
	for _, name := range names {
		v := root.LookupPath(cue.ParsePath(name))
		if err := v.Err(); err != nil {
			panic(fmt.Sprintf("load: compile schema.cue and manifest.cue: %v", err))
		}
		all[name] = specOf(v)
	}
	return all
})

func specOf(v cue.Value) *spec {
	s := &spec{}
	want := v.Attribute("want")
	s.want, _ = want.String(0)
	s.missing, _, _ = want.Lookup(1, "missing")
	s.private, _ = want.Flag(1, "private")
	s.foreign, _ = want.Flag(1, "foreign")
	s.grows, _ = want.Flag(1, "grows")
	s.reserved, _, _ = want.Lookup(1, "reserved")
	v, s.one = withoutCount(v)
	switch v.IncompleteKind() {
	case cue.StringKind:
		s.kind = document.Text
	case cue.ListKind:
		s.kind = document.List
		s.elements = specOf(v.LookupPath(cue.MakePath(cue.AnyIndex)))
		s.elements.want, _, _ = want.Lookup(1, "each")
		s.elements.private = s.private
	case cue.StructKind:
		s.kind = document.Map
		s.addFields(v)
	}
	if fallback, ok := v.Default(); ok && s.kind != document.Map {
		if err := fallback.Decode(&s.fallback); err != nil {
			panic(fmt.Sprintf("load: read a default of schema.cue: %v", err))
		}
	}
	return s
}

func (s *spec) addFields(v cue.Value) {
	s.fields = map[string]*spec{}
	fields, err := v.Fields(cue.Optional(true), cue.Patterns(true))
	if err != nil {
		panic(fmt.Sprintf("load: read schema.cue: %v", err))
	}
	for fields.Next() {
		if fields.Selector().ConstraintType() == cue.PatternConstraint {
			s.elements = specOf(fields.Value())
			continue
		}
		name := fields.Selector().Unquoted()
		s.names = append(s.names, name)
		s.fields[name] = specOf(fields.Value())
		s.fields[name].required = fields.Selector().ConstraintType() == cue.RequiredConstraint
	}
	s.open = s.elements == nil && v.Allows(cue.AnyString)
}

// withoutCount returns the struct in a value. one reports whether the value also limits the struct to one field. CUE does
// not know the kind of such a value while it has no fields.
func withoutCount(v cue.Value) (fields cue.Value, one bool) {
	op, args := cue.Dereference(v).Expr()
	if op != cue.AndOp {
		return v, false
	}
	for _, a := range args {
		if fields, err := a.Fields(cue.Optional(true)); err == nil && fields.Next() {
			return a, true
		}
	}
	return v, false
}

func (s *spec) isScalar() bool { return s.kind != document.List && s.kind != document.Map }

// field returns the spec of a field, nil if the schema does not have it.
func (s *spec) field(name string) *spec {
	if f := s.fields[name]; f != nil {
		return f
	}
	return s.elements
}

// at returns the spec at a path, or the last spec on the path that the schema has.
func (s *spec) at(p document.Path) *spec {
	for _, step := range p {
		next := s.field(step)
		if next == nil {
			return s
		}
		s = next
	}
	return s
}

// find returns the path to the first mapping below s that has a field with that name, and nil
// without any.
func (s *spec) find(name string) document.Path {
	for _, n := range s.names {
		below := s.fields[n]
		if slices.Contains(below.names, name) {
			return document.Path{n}
		}
		if at := below.find(name); len(at) > 0 {
			return append(document.Path{n}, at...)
		}
	}
	return nil
}

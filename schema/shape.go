package schema

import (
	"bytes"
	_ "embed"
	"fmt"
	"slices"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

//go:embed schema.cue
var schemaCUE []byte

//go:embed manifests.cue
var manifestsCUE []byte

// CUE returns the schema: the one truth of what may be declared, natively and in
// manifests. The caller may keep and change the copy.
func CUE() []byte {
	clause := []byte("package schema\n")
	return slices.Concat(schemaCUE, []byte("\n"), bytes.Replace(manifestsCUE, clause, nil, 1))
}

// section is one of the three fields of a document.
type section uint8

const (
	settingsSection section = iota
	nodesSection
	imagesSection
	sections
)

var sectionNames = [sections]string{"settings", "nodes", "images"}

// definitions are where schema.cue describes one thing of each section.
var definitions = [sections]string{"#Settings", "#Node", "#Image"}

func (s section) String() string { return sectionNames[s] }

// compiled is the schema in a CUE context of its own. A context keeps all that
// it ever evaluated, so it is used for one batch and dropped.
type compiled struct {
	context *cue.Context
	things  [sections]cue.Value
	// manifests are those that are read, by their definitions.
	manifests map[string]cue.Value
}

func compile() compiled {
	c := compiled{context: cuecontext.New(), manifests: map[string]cue.Value{}}
	root := c.context.CompileBytes(CUE(), cue.Filename("schema.cue"))
	definition := func(name string) cue.Value {
		v := root.LookupPath(cue.ParsePath(name))
		if err := v.Err(); err != nil {
			panic(fmt.Sprintf("schema: compile schema.cue and manifests.cue: %v", err))
		}
		return v
	}
	for s, name := range definitions {
		c.things[s] = definition(name)
	}
	for _, f := range forms {
		if f.definition != "" {
			c.manifests[f.definition] = definition(f.definition)
		}
	}
	return c
}

// shape is what schema.cue says of a field, for telling people: the checks
// themselves are CUE's.
type shape struct {
	kind     document.Kind // textKind: nothing but a text; nullKind: several scalars may stand here
	want     string
	missing  string // what to say when it is missing, where that has words of its own
	private  bool   // the value is never printed
	names    []string
	fields   map[string]*shape
	elements *shape // of a list, or of a mapping from names
	open     bool   // other fields may stand here, and are not read
}

// shapes are one for each section, and one for each kind of manifest.
type shapes struct {
	things    [sections]*shape
	manifests map[string]*shape
}

// readShapes reads them from the schema.
func readShapes() shapes {
	c := compile()
	all := shapes{manifests: map[string]*shape{}}
	for s, v := range c.things {
		all.things[s] = shapeOf(v)
	}
	for definition, v := range c.manifests {
		all.manifests[definition] = shapeOf(v)
	}
	return all
}

func shapeOf(v cue.Value) *shape {
	s := &shape{}
	want := v.Attribute("want")
	s.want, _ = want.String(0)
	s.missing, _, _ = want.Lookup(1, "missing")
	s.private, _ = want.Flag(1, "private")
	v = withoutCount(v)
	switch v.IncompleteKind() {
	case cue.StringKind:
		s.kind = document.Text
	case cue.ListKind:
		s.kind = document.List
		s.elements = shapeOf(v.LookupPath(cue.MakePath(cue.AnyIndex)))
		s.elements.want, _, _ = want.Lookup(1, "each")
		s.elements.private = s.private
	case cue.StructKind:
		s.kind = document.Map
		s.addFields(v)
	}
	return s
}

func (s *shape) addFields(v cue.Value) {
	s.fields = map[string]*shape{}
	fields, err := v.Fields(cue.Optional(true), cue.Patterns(true))
	if err != nil {
		panic(fmt.Sprintf("schema: read schema.cue: %v", err))
	}
	for fields.Next() {
		if fields.Selector().ConstraintType() == cue.PatternConstraint {
			s.elements = shapeOf(fields.Value())
			continue
		}
		name := fields.Selector().Unquoted()
		s.names = append(s.names, name)
		s.fields[name] = shapeOf(fields.Value())
	}
	s.open = s.elements == nil && v.Allows(cue.AnyString)
}

// withoutCount returns the struct of a value that bounds the number of its
// fields too: as long as it has none, CUE says nothing of its kind.
func withoutCount(v cue.Value) cue.Value {
	op, args := cue.Dereference(v).Expr()
	if op != cue.AndOp {
		return v
	}
	for _, a := range args {
		if fields, err := a.Fields(cue.Optional(true)); err == nil && fields.Next() {
			return a
		}
	}
	return v
}

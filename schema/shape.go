package schema

import (
	_ "embed"
	"fmt"
	"slices"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
)

//go:embed schema.cue
var schemaCUE []byte

// CUE returns the schema: the one truth of what may be declared. The caller
// may keep and change the copy.
func CUE() []byte { return slices.Clone(schemaCUE) }

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
}

func compile() compiled {
	c := compiled{context: cuecontext.New()}
	root := c.context.CompileBytes(schemaCUE, cue.Filename("schema.cue"))
	for s, name := range definitions {
		c.things[s] = root.LookupPath(cue.ParsePath(name))
		if err := c.things[s].Err(); err != nil {
			panic(fmt.Sprintf("schema: compile schema.cue: %v", err))
		}
	}
	return c
}

// shape is what schema.cue says of a field, for telling people: the checks
// themselves are CUE's.
type shape struct {
	kind     kind // textKind: nothing but a text; nullKind: several scalars may stand here
	want     string
	missing  string // what to say when it is missing, where that has words of its own
	private  bool   // the value is never printed
	names    []string
	fields   map[string]*shape
	elements *shape // of a list, or of a mapping from names
}

// shapes reads them from the schema: one for each section.
func shapes() (all [sections]*shape) {
	c := compile()
	for s, v := range c.things {
		all[s] = shapeOf(v)
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
		s.kind = textKind
	case cue.ListKind:
		s.kind = listKind
		s.elements = shapeOf(v.LookupPath(cue.MakePath(cue.AnyIndex)))
		s.elements.want, _, _ = want.Lookup(1, "each")
		s.elements.private = s.private
	case cue.StructKind:
		s.kind = mapKind
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

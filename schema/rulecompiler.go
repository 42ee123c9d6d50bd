package schema

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/literal"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// ruleCompiler makes rules of the text of the schema. It knows only the constructs of CUE that the
// schema uses. Any other construct makes the part around it a nil rule, so CUE checks the values of
// that part.
type ruleCompiler struct {
	definitions map[string]ast.Expr // by name, with its "#"
	depth       int                 // of the references around an expression
}

// maxReferences limits the depth of references: a definition may refer to itself.
const maxReferences = 10

// newRuleCompiler reads the definitions. If there is anything else beside them, it knows none: it could
// change what they mean.
func newRuleCompiler(text []byte) ruleCompiler {
	file, err := parser.ParseFile("schema.cue", text)
	if err != nil {
		panic(fmt.Sprintf("schema: parse schema.cue and manifest.cue: %v", err))
	}
	c := ruleCompiler{definitions: map[string]ast.Expr{}}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.Package, *ast.ImportDecl:
		case *ast.Field:
			name, ok := d.Label.(*ast.Ident)
			if !ok || !strings.HasPrefix(name.Name, "#") || c.definitions[name.Name] != nil || d.Alias != nil || d.Constraint != token.ILLEGAL {
				return ruleCompiler{}
			}
			c.definitions[name.Name] = d.Value
		default:
			return ruleCompiler{}
		}
	}
	return c
}

// definition returns the rule of a definition for values of a raw type. With the type nil, the rule
// sets no value.
func (c ruleCompiler) definition(name string, raw reflect.Type) *rule {
	return c.rule(ast.NewIdent(name), raw)
}

// resolve follows references to definitions.
func (c ruleCompiler) resolve(e ast.Expr) (ruleCompiler, ast.Expr) {
	for c.depth < maxReferences {
		switch x := e.(type) {
		case *ast.ParenExpr:
			e = x.X
			continue
		case *ast.Ident:
			if referred := c.definitions[x.Name]; referred != nil {
				c.depth++
				e = referred
				continue
			}
		}
		return c, e
	}
	return c, nil
}

func (c ruleCompiler) rule(e ast.Expr, raw reflect.Type) *rule {
	if raw != nil && raw.Kind() == reflect.Pointer {
		raw = raw.Elem()
	}
	c, e = c.resolve(e)
	switch e := e.(type) {
	case *ast.StructLit:
		return c.mapping(e, raw)
	case *ast.ListLit:
		return c.list(e, raw)
	case *ast.BinaryExpr:
		if e.Op == token.AND {
			if r := c.counted(e, raw); r != nil {
				return r
			}
		}
	}
	return c.scalar(e)
}

// operands returns the operands of a chain of one operator.
func operands(e ast.Expr, op token.Token) []ast.Expr {
	if b, ok := e.(*ast.BinaryExpr); ok && b.Op == op {
		return append(operands(b.X, op), operands(b.Y, op)...)
	}
	return []ast.Expr{e}
}

// list returns the rule of [...element].
func (c ruleCompiler) list(e *ast.ListLit, raw reflect.Type) *rule {
	if len(e.Elts) != 1 {
		return nil
	}
	rest, ok := e.Elts[0].(*ast.Ellipsis)
	if !ok || rest.Type == nil {
		return nil
	}
	r := &rule{kind: document.List, most: maxElements}
	if r.elements = c.rule(rest.Type, elementOf(raw)); r.elements == nil {
		return nil
	}
	return r
}

func elementOf(raw reflect.Type) reflect.Type {
	if raw == nil {
		return nil
	}
	return raw.Elem()
}

// mapping returns the rule of a struct.
func (c ruleCompiler) mapping(e *ast.StructLit, raw reflect.Type) *rule {
	r := &rule{kind: document.Map, most: maxElements, index: map[string]int{}}
	for _, d := range e.Elts {
		switch d := d.(type) {
		case *ast.Ellipsis:
			if d.Type != nil {
				return nil
			}
			r.open = true
		case *ast.Field:
			if d.Alias != nil {
				return nil
			}
			if names, ok := d.Label.(*ast.ListLit); ok {
				if len(e.Elts) > 1 || len(names.Elts) != 1 || d.Constraint != token.ILLEGAL {
					return nil
				}
				return c.namedElements(names.Elts[0], d.Value, raw)
			}
			if !c.addField(r, d, raw) {
				return nil
			}
		default:
			return nil
		}
	}
	return r
}

// namedElements returns the rule of a struct {[name]: element}.
func (c ruleCompiler) namedElements(name, element ast.Expr, raw reflect.Type) *rule {
	r := &rule{kind: document.Map, most: maxElements, name: c.test(name), elements: c.rule(element, elementOf(raw))}
	if r.name == nil || r.elements == nil {
		return nil
	}
	return r
}

// addField adds a field of a struct. It returns false if the meaning of the struct is not known.
func (c ruleCompiler) addField(r *rule, d *ast.Field, raw reflect.Type) bool {
	name, isIdent, err := ast.LabelName(d.Label)
	_, twice := r.index[name]
	if err != nil || twice || isIdent && strings.HasPrefix(name, "#") || isIdent && strings.HasPrefix(name, "_") {
		return false
	}
	f := ruleField{target: -1, presence: map[token.Token]presence{token.OPTION: optional, token.NOT: required, token.ILLEGAL: defaulted}[d.Constraint]}
	var of reflect.Type
	if raw != nil {
		if field, ok := raw.FieldByNameFunc(func(s string) bool { return strings.EqualFold(s, name) }); ok {
			f.target, of = field.Index[0], field.Type
		}
	}
	f.rule = c.rule(d.Value, of)
	r.index[name] = len(r.fields)
	r.fields = append(r.fields, f)
	return true
}

// counted returns the rule of struct.MinFields(n) & struct.MaxFields(n) & {…}, with optional fields only.
func (c ruleCompiler) counted(e *ast.BinaryExpr, raw reflect.Type) *rule {
	all := operands(e, token.AND)
	r := c.rule(all[len(all)-1], raw)
	if r == nil || r.kind != document.Map || r.elements != nil || r.open {
		return nil
	}
	for _, f := range r.fields {
		if f.presence != optional {
			return nil
		}
	}
	for _, limit := range all[:len(all)-1] {
		call, ok := limit.(*ast.CallExpr)
		if !ok || len(call.Args) != 1 {
			return nil
		}
		n, ok := whole(constant(call.Args[0]))
		if !ok {
			return nil
		}
		switch structFunction(call.Fun) {
		case "MinFields":
			r.least = max(r.least, int(n))
		case "MaxFields":
			r.most = min(r.most, int(n))
		default:
			return nil
		}
	}
	return r
}

// structFunction returns the name of a function of CUE's package struct, "" for any other expression.
func structFunction(e ast.Expr) string {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, ok := s.X.(*ast.Ident)
	if !ok {
		return ""
	}
	from, ok := x.Node.(*ast.ImportSpec)
	if !ok || from.Path.Value != `"struct"` {
		return ""
	}
	name, _, _ := ast.LabelName(s.Sel)
	return name
}

// scalar returns the rule of a scalar: a disjunction, one operand of which may be the default.
func (c ruleCompiler) scalar(e ast.Expr) *rule {
	r := &rule{}
	var tests []test
	for _, x := range operands(e, token.OR) {
		if marked, ok := x.(*ast.UnaryExpr); ok && marked.Op == token.MUL {
			if r.preset != nil {
				return nil
			}
			x, r.preset = marked.X, constant(marked.X)
			if r.preset == nil {
				return nil
			}
		}
		t := c.test(x)
		if t == nil {
			return nil
		}
		tests = append(tests, t)
	}
	r.test = func(v *document.Value) bool {
		return slices.ContainsFunc(tests, func(t test) bool { return t(v) })
	}
	return r
}

// constant returns the value of a literal, nil if the expression is none.
func constant(e ast.Expr) *document.Value {
	l, ok := e.(*ast.BasicLit)
	if !ok {
		return nil
	}
	switch l.Kind {
	case token.STRING:
		if text, err := literal.Unquote(l.Value); err == nil {
			return &document.Value{Kind: document.Text, Text: text}
		}
	case token.INT:
		if n, err := strconv.ParseInt(l.Value, 10, 64); err == nil {
			return &document.Value{Kind: document.Number, Number: n}
		}
	case token.TRUE, token.FALSE:
		return &document.Value{Kind: document.Bool, Text: l.Value}
	}
	return nil
}

// whole returns the value of an integer.
func whole(v *document.Value) (int64, bool) {
	if v == nil || v.Kind != document.Number {
		return 0, false
	}
	n, is := v.Number.(int64)
	return n, is
}

// test returns the test of a scalar, nil if the expression has an unknown construct. The only numbers
// that a test accepts are integers.
func (c ruleCompiler) test(e ast.Expr) test {
	c, e = c.resolve(e)
	switch e := e.(type) {
	case *ast.Ident:
		return typeTest(e)
	case *ast.BasicLit:
		return equalTest(constant(e))
	case *ast.UnaryExpr:
		return boundTest(e.Op, constant(e.X))
	case *ast.BinaryExpr:
		x, y := c.test(e.X), c.test(e.Y)
		switch {
		case x == nil || y == nil:
		case e.Op == token.AND:
			return func(v *document.Value) bool { return x(v) && y(v) }
		case e.Op == token.OR:
			return func(v *document.Value) bool { return x(v) || y(v) }
		}
	}
	return nil
}

// typeTest returns the test of a type.
func typeTest(name *ast.Ident) test {
	if name.Node != nil {
		return nil // a field with this name
	}
	isText := func(v *document.Value) bool { return v.Kind == document.Text }
	isBool := func(v *document.Value) bool { return v.Kind == document.Bool }
	isWhole := func(v *document.Value) bool { _, is := whole(v); return is }
	switch name.Name {
	case "string":
		return isText
	case "bool":
		return isBool
	case "int", "number":
		return isWhole
	case "_":
		return func(v *document.Value) bool { return isText(v) || isBool(v) || isWhole(v) }
	}
	return nil
}

func equalTest(want *document.Value) test {
	if want == nil {
		return nil
	}
	if want.Kind == document.Number {
		return func(v *document.Value) bool { n, is := whole(v); return is && n == want.Number }
	}
	return func(v *document.Value) bool { return v.Kind == want.Kind && v.Text == want.Text }
}

// boundTest returns the test of >=n, <=n, =~"…" or !~"…".
func boundTest(op token.Token, bound *document.Value) test {
	limit, isWhole := whole(bound)
	switch {
	case bound == nil:
	case op == token.GEQ && isWhole:
		return func(v *document.Value) bool { n, is := whole(v); return is && n >= limit }
	case op == token.LEQ && isWhole:
		return func(v *document.Value) bool { n, is := whole(v); return is && n <= limit }
	case (op == token.MAT || op == token.NMAT) && bound.Kind == document.Text:
		if expression, err := regexp.Compile(bound.Text); err == nil {
			return func(v *document.Value) bool {
				return v.Kind == document.Text && expression.MatchString(v.Text) == (op == token.MAT)
			}
		}
	}
	return nil
}

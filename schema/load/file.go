package load

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/manifest"
	"github.com/seed-26586806/backing-image-manager/schema/sandbox"
)

// section is one of the three fields of a document.
type section uint8

const (
	settingsSection section = iota
	nodesSection
	imagesSection
	sections
)

var sectionNames = [sections]string{"settings", "nodes", "images"}

func (s section) String() string { return sectionNames[s] }

// key identifies what is defined once: an image, a node or a setting.
type key struct {
	section section
	name    string
}

// definition is the definition of an image, a node or a setting in a document.
type definition struct {
	key
	file        string         // path of the parsedFile that contains it
	kind        *manifest.Kind // nil in the native form
	declaration model.Declaration
	pos         document.Position // of the name
	// value is the value of the name in the native form. For a setting, it is a mapping with
	// only this field. For a manifest, it is the whole document.
	value   *document.Value
	sum     [sha256.Size]byte // of value
	checked *checked          // nil until it is validated
	// problems were found before the validation: by CUE in the user's file, or in other documents on which
	// the definition depends. They have positions, and replace the problems of the validation.
	problems []document.Problem
	// unread is the problem of a file that cannot be read and may change the definition; nil: none.
	unread *document.Problem
}

// path returns the path of the definition's value in the native form.
func (d *definition) path() document.Path {
	if d.section == settingsSection {
		return document.Path{d.section.String()}
	}
	return document.Path{d.section.String(), d.name}
}

// place adds the position to a problem whose path is relative to the definition's document.
func (d *definition) place(p document.Problem) document.Problem {
	if d.kind != nil {
		return p.Placed(nil, d.value, d.pos)
	}
	return p.Placed(d.path(), d.value, d.pos)
}

// placeNative adds the position to a problem whose path is relative to the native form.
func (d *definition) placeNative(p document.Problem) document.Problem {
	if d.kind != nil {
		p = d.checked.conversion.ToManifest(p)
	}
	return d.place(p)
}

// native returns the definition in the native form.
func (d *definition) native() *document.Value {
	if d.kind != nil {
		return d.checked.conversion.Value
	}
	return d.value
}

// allProblems returns the problems of the definition, with positions.
func (d *definition) allProblems() []document.Problem {
	if len(d.problems) > 0 {
		return d.problems
	}
	problems := make([]document.Problem, 0, len(d.checked.problems))
	for _, p := range d.checked.problems {
		problems = append(problems, d.place(p))
	}
	return problems
}

// duplicate returns the problem that d is a second definition of a name. The argument first is the
// other definition.
func (d *definition) duplicate(first *definition) document.Problem {
	at := document.Path{d.section.String(), d.name}
	p := document.Problem{Position: d.pos, Path: at, Message: "is defined twice", Hint: "keep one of them", Also: first.pos}
	if d.kind != nil {
		p.Path, p.Message = document.Path{"metadata", "name"}, at.String()+" is defined twice"
	}
	return p
}

// parsedFile is what a file, or a CUE package of several files, declares. A Loader keeps it
// as long as the content does not change.
type parsedFile struct {
	manifest.File
	native   []*definition // definitions in the native form
	accepted bool          // this program reads at least one of its documents
	empty    bool          // it contains nothing, not even a comment
	// transient is true if another attempt to evaluate it may have another result.
	transient bool
	cost      cost

	// While it is parsed:
	data     []byte          // of the file; nil if its lines are unknown
	lines    []int           // the offset of each line of data; nil: not known yet
	limits   document.Limits // Search is what is left of it for the whole load
	embedded bool            // the document is in a ConfigMap
	weight   int             // of the files in ConfigMaps
}

// parse splits a YAML or JSON file into definitions. The argument values is the document.Weight of the file.
// parse adds to searched the number of bytes that it parsed again to find the lines of errors.
func parse(f configdir.File, values int, searched *int) *parsedFile {
	p := &parsedFile{File: manifest.File{Path: f.Path}, cost: cost{valueCost: values}}
	if !p.readable(f) {
		return p
	}
	p.limits = document.Limits{Aliased: document.MaxAliased, Search: maxSearched - *searched}
	p.empty = isEmpty(f)
	p.data = bytes.TrimPrefix(f.Data, []byte("\ufeff"))
	docs, problem := p.documents(path.Ext(f.Path), p.data)
	for _, doc := range docs {
		p.addDocument(doc)
	}
	if problem != nil {
		p.AddProblem(problem.Position, nil, problem.Message, problem.Hint)
	}
	*searched = maxSearched - p.limits.Search
	p.data, p.lines = nil, nil
	return p.measured()
}

// measured computes the cost of a file that was parsed. If the cost exceeds the limit of a single file, it returns a file that
// declares nothing.
func (p *parsedFile) measured() *parsedFile {
	p.cost[valueCost] = max(p.cost[valueCost], p.weight) + document.MaxAliased - max(0, p.limits.Aliased)
	p.cost[definitionCost] = len(p.native) + len(p.Definitions) + len(p.References) + p.Combined()
	if what := p.cost.exhausted(fileLimit); what >= 0 {
		return p.rejected(what)
	}
	return p
}

// isEmpty reports whether a file contains nothing, not even a comment.
func isEmpty(f configdir.File) bool { return len(bytes.TrimSpace(f.Data)) == 0 }

// documents parses the documents of YAML or JSON text. If there is a problem, it also
// returns the documents of YAML before it.
func (p *parsedFile) documents(ext string, data []byte) ([]*document.Value, *document.Problem) {
	if ext != ".json" {
		return document.ParseYAML(p.Path, data, &p.limits)
	}
	doc, problem := document.ParseJSON(p.Path, data)
	if problem != nil {
		return nil, problem
	}
	return []*document.Value{doc}, nil
}

// readable reports whether the file can be parsed. If not, it adds a problem.
func (p *parsedFile) readable(f configdir.File) bool {
	pos := document.Position{File: f.Path}
	switch {
	case f.Err != nil:
		p.AddProblem(pos, nil, f.Err.Error(), "")
	case len(f.Data) > configdir.MaxFile:
		p.AddProblem(pos, nil, configdir.SizeError(int64(len(f.Data))).Error(), "declare images here, do not store them")
	case bytes.IndexByte(f.Data, 0) >= 0:
		p.AddProblem(document.PositionOf(f.Path, f.Data, bytes.IndexByte(f.Data, 0)), nil, "contains a zero byte: not a text file", "save it as UTF-8")
	case !utf8.Valid(f.Data):
		p.AddProblem(document.PositionOf(f.Path, f.Data, invalidUTF8(f.Data)), nil, "is not UTF-8", "save it as UTF-8")
	default:
		return true
	}
	return false
}

// invalidUTF8 returns the offset of the first byte that is not UTF-8.
func invalidUTF8(data []byte) int {
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(data)
}

// addDocument adds what a document declares.
func (p *parsedFile) addDocument(doc *document.Value) {
	if p.cost[documentCost]++; p.cost[documentCost] > maxDocuments {
		return // measured rejects the file
	}
	if doc.Kind == document.Null {
		return
	}
	if doc.Kind != document.Map {
		p.AddProblem(doc.Pos, nil, "a document must be a mapping, not "+doc.Kind.String(), "begin with settings, nodes or images")
		return
	}
	if manifest.Is(doc) {
		p.addManifest(doc)
		return
	}
	if missing, half := halfManifest(doc); half {
		p.AddProblem(doc.Pos, document.Path{missing}, "is missing", "a manifest has both apiVersion and kind")
		return
	}
	seen := make(map[string]bool, len(doc.Fields))
	for _, f := range doc.Fields {
		if seen[f.Name] {
			p.AddProblem(f.Pos, document.Path{f.Name}, "duplicate field", "merge the two fields")
			continue
		}
		seen[f.Name] = true
		p.addTopField(f)
	}
}

// halfManifest returns which of apiVersion and kind is missing in a document that
// has other fields of a manifest.
func halfManifest(doc *document.Value) (missing string, half bool) {
	switch {
	case doc.Field("metadata") == nil && doc.Field("spec") == nil && doc.Field("parameters") == nil:
		return "", false
	case doc.Field("apiVersion") != nil:
		return "kind", true
	case doc.Field("kind") != nil:
		return "apiVersion", true
	}
	return "", false
}

func (p *parsedFile) addManifest(doc *document.Value) {
	kind, isList, problem := manifest.Detect(doc)
	switch {
	case problem != nil:
		p.AddProblem(problem.Position, problem.Path, problem.Message, problem.Hint)
	case kind == nil:
		p.SkipForeign(doc)
	case kind == manifest.List || isList:
		p.addList(kind, isList, doc)
	case kind == manifest.ConfigMap:
		p.addConfigMap(doc)
	default:
		read := len(p.Read)
		p.Add(kind, doc)
		p.accepted = p.accepted || len(p.Read) > read
	}
}

func (p *parsedFile) addList(kind *manifest.Kind, isList bool, doc *document.Value) {
	items, problem := manifest.Items(kind, isList, doc)
	if problem != nil {
		p.AddProblem(problem.Position, problem.Path, problem.Message, problem.Hint)
		return
	}
	if len(items) == 0 {
		p.SkipEmptyList(doc)
	}
	for _, item := range items {
		if item.Kind == document.Null { // of a list that was truncated
			p.AddProblem(item.Pos, document.Path{"items"}, "has an empty item", "remove it")
			continue
		}
		p.addDocument(item)
	}
}

func (p *parsedFile) addTopField(f document.Field) {
	i := slices.Index(sectionNames[:], f.Name)
	if i < 0 {
		p.AddProblem(f.Pos, document.Path{f.Name}, "unknown field", topFieldHint(f.Name))
		return
	}
	p.accepted = true
	switch f.Value.Kind {
	case document.Map:
		p.addSection(section(i), f.Value)
	case document.Null:
		p.AddProblem(f.Pos, document.Path{f.Name}, "is empty", fmt.Sprintf("remove it, or write \"%s: {}\"", f.Name))
	default:
		hint := ""
		if f.Value.Kind == document.List && f.Name != sectionNames[settingsSection] {
			hint = "write \"NAME: {…}\" in place of \"- name: NAME\""
		}
		p.AddProblem(f.Value.Pos, document.Path{f.Name}, "must be a mapping, not "+f.Value.Kind.String(), hint)
	}
}

func topFieldHint(name string) string {
	if near, ok := document.Nearest(name, sectionNames[:]); ok {
		return fmt.Sprintf("did you mean %q?", near)
	}
	if name == "apiVersion" || name == "kind" {
		return "a manifest has both apiVersion and kind"
	}
	return "known fields: " + strings.Join(sectionNames[:], ", ")
}

func (p *parsedFile) addSection(s section, v *document.Value) {
	for _, f := range v.Fields {
		if len(p.native) > maxDefinitions {
			return // measured rejects the file
		}
		d := &definition{key: key{s, f.Name}, file: p.Path, pos: f.Pos, value: f.Value,
			declaration: model.Declaration{File: p.Path, ConfigMap: p.ConfigMap}}
		if s == settingsSection {
			d.value = &document.Value{Kind: document.Map, Fields: []document.Field{f}, Pos: f.Pos}
		}
		d.sum = d.value.Sum()
		p.native = append(p.native, d)
	}
}

// fromManifest returns the definition of a manifest.
func fromManifest(file string, m *manifest.Definition) *definition {
	d := &definition{key: key{section(slices.Index(sectionNames[:], m.Section)), m.Name}, file: file, kind: m.Kind,
		declaration: m.Declaration, pos: m.Pos, value: m.Doc, sum: m.Doc.Sum(), problems: m.Causes, unread: m.Unread}
	if len(m.Problems) > 0 {
		d.checked = &checked{problems: m.Problems}
	}
	return d
}

// fromCUE splits the result of evaluating .cue files into definitions.
func fromCUE(u *sandbox.Unit, r sandbox.Result) *parsedFile {
	p := &parsedFile{File: manifest.File{Path: u.Origin}, transient: r.Transient, cost: cost{valueCost: r.Values, textCost: r.Text}}
	p.limits = document.Limits{Aliased: document.MaxAliased}
	// A file that contains nothing has no package clause, so it is a unit of its own.
	p.empty = len(u.Files) == 1 && isEmpty(u.Files[0])
	if r.Document != nil {
		p.addDocument(r.Document)
	}
	if q := p.measured(); q != p {
		return q
	}
	for _, problem := range r.Problems {
		if r.Document == nil { // nothing was evaluated, so the problem is not only about one definition
			p.Problems = append(p.Problems, problem)
			continue
		}
		p.addCUEProblem(problem)
	}
	return p
}

// addCUEProblem adds an error of CUE to the definition that the error is about. If the file does not have this definition,
// addCUEProblem adds a broken definition. An error about no definition becomes a problem of the file.
func (p *parsedFile) addCUEProblem(problem document.Problem) {
	var s int
	if len(problem.Path) > 1 {
		s = slices.Index(sectionNames[:], problem.Path[0])
	}
	if len(problem.Path) < 2 || s < 0 {
		p.Problems = append(p.Problems, problem)
		return
	}
	k := key{section(s), problem.Path[1]}
	for _, d := range p.native {
		if d.key == k {
			d.problems = append(d.problems, problem)
			return
		}
	}
	p.accepted = true
	p.native = append(p.native, &definition{key: k, file: p.Path, declaration: model.Declaration{File: p.Path}, pos: problem.Position,
		value: &document.Value{}, checked: &checked{}, problems: []document.Problem{problem}})
}

// checkName returns why a definition cannot have its name.
func checkName(k key) error {
	switch k.section {
	case nodesSection:
		return checkNodeName(k.name)
	case imagesSection:
		return ident.CheckName(k.name)
	}
	return nil
}

package schema

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/sandbox"
)

// key names a thing that is defined in one place: an image, a node, a setting.
type key struct {
	section section
	name    string
}

// thing is the definition of an image, a node or a setting in a document.
type thing struct {
	key
	form   *form  // nil where it is defined natively
	origin string // the content that it is of
	pos    document.Position
	// value of a setting is a mapping with that one field; of a manifest, all of it.
	value   *document.Value
	sum     [sha256.Size]byte // of value
	verdict *verdict          // nil until it is judged
	// problems are what its own file says against it already: it was not whole
	// when it was judged.
	problems []document.Problem
	// unread is why it may say something else, if only all files could be read.
	unread *document.Problem
}

// prefix is the path to the thing's value.
func (t *thing) prefix() document.Path {
	if t.section == settingsSection {
		return document.Path{t.section.String()}
	}
	return document.Path{t.section.String(), t.name}
}

// problem places a fault that is in the words of the thing's document.
func (t *thing) problem(f document.Problem) document.Problem {
	if t.form != nil {
		return f.Placed(nil, t.value, t.pos)
	}
	return f.Placed(t.prefix(), t.value, t.pos)
}

// found places a fault with a native path.
func (t *thing) found(f document.Problem) document.Problem {
	if t.form != nil {
		f = t.verdict.translation.told(f)
	}
	return t.problem(f)
}

// native is what the thing says natively.
func (t *thing) native() *document.Value {
	if t.form != nil {
		return t.verdict.translation.value
	}
	return t.value
}

// whole is a problem of the thing by its name.
func (t *thing) whole(msg, hint string) document.Problem {
	at := document.Path{t.section.String(), t.name}
	if t.form != nil {
		at, msg = document.Path{"metadata", "name"}, at.String()+" "+msg
	}
	return document.Problem{Position: t.pos, Path: at, Message: msg, Hint: hint}
}

// content is what a file, or a CUE package of several files, says.
type content struct {
	origin string // the path of the file, or of the package
	// problems are those of the documents: while there are any, it is not known
	// what else the file would have said.
	problems  []document.Problem
	skipped   []Skipped
	manifests []Document // that were read
	ours      bool       // a document of ours is among them
	empty     bool       // it has not even a comment
	things    []*thing
	claims    []*thing // that are not definitions where there is one
	snapshots
	// alone are mistakes that hold nothing back by themselves.
	alone []document.Problem

	// While it is read:
	data     []byte // of the file, nil where it has no lines to find again
	expanded int    // bytes of files within manifests
	aliased  int    // values that aliases repeated
	embedded bool   // in such a file
}

// maxProblems bounds what is told of one file, and of one thing in it.
const maxProblems = 100

func (c *content) problem(pos document.Position, at document.Path, msg, hint string) {
	if len(c.problems) == maxProblems {
		return
	}
	c.problems = append(c.problems, document.Problem{Position: pos, Path: at, Message: msg, Hint: hint})
}

// read splits a file of YAML or JSON into things.
func read(f configdir.File) *content {
	c := &content{origin: f.Path}
	if !c.readable(f) {
		return c
	}
	c.empty = len(bytes.TrimSpace(f.Data)) == 0
	c.data = bytes.TrimPrefix(f.Data, []byte("\ufeff"))
	docs, err := c.parse(path.Ext(f.Path), c.data)
	for _, d := range docs {
		c.document(d)
	}
	if err != nil {
		c.problem(err.Position, nil, err.Message, err.Hint)
	}
	c.data = nil
	return c
}

// parse reads the documents of YAML or JSON. What comes before a mistake in YAML
// is returned with it.
func (c *content) parse(ext string, data []byte) ([]*document.Value, *document.Problem) {
	if ext != ".json" {
		return document.ParseYAML(c.origin, data, &c.aliased)
	}
	doc, p := document.ParseJSON(c.origin, data)
	if p != nil {
		return nil, p
	}
	return []*document.Value{doc}, nil
}

// readable finds what no parser should see.
func (c *content) readable(f configdir.File) bool {
	at := document.Position{File: f.Path}
	switch {
	case f.Err != nil:
		c.problem(at, nil, f.Err.Error(), "")
	case len(f.Data) > configdir.MaxFile:
		c.problem(at, nil, configdir.SizeError(int64(len(f.Data))).Error(), "images do not belong here, only their declarations")
	case bytes.IndexByte(f.Data, 0) >= 0:
		c.problem(document.PositionOf(f.Path, f.Data, bytes.IndexByte(f.Data, 0)), nil, "holds a zero byte: this is no text", "")
	case !utf8.Valid(f.Data):
		c.problem(document.PositionOf(f.Path, f.Data, invalidUTF8(f.Data)), nil, "is not UTF-8", "save it as UTF-8")
	default:
		return true
	}
	return false
}

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

func (c *content) document(doc *document.Value) {
	if doc.Kind == document.Null {
		return
	}
	if doc.Kind != document.Map {
		c.problem(doc.Pos, nil, "a document has to be a mapping, not "+doc.Kind.String(), "begin with settings, nodes or images")
		return
	}
	if doc.Field("apiVersion") != nil && doc.Field("kind") != nil {
		c.manifest(doc)
		return
	}
	if missing := halfManifest(doc); missing != "" {
		c.problem(doc.Pos, document.Path{missing}, "is missing", "a document of Kubernetes has both apiVersion and kind")
		return
	}
	seen := make(map[string]bool, len(doc.Fields))
	for _, f := range doc.Fields {
		if seen[f.Name] {
			c.problem(f.Pos, document.Path{f.Name}, "is given twice in one document", "put both under one")
			continue
		}
		seen[f.Name] = true
		c.topField(f)
	}
}

func (c *content) topField(f document.Field) {
	i := slices.Index(sectionNames[:], f.Name)
	if i < 0 {
		c.problem(f.Pos, document.Path{f.Name}, "unknown field", topHint(f.Name))
		return
	}
	c.ours = true
	switch f.Value.Kind {
	case document.Map:
		c.section(section(i), f.Value)
	case document.Null:
		c.problem(f.Pos, document.Path{f.Name}, "has nothing in it", fmt.Sprintf("write \"%s: {}\" if that is meant", f.Name))
	default:
		hint := ""
		if f.Value.Kind == document.List && f.Name != sectionNames[settingsSection] {
			hint = "write \"NAME: {…}\" for each, where you have \"- name: NAME\""
		}
		c.problem(f.Value.Pos, document.Path{f.Name}, "has to be a mapping, not "+f.Value.Kind.String(), hint)
	}
}

func topHint(name string) string {
	if near, ok := document.Nearest(name, sectionNames[:]); ok {
		return fmt.Sprintf("did you mean %q?", near)
	}
	if name == "apiVersion" || name == "kind" {
		return "a document of Kubernetes has both apiVersion and kind"
	}
	return "known here: " + strings.Join(sectionNames[:], ", ")
}

func (c *content) section(s section, v *document.Value) {
	for _, f := range v.Fields {
		t := &thing{key: key{s, f.Name}, origin: c.origin, pos: f.Pos, value: f.Value}
		if s == settingsSection {
			t.value = &document.Value{Kind: document.Map, Fields: []document.Field{f}, Pos: f.Pos}
		}
		t.sum = t.value.Sum()
		c.things = append(c.things, t)
	}
}

func checkThingName(k key) error {
	switch k.section {
	case nodesSection:
		return checkPlaceName(k.name)
	case imagesSection:
		return disk.CheckName(k.name)
	}
	return nil
}

// contentOf splits the result of evaluating .cue files into things, as the content of any
// other file.
func contentOf(u *sandbox.Unit, r sandbox.Result) *content {
	c := &content{origin: u.Origin}
	if r.Document != nil {
		c.document(r.Document)
	}
	for _, p := range r.Problems {
		c.cueProblem(p)
	}
	return c
}

// cueProblem adds an error of CUE to the thing that it is about, or else to the file.
func (c *content) cueProblem(p document.Problem) {
	var s int
	if len(p.Path) > 1 {
		s = slices.Index(sectionNames[:], p.Path[0])
	}
	if len(p.Path) < 2 || s < 0 {
		c.problems = append(c.problems, p)
		return
	}
	k := key{section(s), p.Path[1]}
	for _, t := range c.things {
		if t.key == k {
			t.problems = append(t.problems, p)
			return
		}
	}
	c.ours = true
	c.things = append(c.things, &thing{key: k, origin: c.origin, pos: p.Position, value: &document.Value{},
		verdict: &verdict{}, problems: []document.Problem{p}})
}

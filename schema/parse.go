package schema

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
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
	pos    Position
	// value of a setting is a mapping with that one field; of a manifest, all of it.
	value   *value
	sum     [sha256.Size]byte // of value
	verdict *verdict          // nil until it is judged
	// problems are what its own file says against it already: it was not whole
	// when it was judged.
	problems []Problem
	// unread is why it may say something else, if only all files could be read.
	unread *Problem
}

// prefix is the path to the thing's value.
func (t *thing) prefix() fieldPath {
	if t.section == settingsSection {
		return fieldPath{t.section.String()}
	}
	return fieldPath{t.section.String(), t.name}
}

// problem places a fault that is in the words of the thing's document.
func (t *thing) problem(f fault) Problem {
	if t.form != nil {
		return f.problem(nil, t.value, t.pos)
	}
	return f.problem(t.prefix(), t.value, t.pos)
}

// found places a fault with a native path.
func (t *thing) found(f fault) Problem {
	if t.form != nil {
		f = t.verdict.translation.told(f)
	}
	return t.problem(f)
}

// native is what the thing says natively.
func (t *thing) native() *value {
	if t.form != nil {
		return t.verdict.translation.value
	}
	return t.value
}

// whole is a problem of the thing by its name.
func (t *thing) whole(msg, hint string) Problem {
	at := fieldPath{t.section.String(), t.name}
	if t.form != nil {
		at, msg = fieldPath{"metadata", "name"}, at.String()+" "+msg
	}
	return Problem{Position: t.pos, Path: at.String(), Message: msg, Hint: hint}
}

// content is what a file, or a CUE package of several files, says.
type content struct {
	origin string // the path of the file, or of the package
	// problems are those of the documents: while there are any, it is not known
	// what else the file would have said.
	problems  []Problem
	skipped   []Skipped
	manifests []Document // that were read
	ours      bool       // a document of ours is among them
	empty     bool       // it has not even a comment
	things    []*thing
	claims    []*thing // that are not definitions where there is one
	snapshots
	// alone are mistakes that hold nothing back by themselves.
	alone []Problem

	// While it is read:
	data     []byte // of the file, nil where it has no lines to find again
	expanded int    // bytes of files within manifests
	aliased  int    // values that aliases repeated
	embedded bool   // in such a file
}

// maxProblems bounds what is told of one file, and of one thing in it.
const maxProblems = 100

func (c *content) problem(pos Position, at fieldPath, msg, hint string) {
	if len(c.problems) == maxProblems {
		return
	}
	c.problems = append(c.problems, Problem{Position: pos, Path: at.String(), Message: msg, Hint: hint})
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
		c.problem(err.pos, nil, err.msg, err.hint)
	}
	c.data = nil
	return c
}

// parse reads the documents of YAML or JSON. What comes before a mistake in YAML
// is returned with it.
func (c *content) parse(ext string, data []byte) ([]*value, *parseError) {
	var docs []*value
	var err error
	if ext == ".json" {
		var doc *value
		if doc, err = parseJSON(c.origin, data); err == nil {
			docs = append(docs, doc)
		}
	} else {
		docs, err = parseYAML(c.origin, data, &c.aliased)
	}
	e, _ := errors.AsType[*parseError](err)
	return docs, e
}

// readable finds what no parser should see.
func (c *content) readable(f configdir.File) bool {
	at := Position{File: f.Path}
	switch {
	case f.Err != nil:
		c.problem(at, nil, f.Err.Error(), "")
	case len(f.Data) > configdir.MaxFile:
		c.problem(at, nil, configdir.SizeError(int64(len(f.Data))).Error(), "images do not belong here, only their declarations")
	case bytes.IndexByte(f.Data, 0) >= 0:
		c.problem(lineOf(f.Path, f.Data, bytes.IndexByte(f.Data, 0)), nil, "holds a zero byte: this is no text", "")
	case !utf8.Valid(f.Data):
		c.problem(lineOf(f.Path, f.Data, invalidUTF8(f.Data)), nil, "is not UTF-8", "save it as UTF-8")
	default:
		return true
	}
	return false
}

// lineOf returns the place of the byte at an offset.
func lineOf(file string, data []byte, offset int) Position {
	before := data[:offset]
	return Position{File: file, Line: 1 + bytes.Count(before, []byte("\n")), Column: offset - bytes.LastIndexByte(before, '\n')}
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

func (c *content) document(doc *value) {
	if doc.kind == nullKind {
		return
	}
	if doc.kind != mapKind {
		c.problem(doc.pos, nil, "a document has to be a mapping, not "+doc.kind.describe(), "begin with settings, nodes or images")
		return
	}
	if doc.child("apiVersion") != nil && doc.child("kind") != nil {
		c.manifest(doc)
		return
	}
	if missing := halfManifest(doc); missing != "" {
		c.problem(doc.pos, fieldPath{missing}, "is missing", "a document of Kubernetes has both apiVersion and kind")
		return
	}
	seen := make(map[string]bool, len(doc.fields))
	for _, f := range doc.fields {
		if seen[f.name] {
			c.problem(f.pos, fieldPath{f.name}, "is given twice in one document", "put both under one")
			continue
		}
		seen[f.name] = true
		c.topField(f)
	}
}

func (c *content) topField(f field) {
	i := slices.Index(sectionNames[:], f.name)
	if i < 0 {
		c.problem(f.pos, fieldPath{f.name}, "unknown field", topHint(f.name))
		return
	}
	c.ours = true
	switch f.value.kind {
	case mapKind:
		c.section(section(i), f.value)
	case nullKind:
		c.problem(f.pos, fieldPath{f.name}, "has nothing in it", fmt.Sprintf("write \"%s: {}\" if that is meant", f.name))
	default:
		hint := ""
		if f.value.kind == listKind && f.name != sectionNames[settingsSection] {
			hint = "write \"NAME: {…}\" for each, where you have \"- name: NAME\""
		}
		c.problem(f.value.pos, fieldPath{f.name}, "has to be a mapping, not "+f.value.kind.describe(), hint)
	}
}

func topHint(name string) string {
	if near := nearest(name, sectionNames[:]); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	if name == "apiVersion" || name == "kind" {
		return "a document of Kubernetes has both apiVersion and kind"
	}
	return "known here: " + strings.Join(sectionNames[:], ", ")
}

func (c *content) section(s section, v *value) {
	for _, f := range v.fields {
		t := &thing{key: key{s, f.name}, origin: c.origin, pos: f.pos, value: f.value}
		if s == settingsSection {
			t.value = &value{kind: mapKind, fields: []field{f}, pos: f.pos}
		}
		t.sum = t.value.sum()
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

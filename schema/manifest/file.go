package manifest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// The sections of the native form.
const (
	settingsSection = "settings"
	nodesSection    = "nodes"
	imagesSection   = "images"
)

// File collects what the manifests of one file declare.
type File struct {
	Path        string
	Definitions []*Definition
	References  []*Definition     // each defines its image only if no other document does
	Read        []schema.Manifest // manifests that were read
	Skipped     []schema.Skipped
	// Problems has the problems of whole documents. With any problem, it is unknown what else
	// the file would declare.
	Problems []document.Problem
	// ConfigMap is the name of the ConfigMap that contains the documents which are being
	// read, or "".
	ConfigMap string

	classes  []*snapshotClass
	combined []manifest    // what Resolve combines with other manifests
	withheld []*Definition // BackingImages that are skipped because of their data engine
}

// of returns the manifests of some kinds that Resolve combines with others.
func (f *File) of(kinds ...*Kind) []manifest {
	return slices.DeleteFunc(slices.Clone(f.combined), func(m manifest) bool { return !slices.Contains(kinds, m.kind) })
}

// Definition is a definition of an image, a node or a setting by a manifest, or a
// reference to an image.
type Definition struct {
	Kind    *Kind
	Section string            // of the native form: settings, nodes or images
	Name    string            // in that section
	Pos     document.Position // of the name in the manifest
	Doc     *document.Value   // for a VolumeSnapshot with its class and its claim as first fields
	// Declaration identifies the document in the record of a copy.
	Declaration model.Declaration
	// Problems are relative to Doc.
	Problems []document.Problem
	// Causes are problems of other documents on which the definition depends.
	Causes []document.Problem
	// Unread is the problem of a file that cannot be read and may change the definition; nil: none.
	Unread *document.Problem
}

// manifest is a document of a known kind.
type manifest struct {
	kind      *Kind
	doc       *document.Value
	name      string            // metadata.name
	pos       document.Position // of the name
	configMap string            // name of the ConfigMap around the document; "": none
}

var namePath = document.Path{"metadata", "name"}

// path returns the path of fields whose names contain no dots.
func path(text string) document.Path { return strings.Split(text, ".") }

// Add reads a manifest of a kind that contains no other documents.
func (f *File) Add(kind *Kind, doc *document.Value) {
	doc.DropNulls()
	kind.read(f, manifest{kind: kind, doc: doc, name: doc.TextAt(namePath...), pos: doc.Pos, configMap: f.ConfigMap})
}

// maxProblems limits the problems of one file.
const maxProblems = 100

// AddProblem adds a problem that hides what a document declares.
func (f *File) AddProblem(pos document.Position, at document.Path, message, hint string) {
	if len(f.Problems) < maxProblems {
		f.Problems = append(f.Problems, document.Problem{Position: pos, Path: at, Message: message, Hint: hint})
	}
}

// named returns manifest m with the position of its name. If the name is missing or is not a
// string, named adds a problem and returns false.
func (f *File) named(m manifest) (manifest, bool) {
	name, pos := m.doc.Find(namePath, m.doc.Pos)
	switch {
	case name == nil && m.doc.Field("name") != nil:
		f.AddProblem(m.doc.Field("name").Pos, namePath, "is missing", "\"name\" belongs in \"metadata\": indent it")
	case name == nil:
		f.AddProblem(pos, namePath, "is missing", "a manifest needs a name")
	case name.Kind != document.Text:
		hint := ""
		if name.IsScalar() {
			hint = fmt.Sprintf("quote it: %q", document.Printable(name.Text))
		}
		f.AddProblem(name.Pos, namePath, "must be a string, not "+name.Kind.String(), hint)
	default:
		m.pos = name.Pos
		return m, true
	}
	return m, false
}

// define adds the definition of a name in a section by manifest m.
func (f *File) define(m manifest, section, name string) *Definition {
	d := f.definition(m, section, name, namePath)
	f.Definitions = append(f.Definitions, d)
	return d
}

// refer adds a reference to an image.
func (f *File) refer(m manifest, image string) *Definition {
	d := f.definition(m, imagesSection, image, m.kind.ImagePath)
	f.References = append(f.References, d)
	return d
}

func (f *File) definition(m manifest, section, name string, at document.Path) *Definition {
	f.AddRead(m.doc)
	d := &Definition{Kind: m.kind, Section: section, Name: name, Pos: m.pos, Doc: m.doc,
		Declaration: model.Declaration{File: f.Path, Kind: m.kind.Name, Name: m.name, ConfigMap: m.configMap}}
	if section == imagesSection {
		if err := ident.CheckName(name); err != nil {
			d.Problems = []document.Problem{{Path: at, Message: err.Error()}}
		}
	}
	return d
}

// AddRead adds a document to those that were read.
func (f *File) AddRead(doc *document.Value) { f.Read = append(f.Read, describe(doc)) }

func describe(doc *document.Value) schema.Manifest {
	text := func(path ...string) string { return document.Printable(doc.TextAt(path...)) }
	return schema.Manifest{Position: doc.Pos, APIVersion: text("apiVersion"), Kind: text("kind"), Name: text(namePath...)}
}

// Skip adds a document of a known kind that declares nothing here, with the reason.
func (f *File) Skip(doc *document.Value, why string) *schema.Skipped {
	unnamed := doc.TextAt(namePath...) == "" && doc.TextAt("metadata", "generateName") == ""
	malformed := unnamed || isTruncated(doc) || hasSection(doc) || hasRepeatedFields(doc)
	f.Skipped = append(f.Skipped, schema.Skipped{Manifest: describe(doc), Why: why, Origin: f.Path, Sum: doc.Sum(), Malformed: malformed})
	return &f.Skipped[len(f.Skipped)-1]
}

// withhold is like Skip for a document of an image without a file in the cluster.
func (f *File) withhold(doc *document.Value, why, image string) {
	s := f.Skip(doc, why)
	s.Image, s.Withheld = image, true
}

// SkipEmptyList adds a list without items. It declares nothing, and that is certain.
func (f *File) SkipEmptyList(doc *document.Value) { f.Skip(doc, "has no items").Malformed = false }

// SkipForeign adds a document of a kind that this program never reads.
func (f *File) SkipForeign(doc *document.Value) {
	s := f.Skip(doc, notRead)
	truncated := len(doc.Fields) == 2 // apiVersion and kind: the file may end within them
	s.Foreign, s.Malformed = true, truncated || hasSection(doc) || hasRepeatedFields(doc)
}

// isTruncated reports whether the file may end within a document: it has nothing after its
// metadata, or a word in place of a mapping. Such a file may have declared more.
func isTruncated(doc *document.Value) bool {
	content := false
	for _, f := range doc.Fields {
		content = content || !slices.Contains([]string{"apiVersion", "kind", "metadata"}, f.Name)
		if slices.Contains([]string{"spec", "parameters", "data"}, f.Name) && f.Value.IsScalar() {
			return true
		}
	}
	return !content
}

// hasSection reports whether a document has a section of the native form.
func hasSection(doc *document.Value) bool {
	return doc.Field(settingsSection) != nil || doc.Field(nodesSection) != nil || doc.Field(imagesSection) != nil
}

func hasRepeatedFields(v *document.Value) bool {
	seen := make(map[string]bool, len(v.Fields))
	for _, f := range v.Fields {
		if seen[f.Name] || hasRepeatedFields(f.Value) {
			return true
		}
		seen[f.Name] = true
	}
	return slices.ContainsFunc(v.Items, hasRepeatedFields)
}

package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// form is a kind of manifest of Kubernetes that is configuration as it is.
type form struct {
	group    string
	versions []string // the first one is proposed
	kind     string
	// definition is where manifests.cue describes it, "" where what is in the
	// manifest is taken apart as it is read: see list and configMap.
	definition string
	// common: other programs have kinds of that name.
	common bool
	// claims: a manifest of it need not be the definition of the image that it
	// names at imageAt.
	claims  bool
	imageAt document.Path
	// take reads a manifest that may be of another program all the same, or that says
	// nothing by itself.
	take func(c *content, f *form, doc *document.Value)
	// read adds to content what a manifest of the kind declares, or skips it.
	read func(*content, manifest)
	// translate says natively what a manifest says that manifests.cue accepts.
	translate func(*translation)
}

// forms are all kinds that are read.
var forms = []*form{
	{group: "", versions: []string{"v1"}, kind: "List", common: true},
	{group: "", versions: []string{"v1"}, kind: "ConfigMap"},
	backingImageForm,
	nodeForm,
	settingForm,
	storageClassForm,
	snapshotClassForm,
	snapshotForm,
	volumeClaimForm,
	snapshotContentForm,
}

var longhornVersions = []string{"v1beta2", "v1beta1"}

// apiVersion is the one to propose.
func (f *form) apiVersion() string {
	if f.group == "" {
		return f.versions[0]
	}
	return f.group + "/" + f.versions[0]
}

// manifest is a document of a form.
type manifest struct {
	*form
	doc  *document.Value
	name string            // metadata.name
	pos  document.Position // of it
}

// Document is a manifest in a file.
type Document struct {
	document.Position
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name,omitempty"`
}

// Skipped is a manifest that was not read.
type Skipped struct {
	Document
	Why string `json:"why"`
	// Image is one that it would declare with what is not there. What there is of it is
	// kept: nobody said that it is to go.
	Image string `json:"mayDeclare,omitempty"`
}

func describeDocument(doc *document.Value) Document {
	text := func(path ...string) string {
		if v, _ := doc.Find(path, document.Position{}); v != nil {
			return document.Printable(v.Text)
		}
		return ""
	}
	return Document{doc.Pos, text("apiVersion"), text("kind"), text("metadata", "name")}
}

func (c *content) skip(doc *document.Value, why string) {
	c.skipped = append(c.skipped, Skipped{Document: describeDocument(doc), Why: why})
}

// manifest reads a document that has apiVersion and kind.
func (c *content) manifest(doc *document.Value) {
	if second := doc.RepeatedField("apiVersion", "kind"); second != nil {
		c.problem(second.Pos, document.Path{second.Name}, "is given twice in one document", "two manifests need a line with \"---\" between them")
		return
	}
	apiVersion, kind := doc.Field("apiVersion"), doc.Field("kind")
	f, wrong := formOf(apiVersion.Value.Text, kind.Value.Text)
	list := listOfOurs(apiVersion.Value.Text, kind.Value.Text)
	of, isList := strings.CutSuffix(kind.Value.Text, "List")
	switch {
	case c.slipped(f, doc):
	case list != "" && list != kind.Value.Text:
		c.problem(kind.Value.Pos, document.Path{"kind"}, fmt.Sprintf("unknown kind %q", document.Printable(kind.Value.Text)), fmt.Sprintf("did you mean %q?", list))
	case isList && of != "":
		c.listOfKind(doc, of, list != "")
	case wrong != nil:
		c.problem(doc.Field(wrong.Path[0]).Value.Pos, wrong.Path, wrong.Message, wrong.Hint)
	case f == nil:
		if slip := sectionInside(doc); slip != nil {
			c.problem(slip.Pos, document.Path{slip.Name}, "stands in a document of Kubernetes", "put it into one without apiVersion and kind")
			return
		}
		c.skip(doc, "is not ours")
	case f.kind == "List":
		c.list(doc)
	case f.kind == "ConfigMap":
		c.configMap(doc)
	case f.take != nil:
		doc.DropNulls()
		f.take(c, f, doc)
	default:
		c.declares(f, doc)
	}
}

// halfManifest returns which field a document lacks to be of Kubernetes.
func halfManifest(doc *document.Value) string {
	switch {
	case doc.Field("metadata") == nil && doc.Field("spec") == nil && doc.Field("parameters") == nil:
		return ""
	case doc.Field("apiVersion") != nil:
		return "kind"
	case doc.Field("kind") != nil:
		return "apiVersion"
	}
	return ""
}

// declares reads a manifest that declares something by itself.
func (c *content) declares(f *form, doc *document.Value) {
	doc.DropNulls()
	if m, ok := c.named(f, doc); ok {
		f.read(c, m)
	}
}

// named returns a document as a manifest if it has a name.
func (c *content) named(f *form, doc *document.Value) (manifest, bool) {
	at := document.Path{"metadata", "name"}
	name, pos := doc.Find(at, doc.Pos)
	slipped := doc.Field("name")
	switch {
	case name == nil && slipped != nil:
		c.problem(slipped.Pos, at, "is missing", "\"name\" belongs in \"metadata\": indent it")
	case name == nil:
		c.problem(pos, at, "is missing", "a manifest is known by its name")
	case name.Kind != document.Text:
		c.problem(name.Pos, at, "has to be a text, not "+name.Kind.String(), fmt.Sprintf("quote it: %q", document.Printable(name.Text)))
	default:
		return manifest{form: f, doc: doc, name: name.Text, pos: name.Pos}, true
	}
	return manifest{}, false
}

// read notes that the manifest was.
func (c *content) note(m manifest) {
	c.ours = true
	c.manifests = append(c.manifests, describeDocument(m.doc))
}

// add adds what a manifest declares.
func (c *content) add(m manifest, k key) {
	c.things = append(c.things, c.thing(m, k, document.Path{"metadata", "name"}))
}

// claim adds what a manifest says of an image that another document may define.
func (c *content) claim(m manifest, k key) *thing {
	t := c.thing(m, k, m.imageAt)
	c.claims = append(c.claims, t)
	return t
}

// thing is what a manifest is about, which it names at a path.
func (c *content) thing(m manifest, k key, nameAt document.Path) *thing {
	c.note(m)
	t := &thing{key: k, form: m.form, origin: c.origin, pos: m.pos, value: m.doc, sum: m.doc.Sum()}
	if err := checkThingName(k); err != nil {
		t.verdict = &verdict{faults: []document.Problem{{Path: nameAt, Message: err.Error()}}}
	}
	return t
}

// formOf returns the form of a document, nil where it is of another program,
// and the fault where it is nearly one of ours.
func formOf(apiVersion, kind string) (*form, *document.Problem) {
	group, version, grouped := strings.Cut(apiVersion, "/")
	if !grouped {
		group, version = "", apiVersion
	}
	for _, f := range forms {
		near := nearGroup(group, f.group) || !grouped && f.group != "" && nearGroup(apiVersion, f.group)
		switch {
		case f.kind == kind && f.group == group && slices.Contains(f.versions, version):
			return f, nil
		case f.kind == kind && (near || !f.common):
			return nil, &document.Problem{Path: document.Path{"apiVersion"}, Message: fmt.Sprintf("%q is not known of a %s", document.Printable(apiVersion), f.kind),
				Hint: fmt.Sprintf("write %q", f.apiVersion())}
		case near && document.Similar(kind, f.kind):
			return nil, &document.Problem{Path: document.Path{"kind"}, Message: fmt.Sprintf("unknown kind %q", document.Printable(kind)), Hint: fmt.Sprintf("did you mean %q?", f.kind)}
		}
	}
	return nil, nil
}

func nearGroup(a, b string) bool {
	first, _, _ := strings.Cut(a, ".")
	wanted, _, _ := strings.Cut(b, ".")
	return a == b || b != "" && (document.Similar(a, b) || strings.EqualFold(first, wanted))
}

// A document that is nearly one of ours must not be skipped: what it declares would be
// taken for gone, and be cleaned up. Here is what is looked at before anything is.

// slipped reports, and tells, that nobody can tell what a document with apiVersion and kind
// is about.
func (c *content) slipped(f *form, doc *document.Value) bool {
	apiVersion, kind := doc.Field("apiVersion"), doc.Field("kind")
	for _, pair := range [][2]*document.Field{{apiVersion, kind}, {kind, apiVersion}} {
		other, v := pair[0].Value, pair[1].Value
		if other.Kind != document.Text || other.Text == "" || v.Text != "" {
			continue
		}
		msg := "has to be a text, not " + v.Kind.String()
		if v.Kind == document.Text {
			msg = "is empty"
		}
		c.problem(v.Pos, document.Path{pair[1].Name}, msg, "a document of Kubernetes has both apiVersion and kind")
		return true
	}
	twice, at := repeated(doc, f)
	if twice != nil {
		c.problem(twice.Pos, at, "is given twice", "keep one of them")
	}
	return twice != nil
}

// sectionInside returns a section of ours in a document of another program, nil if it has
// none. Others have fields of these names, too, but not with the like in them.
func sectionInside(doc *document.Value) *document.Field {
	has := map[string]string{imagesSection.String(): "source", nodesSection.String(): "disks"}
	i := slices.IndexFunc(doc.Fields, func(f document.Field) bool {
		return slices.ContainsFunc(f.Value.Fields, func(one document.Field) bool { return has[f.Name] != "" && one.Value.Field(has[f.Name]) != nil })
	})
	if i < 0 {
		return nil
	}
	return &doc.Fields[i]
}

// decisive are the fields at the top of a manifest that say what it is about.
var decisive = []string{"metadata", "spec", "parameters", "driver", "provisioner", "value", "items", "data", "binaryData"}

// repeated returns a field of a manifest of a form that is there already, and where it is.
// What is in a list and in the files of a ConfigMap is looked at by itself; a manifest that
// always declares something is told with all else that is wrong with it.
func repeated(v *document.Value, f *form) (*document.Field, document.Path) {
	if f == nil || f == backingImageForm || f == nodeForm {
		return nil, nil
	}
	if twice := v.RepeatedField(decisive...); twice != nil {
		return twice, document.Path{twice.Name}
	}
	for _, name := range decisive {
		if below := v.Field(name); below != nil && name != "data" && name != "items" {
			if twice, at := repeatedBelow(below.Value, document.Path{name}); twice != nil {
				return twice, at
			}
		}
	}
	return nil, nil
}

func repeatedBelow(v *document.Value, at document.Path) (*document.Field, document.Path) {
	seen := map[string]bool{}
	for i, f := range v.Fields {
		if seen[f.Name] {
			return &v.Fields[i], at.With(f.Name)
		}
		seen[f.Name] = true
		if twice, where := repeatedBelow(f.Value, at.With(f.Name)); twice != nil {
			return twice, where
		}
	}
	return nil, nil
}

// listOfOurs returns the kind that a list of our manifests should have, "" where it is none.
func listOfOurs(apiVersion, kind string) string {
	const suffix = "list"
	if len(kind) <= len(suffix) || !strings.EqualFold(kind[len(kind)-len(suffix):], suffix) {
		return nearlyList(apiVersion, kind)
	}
	of := kind[:len(kind)-len(suffix)]
	switch f, wrong := formOf(apiVersion, of); {
	case f != nil:
		return f.kind + "List"
	case wrong != nil && wrong.Path[0] == "kind":
		return forms[slices.IndexFunc(forms, func(f *form) bool { return document.Similar(of, f.kind) })].kind + "List"
	case wrong != nil:
		return of + "List"
	}
	return ""
}

// nearlyList is listOfOurs for a kind that ends in List but for a slip.
func nearlyList(apiVersion, kind string) string {
	group, _, _ := strings.Cut(apiVersion, "/")
	for _, f := range forms {
		if f.group != "" && nearGroup(group, f.group) && !document.Similar(kind, f.kind) && document.Similar(kind, f.kind+"List") {
			return f.kind + "List"
		}
	}
	return ""
}

// nearProvisioner tells that a manifest names nearly the driver whose manifests are ours.
func (c *content) nearProvisioner(what string, at document.Path, v *document.Value) bool {
	near := v != nil && v.Text != provisioner && document.Similar(v.Text, provisioner)
	if near {
		c.problem(v.Pos, at, fmt.Sprintf("unknown %s %q", what, document.Printable(v.Text)), fmt.Sprintf("did you mean %q?", provisioner))
	}
	return near
}

// misplaced finds a field of a manifest that was meant to be, or to be in, the mapping
// that is known by name.
func misplaced(v *document.Value, name string, inside []string) (*document.Field, string) {
	for i, f := range v.Fields {
		switch {
		case f.Name == name:
		case document.Similar(f.Name, name):
			return &v.Fields[i], fmt.Sprintf("did you mean %q?", name)
		case slices.Contains(inside, f.Name):
			return &v.Fields[i], fmt.Sprintf("it belongs in %q: indent it", name)
		}
	}
	return nil, ""
}

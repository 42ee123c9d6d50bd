package schema

import (
	"fmt"
	"slices"
	"strings"
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
	imageAt fieldPath
	// take reads a manifest that may be of another program all the same, or that says
	// nothing by itself.
	take func(c *content, f *form, doc *value)
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
	doc  *value
	name string   // metadata.name
	pos  Position // of it
}

// Document is a manifest in a file.
type Document struct {
	Position
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

func describeDocument(doc *value) Document {
	text := func(path ...string) string {
		if v, _ := doc.find(path, Position{}); v != nil {
			return printable(v.text)
		}
		return ""
	}
	return Document{doc.pos, text("apiVersion"), text("kind"), text("metadata", "name")}
}

func (c *content) skip(doc *value, why string) {
	c.skipped = append(c.skipped, Skipped{Document: describeDocument(doc), Why: why})
}

// manifest reads a document that has apiVersion and kind.
func (c *content) manifest(doc *value) {
	if second := doc.again("apiVersion", "kind"); second != nil {
		c.problem(second.pos, fieldPath{second.name}, "is given twice in one document", "two manifests need a line with \"---\" between them")
		return
	}
	apiVersion, kind := doc.child("apiVersion"), doc.child("kind")
	f, wrong := formOf(apiVersion.value.text, kind.value.text)
	list := listOfOurs(apiVersion.value.text, kind.value.text)
	of, isList := strings.CutSuffix(kind.value.text, "List")
	switch {
	case c.slipped(f, doc):
	case list != "" && list != kind.value.text:
		c.problem(kind.value.pos, fieldPath{"kind"}, fmt.Sprintf("unknown kind %q", printable(kind.value.text)), fmt.Sprintf("did you mean %q?", list))
	case isList && of != "":
		c.listOfKind(doc, of, list != "")
	case wrong != nil:
		c.problem(doc.child(wrong.path[0]).value.pos, wrong.path, wrong.msg, wrong.hint)
	case f == nil:
		if slip := sectionInside(doc); slip != nil {
			c.problem(slip.pos, fieldPath{slip.name}, "stands in a document of Kubernetes", "put it into one without apiVersion and kind")
			return
		}
		c.skip(doc, "is not ours")
	case f.kind == "List":
		c.list(doc)
	case f.kind == "ConfigMap":
		c.configMap(doc)
	case f.take != nil:
		dropNulls(doc)
		f.take(c, f, doc)
	default:
		c.declares(f, doc)
	}
}

// halfManifest returns which field a document lacks to be of Kubernetes.
func halfManifest(doc *value) string {
	switch {
	case doc.child("metadata") == nil && doc.child("spec") == nil && doc.child("parameters") == nil:
		return ""
	case doc.child("apiVersion") != nil:
		return "kind"
	case doc.child("kind") != nil:
		return "apiVersion"
	}
	return ""
}

// again returns the first field with one of the names that is there already.
func (v *value) again(names ...string) *field {
	seen := map[string]bool{}
	for i, f := range v.fields {
		if seen[f.name] && slices.Contains(names, f.name) {
			return &v.fields[i]
		}
		seen[f.name] = true
	}
	return nil
}

// declares reads a manifest that declares something by itself.
func (c *content) declares(f *form, doc *value) {
	dropNulls(doc)
	if m, ok := c.named(f, doc); ok {
		f.read(c, m)
	}
}

// named returns a document as a manifest if it has a name.
func (c *content) named(f *form, doc *value) (manifest, bool) {
	at := fieldPath{"metadata", "name"}
	name, pos := doc.find(at, doc.pos)
	slipped := doc.child("name")
	switch {
	case name == nil && slipped != nil:
		c.problem(slipped.pos, at, "is missing", "\"name\" belongs in \"metadata\": indent it")
	case name == nil:
		c.problem(pos, at, "is missing", "a manifest is known by its name")
	case name.kind != textKind:
		c.problem(name.pos, at, "has to be a text, not "+name.kind.describe(), fmt.Sprintf("quote it: %q", printable(name.text)))
	default:
		return manifest{form: f, doc: doc, name: name.text, pos: name.pos}, true
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
	c.things = append(c.things, c.thing(m, k, fieldPath{"metadata", "name"}))
}

// claim adds what a manifest says of an image that another document may define.
func (c *content) claim(m manifest, k key) *thing {
	t := c.thing(m, k, m.imageAt)
	c.claims = append(c.claims, t)
	return t
}

// thing is what a manifest is about, which it names at a path.
func (c *content) thing(m manifest, k key, nameAt fieldPath) *thing {
	c.note(m)
	t := &thing{key: k, form: m.form, origin: c.origin, pos: m.pos, value: m.doc, sum: m.doc.sum()}
	if err := checkThingName(k); err != nil {
		t.verdict = &verdict{faults: []fault{{path: nameAt, msg: err.Error()}}}
	}
	return t
}

// dropNulls drops the fields that are null: Kubernetes takes them for absent.
func dropNulls(v *value) {
	v.fields = slices.DeleteFunc(v.fields, func(f field) bool { return f.value.kind == nullKind })
	for _, f := range v.fields {
		dropNulls(f.value)
	}
	for _, i := range v.items {
		dropNulls(i)
	}
}

// formOf returns the form of a document, nil where it is of another program,
// and the fault where it is nearly one of ours.
func formOf(apiVersion, kind string) (*form, *fault) {
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
			return nil, &fault{path: fieldPath{"apiVersion"}, msg: fmt.Sprintf("%q is not known of a %s", printable(apiVersion), f.kind),
				hint: fmt.Sprintf("write %q", f.apiVersion())}
		case near && nearly(kind, f.kind):
			return nil, &fault{path: fieldPath{"kind"}, msg: fmt.Sprintf("unknown kind %q", printable(kind)), hint: fmt.Sprintf("did you mean %q?", f.kind)}
		}
	}
	return nil, nil
}

// nearly reports whether a is b but for a slip: other programs have kinds of
// similar names.
func nearly(a, b string) bool {
	slips := 2
	if len(b) < 8 {
		slips = 1
	}
	return plain(a) == plain(b) || distance(plain(a), plain(b)) <= slips
}

func nearGroup(a, b string) bool {
	first, _, _ := strings.Cut(a, ".")
	wanted, _, _ := strings.Cut(b, ".")
	return a == b || b != "" && (nearly(a, b) || plain(first) == plain(wanted))
}

// A document that is nearly one of ours must not be skipped: what it declares would be
// taken for gone, and be cleaned up. Here is what is looked at before anything is.

// slipped reports, and tells, that nobody can tell what a document with apiVersion and kind
// is about.
func (c *content) slipped(f *form, doc *value) bool {
	apiVersion, kind := doc.child("apiVersion"), doc.child("kind")
	for _, pair := range [][2]*field{{apiVersion, kind}, {kind, apiVersion}} {
		other, v := pair[0].value, pair[1].value
		if other.kind != textKind || other.text == "" || v.text != "" {
			continue
		}
		msg := "has to be a text, not " + v.kind.describe()
		if v.kind == textKind {
			msg = "is empty"
		}
		c.problem(v.pos, fieldPath{pair[1].name}, msg, "a document of Kubernetes has both apiVersion and kind")
		return true
	}
	twice, at := doc.repeated(f)
	if twice != nil {
		c.problem(twice.pos, at, "is given twice", "keep one of them")
	}
	return twice != nil
}

// sectionInside returns a section of ours in a document of another program, nil if it has
// none. Others have fields of these names, too, but not with the like in them.
func sectionInside(doc *value) *field {
	has := map[string]string{imagesSection.String(): "source", nodesSection.String(): "disks"}
	i := slices.IndexFunc(doc.fields, func(f field) bool {
		return slices.ContainsFunc(f.value.fields, func(one field) bool { return has[f.name] != "" && one.value.child(has[f.name]) != nil })
	})
	if i < 0 {
		return nil
	}
	return &doc.fields[i]
}

// decisive are the fields at the top of a manifest that say what it is about.
var decisive = []string{"metadata", "spec", "parameters", "driver", "provisioner", "value", "items", "data", "binaryData"}

// repeated returns a field of a manifest of a form that is there already, and where it is.
// What is in a list and in the files of a ConfigMap is looked at by itself; a manifest that
// always declares something is told with all else that is wrong with it.
func (v *value) repeated(f *form) (*field, fieldPath) {
	if f == nil || f == backingImageForm || f == nodeForm {
		return nil, nil
	}
	if twice := v.again(decisive...); twice != nil {
		return twice, fieldPath{twice.name}
	}
	for _, name := range decisive {
		if below := v.child(name); below != nil && name != "data" && name != "items" {
			if twice, at := below.value.repeatedBelow(fieldPath{name}); twice != nil {
				return twice, at
			}
		}
	}
	return nil, nil
}

func (v *value) repeatedBelow(at fieldPath) (*field, fieldPath) {
	seen := map[string]bool{}
	for i, f := range v.fields {
		if seen[f.name] {
			return &v.fields[i], at.with(f.name)
		}
		seen[f.name] = true
		if twice, where := f.value.repeatedBelow(at.with(f.name)); twice != nil {
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
	case wrong != nil && wrong.path[0] == "kind":
		return forms[slices.IndexFunc(forms, func(f *form) bool { return nearly(of, f.kind) })].kind + "List"
	case wrong != nil:
		return of + "List"
	}
	return ""
}

// nearlyList is listOfOurs for a kind that ends in List but for a slip.
func nearlyList(apiVersion, kind string) string {
	group, _, _ := strings.Cut(apiVersion, "/")
	for _, f := range forms {
		if f.group != "" && nearGroup(group, f.group) && !nearly(kind, f.kind) && nearly(kind, f.kind+"List") {
			return f.kind + "List"
		}
	}
	return ""
}

// nearProvisioner tells that a manifest names nearly the driver whose manifests are ours.
func (c *content) nearProvisioner(what string, at fieldPath, v *value) bool {
	near := v != nil && v.text != provisioner && nearly(v.text, provisioner)
	if near {
		c.problem(v.pos, at, fmt.Sprintf("unknown %s %q", what, printable(v.text)), fmt.Sprintf("did you mean %q?", provisioner))
	}
	return near
}

// misplaced finds a field of a manifest that was meant to be, or to be in, the mapping
// that is known by name.
func (v *value) misplaced(name string, inside []string) (*field, string) {
	for i, f := range v.fields {
		switch {
		case f.name == name:
		case nearly(f.name, name):
			return &v.fields[i], fmt.Sprintf("did you mean %q?", name)
		case slices.Contains(inside, f.name):
			return &v.fields[i], fmt.Sprintf("it belongs in %q: indent it", name)
		}
	}
	return nil, ""
}

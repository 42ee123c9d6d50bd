package manifest

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

//go:embed manifest.cue
var cueText []byte

// CUE returns the text of the CUE definitions of the kinds. They use definitions of schema.cue.
// The caller must not change the text.
func CUE() []byte { return cueText }

// Kind is a kind of manifest that this program reads.
type Kind struct {
	Group    string   // "" for the core of Kubernetes
	Versions []string // error messages suggest the first one
	Name     string   // as in the field kind
	// Definition is the name of the CUE definition. It is "" for a kind that only
	// contains or completes other documents.
	Definition string
	// Reference is true for a kind that names an image in the field at ImagePath. A manifest of
	// such a kind defines the image only if no other document does.
	Reference bool
	ImagePath document.Path

	shared  bool // other programs have kinds with the same name
	read    func(*File, manifest)
	convert func(*converter)
}

// The kinds that contain other documents.
var (
	List      = &Kind{Versions: []string{"v1"}, Name: "List", shared: true}
	ConfigMap = &Kind{Versions: []string{"v1"}, Name: "ConfigMap"}
)

var kinds = []*Kind{
	List, ConfigMap, backingImageKind, nodeKind, settingKind, storageClassKind,
	snapshotClassKind, snapshotKind, volumeClaimKind, snapshotContentKind, machineImageKind,
	dataVolumeKind, importSourceKind, importCronKind, dataSourceKind,
}

// Kinds returns all kinds that are validated with CUE.
func Kinds() []*Kind {
	return slices.DeleteFunc(slices.Clone(kinds), func(k *Kind) bool { return k.Definition == "" })
}

var longhornVersions = []string{"v1beta2", "v1beta1"}

const listSuffix = "List"

// apiVersion returns the apiVersion to suggest.
func (k *Kind) apiVersion() string {
	if k.Group == "" {
		return k.Versions[0]
	}
	return k.Group + "/" + k.Versions[0]
}

// Is reports whether a document is a manifest of any program.
func Is(doc *document.Value) bool { return doc.Field("apiVersion") != nil && doc.Field("kind") != nil }

// Detect returns the kind of a manifest, and nil for a manifest of another program. isList
// is true for a list of that kind, such as a BackingImageList. The problem is set if
// apiVersion or kind is invalid, or looks like that of a known kind with a typing error. Then it is
// unknown what the document declares.
func Detect(doc *document.Value) (kind *Kind, isList bool, problem *document.Problem) {
	if second := doc.RepeatedField("apiVersion", "kind"); second != nil {
		return nil, false, &document.Problem{Position: second.Pos, Path: document.Path{second.Name},
			Message: "duplicate field", Hint: "put a line with \"---\" between two manifests"}
	}
	for _, name := range []string{"apiVersion", "kind"} {
		if v := doc.Field(name).Value; v.Kind != document.Text || v.Text == "" {
			return nil, false, &document.Problem{Position: v.Pos, Path: document.Path{name},
				Message: "must be a string that is not empty", Hint: "a manifest has both apiVersion and kind"}
		}
	}
	apiVersion, name := doc.Field("apiVersion").Value, doc.Field("kind").Value
	group, version, grouped := strings.Cut(apiVersion.Text, "/")
	if !grouped {
		group, version = "", apiVersion.Text
	}
	for _, k := range kinds {
		if k.Group == group && slices.Contains(k.Versions, version) {
			switch name.Text {
			case k.Name:
				return k, false, nil
			case k.Name + listSuffix:
				return k, true, nil
			}
		}
	}
	for _, k := range kinds {
		near := nearGroup(group, k.Group) || !grouped && k.Group != "" && nearGroup(apiVersion.Text, k.Group)
		for _, candidate := range []string{k.Name, k.Name + listSuffix} {
			switch {
			case candidate == name.Text && (near || !k.shared):
				return nil, false, &document.Problem{Position: apiVersion.Pos, Path: document.Path{"apiVersion"},
					Message: fmt.Sprintf("unknown version %q of %s", document.Printable(apiVersion.Text), candidate), Hint: fmt.Sprintf("write %q", k.apiVersion())}
			case near && document.Similar(name.Text, candidate):
				return nil, false, &document.Problem{Position: name.Pos, Path: document.Path{"kind"},
					Message: fmt.Sprintf("unknown kind %q", document.Printable(name.Text)), Hint: fmt.Sprintf("did you mean %q?", candidate)}
			}
		}
	}
	return nil, false, nil
}

func nearGroup(a, b string) bool {
	first, _, _ := strings.Cut(a, ".")
	want, _, _ := strings.Cut(b, ".")
	return a == b || b != "" && (document.Similar(a, b) || strings.EqualFold(first, want))
}

// Items returns the items of a list. In a list of one kind, the items need not repeat
// apiVersion and kind, so Items adds them.
func Items(kind *Kind, isList bool, doc *document.Value) ([]*document.Value, *document.Problem) {
	at := document.Path{"items"}
	items := doc.Field("items")
	if second := doc.RepeatedField("items"); second != nil {
		return nil, &document.Problem{Position: second.Pos, Path: at, Message: "duplicate field", Hint: "keep one of them"}
	}
	// A list that was truncated has no items field, or an empty one. It is not read as a
	// list without items.
	switch {
	case items == nil:
		return nil, &document.Problem{Position: doc.Pos, Path: at, Message: "is missing", Hint: "to declare an empty list, write \"items: []\""}
	case items.Value.Kind == document.Null:
		return nil, &document.Problem{Position: items.Pos, Path: at, Message: "is empty", Hint: "to declare an empty list, write \"items: []\""}
	case items.Value.Kind != document.List:
		return nil, &document.Problem{Position: items.Value.Pos, Path: at, Message: "must be a list, not " + items.Value.Kind.String()}
	}
	for _, item := range items.Value.Items {
		if !isList || item.Kind != document.Map {
			continue
		}
		if item.Field("apiVersion") == nil {
			item.Fields = append(item.Fields, *doc.Field("apiVersion"))
		}
		if item.Field("kind") == nil {
			item.Fields = append(item.Fields, document.Field{Name: "kind", Pos: item.Pos, Value: textValue(kind.Name, item.Pos)})
		}
	}
	return items.Value.Items, nil
}

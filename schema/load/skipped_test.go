package load

import (
	"cmp"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

const (
	nativeParrot = "images: {parrot: {source: {upload: {}}}}\n"
	backingImage = "apiVersion: longhorn.io/v1beta2\nkind: BackingImage\nmetadata: {name: parrot}\nspec: {sourceType: upload}\n"
	imageClass   = "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: class}\nprovisioner: driver.longhorn.io\n" +
		"parameters: {backingImage: parrot, backingImageDataSourceType: download, backingImageDataSourceParameters: '{\"url\": \"https://example.com/p\"}'}\n"
	snapshotClass = "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotClass\nmetadata: {name: images}\ndriver: driver.longhorn.io\nparameters: {type: bi}\n"
	snapshotOf    = "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: {name: parrot}\n" +
		"spec: {volumeSnapshotClassName: images, source: {persistentVolumeClaimName: vm}}\n"
	snapshotContent = "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotContent\nmetadata: {name: content}\n" +
		"spec: {driver: driver.longhorn.io, source: {snapshotHandle: \"bi://backing?backingImage=parrot&backingImageDataSourceType=download&url=https%3A%2F%2Fexample.com\"}}\n"
	imageList = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: longhorn.io/v1beta2, kind: BackingImage, metadata: {name: parrot}, spec: {sourceType: upload}}\n"
	kindList  = "apiVersion: longhorn.io/v1beta2\nkind: BackingImageList\nitems:\n- {metadata: {name: parrot}, spec: {sourceType: upload}}\n"
	configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: fleet}\ndata:\n  images.yaml: |\n    images: {parrot: {source: {upload: {}}}}\n"
)

// slips are typing errors and truncations, each in a file that declared an image before.
var slips = []struct{ name, before, old, new string }{
	{"a section with a typing error", nativeParrot, "images", "imags"},
	{"a section that is indented", nativeParrot, "images", "config: {images"},
	{"a native document with apiVersion and kind", nativeParrot, "images", "apiVersion: v1\nkind: Config\nimages"},
	{"a native document with apiVersion, kind and name", nativeParrot, "images", "apiVersion: v1\nkind: Config\nmetadata: {name: x}\nimages"},
	{"a native document with apiVersion only", nativeParrot, "images", "apiVersion: v1\nimages"},
	{"an empty file", nativeParrot, nativeParrot, ""},
	{"a truncated file", nativeParrot, "{source: {upload: {}}}}\n", "{"},
	{"a kind with a typing error", backingImage, "BackingImage", "BakingImage"},
	{"a kind in lower case", backingImage, "BackingImage", "backingimage"},
	{"another kind", backingImage, "BackingImage", "Image"},
	{"a file that is truncated in its kind", backingImage, backingImage[strings.Index(backingImage, "Image"):], ""},
	{"a class that is truncated in its kind", imageClass, imageClass[strings.Index(imageClass, "Class"):], ""},
	{"a list that is truncated in its kind", imageList, imageList[strings.Index(imageList, "st\n"):], ""},
	{"a class that is truncated in its name", imageClass, imageClass[strings.Index(imageClass, "{name"):], "{name: cla}\n"},
	{"a class that is truncated in its parameters", snapshotClass + "---\n" + snapshotOf, "{type: bi}\n---\n" + snapshotOf, "t\n"},
	{"a ConfigMap that is truncated in its kind", configMap, configMap[strings.Index(configMap, "Map"):], ""},
	{"an empty kind", backingImage, "BackingImage", `""`},
	{"a kind that is null", backingImage, "BackingImage", ""},
	{"a kind that is a list", backingImage, "BackingImage", "[BackingImage]"},
	{"no kind", backingImage, "kind: BackingImage\n", ""},
	{"no apiVersion", backingImage, "apiVersion: longhorn.io/v1beta2\n", ""},
	{"an empty apiVersion", backingImage, "longhorn.io/v1beta2", `""`},
	{"another version", backingImage, "v1beta2", "v2"},
	{"a group without a version", backingImage, "longhorn.io/v1beta2", "longhorn.io"},
	{"a group with a typing error", backingImage, "longhorn.io", "longhron.io"},
	{"another group", backingImage, "longhorn.io", "example.com"},
	{"a name outside metadata", backingImage, "metadata: {name: parrot}", "name: parrot"},
	{"two documents without a separator", backingImage, "spec", "apiVersion: v1\nkind: Pod\nspec"},
	{"a provisioner with a typing error", imageClass, "driver.longhorn.io", "driver.longhorn.oi"},
	{"an empty provisioner", imageClass, "driver.longhorn.io", `""`},
	{"parameters in upper case", imageClass, "parameters:", "Parameters:"},
	{"parameters that are a list", imageClass, "parameters: {", "parameters: [{"},
	{"parameters twice", imageClass, "parameters:", "parameters: {fsType: ext4}\nparameters:"},
	{"a parameter outside parameters", imageClass, "parameters: {backingImage: parrot, backing", "backingImage: parrot\nparameters: {Backing"},
	{"a parameter with a typing error", imageClass, "backingImage: parrot", "bakingImage: parrot"},
	{"no parameter", imageClass, imageClass[strings.Index(imageClass, "parameters"):], "parameters: {numberOfReplicas: \"3\"}\n"},
	{"a driver with a typing error", snapshotClass + "---\n" + snapshotOf, "driver.longhorn.io", "driver.longhorn.oi"},
	{"a type with a typing error in its name", snapshotClass + "---\n" + snapshotOf, "type: bi", "tpye: bi"},
	{"a type that is a list", snapshotClass + "---\n" + snapshotOf, "type: bi", "type: [bi]"},
	{"an empty type", snapshotClass + "---\n" + snapshotOf, "type: bi", `type: ""`},
	{"another type", snapshotClass + "---\n" + snapshotOf, "type: bi", "type: snap"},
	{"a type outside parameters", snapshotClass + "---\n" + snapshotOf, "parameters: {type: bi}", "type: bi"},
	{"a type twice", snapshotClass + "---\n" + snapshotOf, "type: bi", "type: snap, type: bi"},
	{"a class with another name", snapshotClass + "---\n" + snapshotOf, "name: images", "name: image"},
	{"no class", snapshotClass + "---\n" + snapshotOf, snapshotClass + "---\n", ""},
	{"a class name with a typing error in its field", snapshotClass + "---\n" + snapshotOf, "volumeSnapshotClassName", "volumeSnapshotClasName"},
	{"a class name outside spec", snapshotClass + "---\n" + snapshotOf, "spec: {volumeSnapshotClassName: images, ", "volumeSnapshotClassName: images\nspec: {"},
	{"a class name that is a list", snapshotClass + "---\n" + snapshotOf, "ClassName: images", "ClassName: [images]"},
	{"a driver of a content with a typing error", snapshotContent, "driver.longhorn.io", "driver.longhorn.oi"},
	{"a handle of a volume", snapshotContent, "bi://", "snap://"},
	{"a handle twice", snapshotContent, "snapshotHandle:", "snapshotHandle: \"snap://x\", snapshotHandle:"},
	{"a handle with a typing error in its field", snapshotContent, "snapshotHandle", "snapshothandle"},
	{"a list without items", imageList, imageList[strings.Index(imageList, "items"):], ""},
	{"a list with empty items", imageList, imageList[strings.Index(imageList, "- "):], ""},
	{"a list with items twice", imageList, "items:", "items: []\nitems:"},
	{"a list with items that are null", imageList, imageList[strings.Index(imageList, "- "):], "-\n"},
	{"a list with a typing error in items", imageList, "items", "item"},
	{"a list kind with a typing error", kindList, "BackingImageList", "BackingImageLits"},
	{"a list kind in lower case", kindList, "BackingImageList", "backingimagelist"},
	{"a list of another version", kindList, "v1beta2", "v3"},
	{"a list that is a mapping", kindList, "- {metadata", "  a: {metadata"},
	{"data with a typing error", configMap, "data:", "dta:"},
	{"data twice", configMap, "data:", "data: {a.yaml: \"images: {}\"}\ndata:"},
	{"data in metadata", configMap, "metadata: {name: fleet}\ndata:", "metadata:\n  name: fleet\n  data:"},
	{"data that is a list", configMap, configMap[strings.Index(configMap, "data:"):], "data: [images.yaml]\n"},
	{"no data", configMap, configMap[strings.Index(configMap, "data:"):], "data:\n"},
	{"a file of a ConfigMap that is not indented", configMap, "    images: {", "  images: {"},
	{"a file of a ConfigMap outside data", configMap, "    images: {", "images: {"},
	{"a file of a ConfigMap with a typing error", configMap, "    images: {", "    imags: {"},
	{"a file of a ConfigMap that is truncated", configMap, "{source: {upload: {}}}}\n", "{"},
	{"a file of a ConfigMap that is empty", configMap, "    images: {parrot: {source: {upload: {}}}}\n", ""},
	{"a file of a ConfigMap with another extension", configMap, "images.yaml", "images.yam"},
	{"a file of a ConfigMap in binaryData", configMap, "data:", "binaryData:"},
	{"a ConfigMap of another kind", configMap, "ConfigMap", "Secret"},
}

// TestSlipsDeleteNothing: a document that is skipped, or a file that cannot be read, never
// deletes what it declared before, neither in a running manager nor after a restart, when
// only the record of the copy knows what declared the image.
func TestSlipsDeleteNothing(t *testing.T) {
	race.Skip(t)
	others := configdir.File{Path: "other.yaml", Data: []byte("images: {robin: {source: {upload: {}}}}\n")}
	for _, slip := range slips {
		t.Run(strings.ReplaceAll(slip.name, " ", "_"), func(t *testing.T) {
			after := strings.Replace(slip.before, slip.old, slip.new, 1)
			if after == slip.before {
				t.Fatal("the slip changes nothing")
			}
			files := func(text string) configdir.Snapshot {
				return configdir.Snapshot{Files: []configdir.File{{Path: "a.yaml", Data: []byte(text)}, others}}
			}
			running := NewLoader()
			before := running.Load(t.Context(), files(slip.before))
			mustBeValid(t, before)
			declaration := before.Config.Images["parrot"].Declaration
			if declaration.File != "a.yaml" {
				t.Fatalf("parrot is declared by %+v", declaration)
			}
			for name, l := range map[string]*Loader{"running": running, "restarted": NewLoader()} {
				r := l.Load(t.Context(), files(after))
				_, declared := r.Config.Images["parrot"]
				held := slices.ContainsFunc(r.Invalid, func(h schema.InvalidImage) bool { return h.Name == "parrot" })
				reason, undecided := r.Undecided.MayDeclare("parrot", declaration)
				if r.Allowed == schema.Everything && !declared && !held && !undecided {
					t.Errorf("%s: parrot would be deleted:\n%s\n%s", name, after, describe(r))
				}
				t.Logf("%s: may %v, declared %v, held %v, %s", name, r.Allowed, declared, held, reason)
			}
		})
	}
}

// TestEmptyCUEFileDeletesNothing: a .cue file that is empty keeps what it declared. It may have been part of
// a package, whose clause an empty file does not have.
func TestEmptyCUEFileDeletesNothing(t *testing.T) {
	race.Skip(t)
	const robin = "images: robin: source: upload: {}\n"
	const parrot = "images: parrot: source: upload: {}\n"
	for _, tt := range []struct {
		name, path, clause string
		kept               bool
	}{
		{"a file of its own", "a.cue", "", true},
		{"a file of a package", "a.cue", "package fleet\n", true},
		{"a file of a package in a folder", "site/a.cue", "package fleet\n", true},
		{"an empty file in another folder", "", "package fleet\n", false},
	} {
		t.Run(strings.ReplaceAll(tt.name, " ", "_"), func(t *testing.T) {
			declaring := cmp.Or(tt.path, "a.cue")
			snapshot := func(text string) configdir.Snapshot {
				s := configdir.Snapshot{Files: []configdir.File{
					{Path: path.Join(path.Dir(declaring), "b.cue"), Data: []byte(tt.clause + robin)},
					{Path: "other.yaml", Data: []byte("images: {}\n")},
				}}
				switch {
				case text == "" && tt.path == "":
					s.Files = append(s.Files, configdir.File{Path: "site/c.cue"})
				default:
					s.Files = append(s.Files, configdir.File{Path: declaring, Data: []byte(text)})
				}
				return s
			}
			running := NewLoader()
			before := running.Load(t.Context(), snapshot(tt.clause+parrot))
			mustBeValid(t, before)
			declaration := before.Config.Images["parrot"].Declaration
			if declaration.File == "" {
				t.Fatal("parrot is not declared")
			}
			for name, l := range map[string]*Loader{"running": running, "restarted": NewLoader()} {
				r := l.Load(t.Context(), snapshot(""))
				reason, undecided := r.Undecided.MayDeclare("parrot", declaration)
				_, declared := r.Config.Images["parrot"]
				if kept := r.Allowed != schema.Everything || declared || undecided; kept != tt.kept {
					t.Errorf("%s: kept is %v, want %v: %s\n%s", name, kept, tt.kept, reason, describe(r))
				}
			}
		})
	}
}

// TestRemovalsAreNoSlips: documents that are surely of other programs keep no image.
func TestRemovalsAreNoSlips(t *testing.T) {
	for _, tt := range []struct{ name, before, after string }{
		{"the document is removed", nativeParrot, "images: {}\n"},
		{"a manifest is removed beside a Pod", backingImage + "---\napiVersion: v1\nkind: Pod\nmetadata: {name: web}\n", "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n"},
		{"a manifest is removed beside a StorageClass", backingImage + "---\n" + strings.ReplaceAll(imageClass, "driver.longhorn.io", "example.com"), strings.ReplaceAll(imageClass, "driver.longhorn.io", "example.com")},
		{"a StorageClass is removed beside another one", imageClass + "---\n" + strings.ReplaceAll(imageClass, "driver.longhorn.io", "example.com"), strings.Replace(strings.ReplaceAll(imageClass, "driver.longhorn.io", "example.com"), "name: class", "name: other", 1)},
		{"an item is removed from a list", imageList + "- {apiVersion: longhorn.io/v1beta2, kind: Setting, metadata: {name: default-replica-count}, value: \"3\"}\n",
			"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: longhorn.io/v1beta2, kind: Setting, metadata: {name: default-replica-count}, value: \"3\"}\n"},
		{"a list has no items any more", imageList, "apiVersion: v1\nkind: List\nitems: []\n"},
		{"a ConfigMap is removed beside another one", configMap + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {nginx.conf: x}\n",
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {nginx.conf: x}\n"},
		{"the file is removed", nativeParrot, ""},
	} {
		t.Run(strings.ReplaceAll(tt.name, " ", "_"), func(t *testing.T) {
			load := func(l *Loader, text string) Result {
				s := configdir.Snapshot{Files: []configdir.File{{Path: "other.yaml", Data: []byte("images: {}\n")}}}
				if text != "" {
					s.Files = append([]configdir.File{{Path: "a.yaml", Data: []byte(text)}}, s.Files...)
				}
				r := l.Load(t.Context(), s)
				mustBeValid(t, r)
				return r
			}
			l := NewLoader()
			declaration := load(l, tt.before).Config.Images["parrot"].Declaration
			if declaration.File == "" {
				t.Fatal("parrot is not declared")
			}
			for _, l := range []*Loader{l, NewLoader()} {
				if reason, undecided := load(l, tt.after).Undecided.MayDeclare("parrot", declaration); undecided {
					t.Errorf("parrot is kept: %s", reason)
				}
			}
		})
	}
}

// TestDigestCoversUndecidedDocuments: nodes must not agree on a deletion if only one of them
// sees a document that may declare the image.
func TestDigestCoversUndecidedDocuments(t *testing.T) {
	const without = "images: {}\n"
	const with = without + `---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: golden}
spec: {volumeSnapshotClassName: lost, source: {persistentVolumeClaimName: vm}}
`
	const malformed = without + "---\n{apiVersion: v1, kind: Config, images: {parrot: {source: {upload: {}}}}}\n"
	const foreign = without + "---\n{apiVersion: v1, kind: Pod, metadata: {name: web}}\n"
	none := load(t, without)
	for _, text := range []string{with, malformed} {
		if r := load(t, text); r.Digest == "" || r.Digest == none.Digest {
			t.Errorf("digest %q does not cover the document:\n%s", r.Digest, text)
		}
	}
	if r := load(t, foreign); r.Digest != none.Digest {
		t.Errorf("a manifest of another program changes the digest")
	}
}

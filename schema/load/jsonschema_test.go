package load

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/schema"
	"sigs.k8s.io/yaml"
)

func compiledJSONSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	b, err := JSONSchema()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("config.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("config.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func instance(t *testing.T, text string) any {
	t.Helper()
	b, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestJSONSchemaAcceptsAllFields(t *testing.T) {
	b, err := os.ReadFile("testdata/everything.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := compiledJSONSchema(t).Validate(instance(t, string(b))); err != nil {
		t.Error(err)
	}
}

func TestJSONSchemaAcceptsManifests(t *testing.T) {
	manifest := "{apiVersion: longhorn.io/v1beta2, kind: BackingImage, metadata: {name: parrot}, spec: {sourceType: upload}}"
	if err := compiledJSONSchema(t).Validate(instance(t, manifest)); err != nil {
		t.Error(err)
	}
}

func TestJSONSchemaRejectsMistakes(t *testing.T) {
	race.Skip(t)
	s := compiledJSONSchema(t)
	for name, text := range map[string]string{
		"typo at the top":          "imags: {}",
		"typo in settings":         "settings: {minNumberOfCopie: 1}",
		"typo in a source":         "images: {xx: {source: {downlod: {}}}}",
		"typo in a download":       "images: {xx: {source: {download: {url: x, urll: y}}}}",
		"two sources":              "images: {xx: {source: {download: {url: x}, upload: {}}}}",
		"no source":                "images: {xx: {source: {}}}",
		"source is missing":        "images: {xx: {}}",
		"upload with a field":      "images: {xx: {source: {upload: {a: 1}}}}",
		"name of an image":         "images: {Xx: {source: {upload: {}}}}",
		"too few default copies":   "settings: {minNumberOfCopies: 0}",
		"negative replenish limit": "settings: {concurrentReplenishPerNodeLimit: -1}",
		"limit of zero":            "images: {xx: {source: {restore: {backupURL: x, concurrentLimit: 0}}}}",
		"negative copies":          "images: {xx: {source: {upload: {}}, minNumberOfCopies: -1}}",
		"not a whole number":       "images: {xx: {source: {upload: {}}, minNumberOfCopies: 1.5}}",
		"uuid as a number":         "images: {xx: {source: {upload: {}}, uuid: 12345678}}",
		"disk without a path":      "nodes: {n: {disks: {d: {}}}}",
	} {
		t.Run(name, func(t *testing.T) {
			if s.Validate(instance(t, text)) == nil {
				t.Errorf("accepted: %s", text)
			}
			if r := load(t, text); r.Allowed == schema.Everything {
				t.Errorf("Load accepts it: %s", text)
			}
		})
	}
}

func TestJSONSchemaHasDefaultsAndDescriptions(t *testing.T) {
	b, err := JSONSchema()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"default": "50%"`, `"default": 300`, `"default": "1Ti"`, `"default": "auto"`, "Folder below --secrets-dir"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the JSON Schema has no %s", want)
		}
	}
}

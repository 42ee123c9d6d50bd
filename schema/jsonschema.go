package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/encoding/jsonschema"
)

// JSONSchema returns the schema as JSON Schema, Draft 2020-12, so that editors
// complete and check YAML and JSON. It accepts everything that Load accepts, and does not
// find the mistakes that only the whole configuration shows. It accepts all manifests:
// they have schemas of their own.
func JSONSchema() ([]byte, error) {
	context := cuecontext.New()
	root := context.CompileBytes(schemaCUE, cue.Filename("schema.cue"))
	doc, err := generate(context, root)
	if err != nil {
		return nil, fmt.Errorf("generate JSON Schema: %w", err)
	}
	definitions, err := root.Fields(cue.Definitions(true))
	if err != nil {
		return nil, fmt.Errorf("read schema.cue: %w", err)
	}
	for definitions.Next() {
		name := strings.TrimPrefix(definitions.Selector().String(), "#")
		if d, ok := doc.Definitions[name]; ok {
			d.restore(definitions.Value())
		}
	}
	doc.Title = "The configuration of backing-image-manager"
	return json.MarshalIndent(doc.acceptManifests(), "", "  ")
}

// jsonDocument is the output of the generator, in a readable order.
type jsonDocument struct {
	Schema      string                    `json:"$schema"`
	Title       string                    `json:"title"`
	Type        string                    `json:"type"`
	Properties  map[string]any            `json:"properties"`
	Additional  bool                      `json:"additionalProperties"`
	Definitions map[string]jsonDefinition `json:"$defs"`
}

type jsonDefinition map[string]any

// jsonDocuments is a jsonDocument that also accepts manifests.
type jsonDocuments struct {
	Schema      string                    `json:"$schema"`
	Title       string                    `json:"title"`
	Type        string                    `json:"type"`
	If          map[string]any            `json:"if"`
	Else        map[string]any            `json:"else"`
	Definitions map[string]jsonDefinition `json:"$defs"`
}

func (d jsonDocument) acceptManifests() jsonDocuments {
	d.Definitions["Config"] = jsonDefinition{"type": d.Type, "properties": d.Properties, "additionalProperties": d.Additional}
	return jsonDocuments{
		Schema: d.Schema, Title: d.Title, Type: d.Type, Definitions: d.Definitions,
		If:   map[string]any{"required": []string{"apiVersion", "kind"}},
		Else: map[string]any{"$ref": "#/$defs/Config"},
	}
}

func generate(context *cue.Context, root cue.Value) (jsonDocument, error) {
	var doc jsonDocument
	expr, err := jsonschema.Generate(root.LookupPath(cue.ParsePath("#Config")),
		&jsonschema.GenerateConfig{Version: jsonschema.VersionDraft2020_12})
	if err != nil {
		return doc, err
	}
	b, err := context.BuildExpr(expr).MarshalJSON()
	if err != nil {
		return doc, err
	}
	return doc, json.Unmarshal(b, &doc)
}

// restore adds what the generator loses: defaults, the bounds of numbers that
// have a default, and the number of fields of a struct.
func (d jsonDefinition) restore(v cue.Value) {
	plain, one := withoutCount(v)
	if one {
		d["minProperties"], d["maxProperties"], d["additionalProperties"] = 1, 1, false
	}
	properties, ok := d["properties"].(map[string]any)
	if !ok {
		return
	}
	fields, err := plain.Fields(cue.Optional(true))
	if err != nil {
		panic(fmt.Sprintf("schema: read schema.cue: %v", err))
	}
	for fields.Next() {
		p, ok := properties[fields.Selector().Unquoted()].(map[string]any)
		if ok {
			maps.Copy(p, lostKeywords(fields.Value(), p))
		}
	}
}

// lostKeywords returns the default and the minimum of a property.
func lostKeywords(v cue.Value, property map[string]any) map[string]any {
	found := map[string]any{}
	if d, ok := v.Default(); ok && d.IsConcrete() && d.IncompleteKind() != cue.StructKind {
		var plain any
		if d.Decode(&plain) == nil {
			found["default"] = plain
		}
	}
	if least, ok := minimum(v, 3); ok && property["type"] == "integer" {
		found["minimum"] = least
	}
	return found
}

// minimum returns the n of a >=n in v.
func minimum(v cue.Value, depth int) (int64, bool) {
	op, args := v.Expr()
	if op == cue.GreaterThanEqualOp {
		n, err := args[0].Int64()
		return n, err == nil
	}
	if depth == 0 { // the expression of a plain value is the value itself
		return 0, false
	}
	for _, a := range args {
		if n, ok := minimum(a, depth-1); ok {
			return n, true
		}
	}
	return 0, false
}

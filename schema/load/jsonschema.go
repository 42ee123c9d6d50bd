package load

import (
	"encoding/json"
	"fmt"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/encoding/jsonschema"
)

// JSONSchema returns the schema as JSON Schema, Draft 2020-12, so that editors
// complete and check YAML and JSON. The JSON Schema accepts everything that Load accepts. It does not
// find mistakes that only the whole configuration shows. It accepts all manifests, because
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
	all, _ := doc["$defs"].(map[string]any)
	for definitions.Next() {
		if d, ok := all[strings.TrimPrefix(definitions.Selector().String(), "#")].(map[string]any); ok {
			restore(d, definitions.Value(), specOf(definitions.Value()))
		}
	}
	all["Config"] = map[string]any{"type": "object", "properties": doc["properties"], "additionalProperties": false}
	return json.MarshalIndent(map[string]any{
		"$schema": doc["$schema"], "$defs": all, "title": "The configuration of backing-image-manager", "type": "object",
		// All manifests are accepted.
		"if": map[string]any{"required": []string{"apiVersion", "kind"}}, "else": map[string]any{"$ref": "#/$defs/Config"},
	}, "", "  ")
}

func generate(context *cue.Context, root cue.Value) (doc map[string]any, err error) {
	expr, err := jsonschema.Generate(root.LookupPath(cue.ParsePath("#Config")),
		&jsonschema.GenerateConfig{Version: jsonschema.VersionDraft2020_12})
	if err != nil {
		return nil, err
	}
	b, err := context.BuildExpr(expr).MarshalJSON()
	if err != nil {
		return nil, err
	}
	return doc, json.Unmarshal(b, &doc)
}

// restore adds to a definition what the generator loses: defaults, the bounds of numbers that
// have a default, and the number of fields of a struct.
func restore(d map[string]any, v cue.Value, s *spec) {
	if s.one {
		d["minProperties"], d["maxProperties"], d["additionalProperties"] = 1, 1, false
	}
	properties, _ := d["properties"].(map[string]any)
	for name, property := range properties {
		p, known := property.(map[string]any)
		if !known || s.fields[name] == nil {
			continue
		}
		if fallback := s.fields[name].fallback; fallback != nil {
			p["default"] = fallback
		}
		if least, ok := minimum(v.LookupPath(cue.MakePath(cue.Str(name).Optional())), 3); ok && p["type"] == "integer" {
			p["minimum"] = least
		}
	}
}

// minimum returns the number n of the first constraint >=n in v, at most depth levels deep.
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

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// fieldDifference is one value that is declared otherwise, as a text; "" where there is
// none.
type fieldDifference struct {
	Field string `json:"field"` // images.parrot.minNumberOfCopies
	Old   string `json:"old"`
	New   string `json:"new"`
}

func newDifference(old, now schema.Config) difference {
	d := difference{Difference: reconcile.Compare(old, now), Fields: []fieldDifference{}}
	changed := map[string]bool{}
	for _, one := range d.Images {
		changed["images."+one.Image+"."] = one.Change == reconcile.Changed
	}
	for _, one := range d.Nodes {
		changed["nodes."+one.Node+"."] = one.Change == reconcile.Changed
	}
	before, after := fieldsOf(old, changed), fieldsOf(now, changed)
	fields := slices.AppendSeq(slices.Collect(maps.Keys(before)), maps.Keys(after))
	slices.Sort(fields)
	for _, field := range slices.Compact(fields) {
		if before[field] != after[field] {
			d.Fields = append(d.Fields, fieldDifference{field, before[field], after[field]})
		}
	}
	return d
}

// fieldsOf has the values of settings, and of those images and nodes that changed, by
// the path of the field, as validate -o json shows them.
func fieldsOf(c schema.Config, changed map[string]bool) map[string]string {
	fields := map[string]string{}
	add := func(path string, view any) {
		b, err := json.Marshal(view)
		var tree any
		if err == nil {
			err = json.Unmarshal(b, &tree)
		}
		if err != nil {
			panic("show a configuration: " + err.Error()) // it was made of text
		}
		flatten(fields, path, tree)
	}
	add("settings", viewSettings(c.Settings))
	for name, one := range c.Images {
		if changed["images."+name+"."] {
			add("images."+name, viewImage(one))
		}
	}
	for name, one := range c.Nodes {
		if changed["nodes."+name+"."] {
			add("nodes."+name, viewNode(one))
		}
	}
	return fields
}

func flatten(fields map[string]string, path string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for name, one := range v {
			flatten(fields, path+"."+name, one)
		}
		if len(v) == 0 {
			fields[path] = "{}"
		}
	case []any:
		words := make([]string, len(v))
		for i, one := range v {
			words[i] = fmt.Sprint(one)
		}
		fields[path] = strings.Join(words, ", ")
	case float64:
		fields[path] = fmt.Sprintf("%.0f", v) // there are only whole ones
	default:
		fields[path] = fmt.Sprint(v)
	}
}

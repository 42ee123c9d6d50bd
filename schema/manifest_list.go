package schema

import (
	"slices"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// list reads what a list has.
func (c *content) list(doc *document.Value) {
	items := c.items(doc)
	if items != nil && len(items.Items) == 0 {
		c.skip(doc, "has no items")
	}
	if items != nil {
		for _, i := range items.Items {
			c.item(i)
		}
	}
}

// item reads one of a list. One that was cut off is null.
func (c *content) item(i *document.Value) {
	if i.Kind == document.Null {
		c.problem(i.Pos, document.Path{"items"}, "has an item with nothing in it", "remove it")
		return
	}
	c.document(i)
}

// items returns what a list has, nil after telling that it cannot be one. A list that was
// cut off has none, and is not taken for one that is empty.
func (c *content) items(doc *document.Value) *document.Value {
	at := document.Path{"items"}
	switch items := doc.Field("items"); {
	case items == nil:
		c.problem(doc.Pos, at, "is missing", "if the list is meant to be empty, write \"items: []\"")
	case items.Value.Kind == document.Null:
		c.problem(items.Pos, at, "has nothing in it", "write \"items: []\" if that is meant")
	case items.Value.Kind != document.List:
		c.problem(items.Value.Pos, at, "has to be a list, not "+items.Value.Kind.String(), "")
	default:
		return items.Value
	}
	return nil
}

// listOfKind reads a list of manifests of one kind, which need not name it.
// Other programs have lists of other things.
func (c *content) listOfKind(doc *document.Value, of string, ours bool) {
	items := doc.Field("items")
	if !ours && (items == nil || slices.ContainsFunc(items.Value.Items, func(i *document.Value) bool { return i.Kind != document.Map })) {
		c.skip(doc, "is not ours")
		return
	}
	if ours {
		if twice := doc.RepeatedField("items"); twice != nil {
			c.problem(twice.Pos, document.Path{twice.Name}, "is given twice", "keep one of them")
			return
		}
		if c.items(doc) == nil {
			return
		}
		if len(items.Value.Items) == 0 {
			c.skip(doc, "has no items")
		}
	}
	for _, i := range items.Value.Items {
		if i.Kind == document.Map && i.Field("apiVersion") == nil {
			i.Fields = append(i.Fields, *doc.Field("apiVersion"))
		}
		if i.Kind == document.Map && i.Field("kind") == nil {
			i.Fields = append(i.Fields, document.Field{Name: "kind", Pos: i.Pos, Value: &document.Value{Kind: document.Text, Text: of, Pos: i.Pos}})
		}
		c.item(i)
	}
}

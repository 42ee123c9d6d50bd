package schema

import "slices"

// list reads what a list has.
func (c *content) list(doc *value) {
	items := c.items(doc)
	if items != nil && len(items.items) == 0 {
		c.skip(doc, "has no items")
	}
	if items != nil {
		for _, i := range items.items {
			c.item(i)
		}
	}
}

// item reads one of a list. One that was cut off is null.
func (c *content) item(i *value) {
	if i.kind == nullKind {
		c.problem(i.pos, fieldPath{"items"}, "has an item with nothing in it", "remove it")
		return
	}
	c.document(i)
}

// items returns what a list has, nil after telling that it cannot be one. A list that was
// cut off has none, and is not taken for one that is empty.
func (c *content) items(doc *value) *value {
	at := fieldPath{"items"}
	switch items := doc.child("items"); {
	case items == nil:
		c.problem(doc.pos, at, "is missing", "if the list is meant to be empty, write \"items: []\"")
	case items.value.kind == nullKind:
		c.problem(items.pos, at, "has nothing in it", "write \"items: []\" if that is meant")
	case items.value.kind != listKind:
		c.problem(items.value.pos, at, "has to be a list, not "+items.value.kind.describe(), "")
	default:
		return items.value
	}
	return nil
}

// listOfKind reads a list of manifests of one kind, which need not name it.
// Other programs have lists of other things.
func (c *content) listOfKind(doc *value, of string, ours bool) {
	items := doc.child("items")
	if !ours && (items == nil || slices.ContainsFunc(items.value.items, func(i *value) bool { return i.kind != mapKind })) {
		c.skip(doc, "is not ours")
		return
	}
	if ours {
		if twice := doc.again("items"); twice != nil {
			c.problem(twice.pos, fieldPath{twice.name}, "is given twice", "keep one of them")
			return
		}
		if c.items(doc) == nil {
			return
		}
		if len(items.value.items) == 0 {
			c.skip(doc, "has no items")
		}
	}
	for _, i := range items.value.items {
		if i.kind == mapKind && i.child("apiVersion") == nil {
			i.fields = append(i.fields, *doc.child("apiVersion"))
		}
		if i.kind == mapKind && i.child("kind") == nil {
			i.fields = append(i.fields, field{name: "kind", pos: i.pos, value: &value{kind: textKind, text: of, pos: i.pos}})
		}
		c.item(i)
	}
}

package document

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Value is a value of a document in any language, with its position. A mapping keeps the
// order of its fields, and repeated fields.
type Value struct {
	Kind   Kind
	Block  bool   // a YAML text after "|"
	Text   string // of a scalar, as written
	Number any    // int64 or float64; nil if the text is no finite number
	Fields []Field
	Items  []*Value
	Pos    Position
}

// Field is a field of a mapping.
type Field struct {
	Name  string
	Pos   Position // of the name
	Value *Value
	Added bool // this program added the field: it is not in the document
}

// Kind is the type of a value.
type Kind uint8

// The kinds of values. Those up to Text are scalars.
const (
	Null Kind = iota
	Bool
	Number
	Text
	List
	Map
)

// String returns the kind for a message, with its article.
func (k Kind) String() string {
	return [...]string{"null", "a boolean", "a number", "a string", "a list", "a mapping"}[k]
}

// IsScalar reports whether the value is neither a list nor a mapping.
func (v *Value) IsScalar() bool { return v.Kind <= Text }

// Field returns the first field with that name, or nil.
func (v *Value) Field(name string) *Field {
	for i := range v.Fields {
		if v.Fields[i].Name == name {
			return &v.Fields[i]
		}
	}
	return nil
}

// RepeatedField returns the first field that repeats one of these names, or nil.
func (v *Value) RepeatedField(names ...string) *Field {
	seen := map[string]bool{}
	for i, f := range v.Fields {
		if seen[f.Name] && slices.Contains(names, f.Name) {
			return &v.Fields[i]
		}
		seen[f.Name] = true
	}
	return nil
}

// Find returns the value at a path, and the position of its name. If there is no such value,
// it returns nil and the position of the last existing element of the path. If no element
// exists, the position is parent.
func (v *Value) Find(path Path, parent Position) (*Value, Position) {
	for _, element := range path {
		next, pos := v.Element(element)
		if next == nil {
			return nil, parent
		}
		if pos.Line > 0 {
			parent = pos
		}
		v = next
	}
	return v, parent
}

// Element returns the value of the field or of the list item "[n]" with that name, and the
// position of the name. It returns nil for no such value.
func (v *Value) Element(name string) (*Value, Position) {
	if v.Kind == List {
		if i, ok := listIndex(name); ok && i < len(v.Items) {
			return v.Items[i], v.Items[i].Pos
		}
		return nil, Position{}
	}
	if f := v.Field(name); f != nil {
		return f.Value, f.Pos
	}
	return nil, Position{}
}

// TextAt returns the text of the scalar at a path, or "" if there is none.
func (v *Value) TextAt(path ...string) string {
	if found, _ := v.Find(path, Position{}); found != nil {
		return found.Text
	}
	return ""
}

// Leaves calls do(path, leaf) for each leaf of value v: scalars, empty lists and empty
// mappings.
func (v *Value) Leaves(path Path, do func(Path, *Value)) {
	if len(v.Fields)+len(v.Items) == 0 {
		do(path, v)
	}
	for _, f := range v.Fields {
		f.Value.Leaves(path.With(f.Name), do)
	}
	for i, item := range v.Items {
		item.Leaves(path.WithIndex(i), do)
	}
}

// Relocate replaces each position in value v.
func (v *Value) Relocate(translate func(Position) Position) {
	v.Pos = translate(v.Pos)
	for i := range v.Fields {
		v.Fields[i].Pos = translate(v.Fields[i].Pos)
		v.Fields[i].Value.Relocate(translate)
	}
	for _, item := range v.Items {
		item.Relocate(translate)
	}
}

// DropNulls removes all fields in value v that are null. Kubernetes treats them as absent.
func (v *Value) DropNulls() {
	v.Fields = slices.DeleteFunc(v.Fields, func(f Field) bool { return f.Value.Kind == Null })
	for _, f := range v.Fields {
		f.Value.DropNulls()
	}
	for _, item := range v.Items {
		item.DropNulls()
	}
}

// TextSize returns the number of bytes of all texts and names in value v.
func (v *Value) TextSize() int {
	n := len(v.Text)
	for _, f := range v.Fields {
		n += len(f.Name) + f.Value.TextSize()
	}
	for _, item := range v.Items {
		n += item.TextSize()
	}
	return n
}

// Sum returns a hash of the value without its positions.
func (v *Value) Sum() (sum [sha256.Size]byte) {
	h := sha256.New()
	v.writeTo(h)
	h.Sum(sum[:0])
	return sum
}

func (v *Value) writeTo(h hash.Hash) {
	b := []byte{byte(v.Kind)}
	b = appendText(b, v.Text)
	switch n := v.Number.(type) {
	case int64:
		b = binary.BigEndian.AppendUint64(append(b, 'i'), uint64(n))
	case float64:
		b = binary.BigEndian.AppendUint64(append(b, 'f'), math.Float64bits(n))
	}
	b = binary.AppendUvarint(b, uint64(len(v.Fields)))
	b = binary.AppendUvarint(b, uint64(len(v.Items)))
	h.Write(b)
	for _, f := range v.Fields {
		h.Write(appendText(nil, f.Name))
		if f.Added {
			h.Write([]byte{0xff}) // no Kind
		}
		f.Value.writeTo(h)
	}
	for _, item := range v.Items {
		item.writeTo(h)
	}
}

// appendText appends the length and then the text, so that different sequences of texts
// have different encodings.
func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// Path leads to a value: names of fields, and "[0]" for the first item of a list.
type Path []string

// With returns the path of a field below path p.
func (p Path) With(name string) Path { return append(slices.Clip(p), name) }

// WithIndex returns the path of list item i below path p.
func (p Path) WithIndex(i int) Path { return p.With(fmt.Sprintf("[%d]", i)) }

// Within reports whether path p is equal to path q or below it.
func (p Path) Within(q Path) bool { return len(p) >= len(q) && slices.Equal(p[:len(q)], q) }

// Parent returns the path without its last element.
func (p Path) Parent() Path { return p[:max(0, len(p)-1)] }

// String returns the path with dots, such as "disks[0].path".
func (p Path) String() string {
	var b strings.Builder
	for _, name := range p {
		if b.Len() > 0 && !strings.HasPrefix(name, "[") {
			b.WriteByte('.')
		}
		b.WriteString(Printable(name))
	}
	return b.String()
}

// MarshalText encodes the path like String.
func (p Path) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText decodes a path into one element: names may contain dots, so the text
// cannot be split. String returns the same text again.
func (p *Path) UnmarshalText(text []byte) error {
	*p = Path{string(text)}
	return nil
}

func listIndex(element string) (int, bool) {
	i, err := strconv.Atoi(strings.Trim(element, "[]"))
	return i, err == nil && i >= 0
}

package schema

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"math"
)

// value is what a document says somewhere, with its place, whatever the document was
// written in. A mapping keeps its fields in order, repeated ones included.
type value struct {
	kind   kind
	text   string // as written, of a scalar
	number any    // int64 or float64; nil where it is neither
	fields []field
	items  []*value
	pos    Position
	block  bool // a text in YAML after "|"
}

type field struct {
	name  string
	pos   Position
	value *value
}

type kind uint8

const (
	nullKind kind = iota
	boolKind
	numberKind
	textKind
	listKind
	mapKind
)

// describe names the kind for a message.
func (k kind) describe() string {
	return [...]string{"nothing", "true or false", "a number", "a text", "a list", "a mapping"}[k]
}

func (n *value) scalar() bool { return n.kind <= textKind }

// child returns the first field of that name, or nil.
func (n *value) child(name string) *field {
	for i := range n.fields {
		if n.fields[i].name == name {
			return &n.fields[i]
		}
	}
	return nil
}

// sum is the hash of what n says, wherever it stands.
func (n *value) sum() (s [sha256.Size]byte) {
	h := sha256.New()
	n.writeTo(h)
	h.Sum(s[:0])
	return s
}

func (n *value) writeTo(h hash.Hash) {
	b := []byte{byte(n.kind)}
	b = appendText(b, n.text)
	switch v := n.number.(type) {
	case int64:
		b = binary.BigEndian.AppendUint64(append(b, 'i'), uint64(v))
	case float64:
		b = binary.BigEndian.AppendUint64(append(b, 'f'), math.Float64bits(v))
	}
	b = binary.AppendUvarint(b, uint64(len(n.fields)))
	b = binary.AppendUvarint(b, uint64(len(n.items)))
	h.Write(b)
	for _, f := range n.fields {
		h.Write(appendText(nil, f.name))
		f.value.writeTo(h)
	}
	for _, i := range n.items {
		i.writeTo(h)
	}
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

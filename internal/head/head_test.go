package head

import (
	"io"
	"strings"
	"testing"
)

func TestBufferKeepsTheBeginning(t *testing.T) {
	var b Buffer
	text := "fatal: " + strings.Repeat("x", maxText)
	for _, part := range []string{text[:10], text[10:], "the end"} {
		if n, err := io.WriteString(&b, part); n != len(part) || err != nil {
			t.Fatalf("wrote %d of %d bytes, error %v", n, len(part), err)
		}
	}
	if b.String() != text[:maxText] {
		t.Errorf("it has %d bytes, which begin with %.20q", len(b.String()), b.String())
	}
}

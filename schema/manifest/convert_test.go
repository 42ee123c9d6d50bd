package manifest

import (
	"strings"
	"testing"
)

func TestLonghornName(t *testing.T) {
	for name, want := range map[string]string{
		"parrot":                "parrot",
		"Parrot":                "parrot",
		strings.Repeat("a", 40): strings.Repeat("a", 40),
		"a-name-that-is-longer-than-forty-letters":       "a-name-that-is-longer-than-forty-letters",
		"snapshot-01234567-89ab-cdef-0123-456789abcdef":  "snapshot-01234567-89ab-cdef-012-1a294bbb",
		strings.Repeat("a", 28) + "-----" + "bbbbbbbbbb": strings.Repeat("a", 28) + "-3961e309",
	} {
		if got := LonghornName(name); got != want || len(got) > 40 {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
}

package document

import (
	"strings"
	"testing"
)

// An alias needs no memory for the text that it repeats, but a load hashes and checks the text each time.
func TestAliasesRepeatLimitedText(t *testing.T) {
	long := strings.Repeat("x", textOfValue*MaxAliased/10)
	for name, text := range map[string]string{
		"values":           "[&a " + long + strings.Repeat(", *a", 11) + "]",
		"names":            "- &a " + long + strings.Repeat("\n- *a : 1", 11),
		"names in aliases": "- &a {? " + long + " : 1}" + strings.Repeat("\n- *a", 11),
	} {
		limits := Limits{Aliased: MaxAliased}
		if _, p := ParseYAML("a.yaml", []byte(text), &limits); p == nil || !strings.Contains(p.Message, "too much text") {
			t.Errorf("%s: got %v, want too much text", name, p)
		}
	}
	limits := Limits{Aliased: MaxAliased}
	if _, p := ParseYAML("a.yaml", []byte("[&a "+long+strings.Repeat(", *a", 9)+"]"), &limits); p != nil {
		t.Errorf("9 aliases: %v", p)
	}
}

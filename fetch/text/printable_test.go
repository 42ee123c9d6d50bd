package text

import (
	"encoding/json"
	"testing"
	"unicode"
)

// hostile has everything that a terminal or a reader could obey.
const hostile = "a\x1b]0;x\x07\x9b\u009b31m\u0085b\u202e\u2066c\u200bd\ufeff\u2028\x7f\r\n\te\xff\xc3\U000e0041f"

func TestLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "",
		"  a message, ä 世界 😀\n":                 "  a message, ä 世界 😀",
		"replica \x1b]0;x\a\u202e:\n  in use\n": "replica \ufffd]0;x\ufffd\ufffd:;   in use",
		"one\r\ntwo\r\n":                        "one; two",
		"one\rtwo\tthree":                       "one\ufffdtwo\ufffdthree",
		"\x9b\xff":                              "\ufffd\ufffd",
	} {
		if got := Line(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	for _, r := range Line(hostile) {
		if !unicode.IsPrint(r) {
			t.Errorf("%U is left", r)
		}
	}
}

func TestLinesKeepsLinesAndTabs(t *testing.T) {
	if got, want := Lines("a\n\tb\x1b\u202e\r\n"), "a\n\tb\ufffd\ufffd\ufffd\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPrintableJSONKeepsItsMeaning(t *testing.T) {
	encoded, err := json.MarshalIndent(map[string]string{hostile: hostile, "plain": "ä 世界 😀"}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	var want, got map[string]string
	if err := json.Unmarshal(encoded, &want); err != nil {
		t.Fatal(err)
	}
	safe := PrintableJSON(encoded)
	for _, r := range string(safe) {
		if !unicode.IsPrint(r) && r != '\n' {
			t.Errorf("%U is left", r)
		}
	}
	if err := json.Unmarshal(safe, &got); err != nil {
		t.Fatal(err)
	}
	for key, value := range want {
		if got[key] != value {
			t.Errorf("%q became %q", value, got[key])
		}
	}
}

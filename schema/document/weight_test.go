package document

import (
	"bytes"
	"testing"

	"go.yaml.in/yaml/v3"
)

// count returns the number of values and names below v.
func count(v *Value) int {
	n := 1
	for _, f := range v.Fields {
		n += 1 + count(f.Value)
	}
	for _, item := range v.Items {
		n += count(item)
	}
	return n
}

// nodes returns the number of nodes that the YAML parser makes of a text before it fails.
func nodes(data []byte) int {
	n := 0
	var visit func(*yaml.Node)
	visit = func(y *yaml.Node) {
		n++
		for _, c := range y.Content {
			visit(c)
		}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		if err := decoder.Decode(&doc); err != nil {
			return n
		}
		for _, c := range doc.Content {
			visit(c)
		}
	}
}

func TestWeightOfUsualText(t *testing.T) {
	const yamlText = `
# a comment: with - what looks like values
images:
  parrot:
    source:
      download:
        url: https://example.com:8443/a/b-c?d=e
        mirrors:
          - https://example.org/x
    checksum: "sha256:0123"
    nodeSelector: [edge, ssd]
---
settings: {minNumberOfCopies: 2}
`
	if w, n := Weight([]byte(yamlText)), nodes([]byte(yamlText)); w < n || w > 2*n {
		t.Errorf("YAML of %d values has the weight %d", n, w)
	}
	const jsonText = `{"images": {"parrot": {"source": {"download": {"url": "x", "mirrors": ["y", "z"]}}, "nodeSelector": ["edge"]}}}`
	v, p := ParseJSON("a.json", []byte(jsonText))
	if p != nil {
		t.Fatal(p)
	}
	if w, n := Weight([]byte(jsonText)), count(v); w < n || w > 2*n {
		t.Errorf("JSON of %d values has the weight %d", n, w)
	}
}

// FuzzWeight checks that no text has more values than Weight promises.
func FuzzWeight(f *testing.F) {
	for _, text := range []string{
		"a: 1", "- - - x", "[0,0,0]", "{a,b,c}", "{a: b, c: d}", "[a: b, c: d]", "? a\n? b", "? - a\n: - b", "--- a\n--- b", "a\n...\nb\n...\n",
		"&a b: *a", "[*a:b]", "{\"a\":1,'b':2}", "{a :b}", "[[[]]]", ": : :", "a:\u2028- b\u2028- c", "-\u0085-\u0085", "a: |\n  b: c\n", "{? ,? }",
		"[&a x, *a:b, *a:b]", "!!map {a: b}", "- ? - ? - a", "a:\n- b\n-\n-\n", `{"a":{"b":[1,2,{}]},"c":[[],[]]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if n, w := nodes(data), Weight(data); n > 2*w {
			t.Errorf("YAML of %d values has the weight %d", n, w)
		}
		if v, p := ParseJSON("a.json", data); p == nil {
			if n, w := count(v), Weight(data); n > 2*w {
				t.Errorf("JSON of %d values has the weight %d", n, w)
			}
		}
	})
}

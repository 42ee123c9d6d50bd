package hostile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

func (g *generator) cueComprehensions() []configdir.File {
	levels, most := 1+g.IntN(6), g.number(3000)
	var b strings.Builder
	b.WriteString("import \"list\"\n")
	b.WriteString(pick(g, "images: {", "x: [", "images: x1: {"))
	isList := strings.HasSuffix(b.String(), "[")
	for l := range levels {
		fmt.Fprintf(&b, "for i%d in list.Range(0, %d, 1) ", l, most)
		if g.IntN(4) == 0 {
			fmt.Fprintf(&b, "if i%d > %d ", l, g.IntN(10))
		}
	}
	b.WriteString("{")
	if isList {
		b.WriteString("i0")
	} else {
		b.WriteString(pick(g, `"a\(i0)": source: upload: {}`, `"a\(i0)": {"b\(i0)": i0}`, `"\(i0)": [for x in list.Range(0, 1000, 1) {x}]`))
	}
	b.WriteString("}" + pick(g, "}", "]") + "\n")
	text := b.String()
	if isList {
		text = strings.TrimRight(text, "}]\n") + "}]\n"
	} else {
		text = strings.TrimRight(text, "}]\n") + "}}\n"
	}
	return file("x.cue", text)
}

func (g *generator) cueDisjunctions() []configdir.File {
	alternatives, fields := 2+g.IntN(40), 1+g.IntN(40)
	var all []string
	for i := range alternatives {
		all = append(all, pick(g, fmt.Sprintf("{a%d: %d}", i%7, i), fmt.Sprint(i), fmt.Sprintf("*{b: %d, c: _}", i), fmt.Sprintf("[%d, ...]", i)))
	}
	d := strings.Join(all, " | ")
	var b strings.Builder
	fmt.Fprintf(&b, "d: %s\n", d)
	for i := range fields {
		fmt.Fprintf(&b, "x: (%s) & d\ny: f%d: d & (%s)\n", d, i, d)
	}
	b.WriteString("images: x1: x & y & d\n")
	return file("x.cue", b.String())
}

func (g *generator) cueDoubling() []configdir.File {
	n := 10 + g.IntN(60)
	var b strings.Builder
	b.WriteString("import \"strings\"\n")
	switch g.IntN(5) {
	case 0:
		b.WriteString("a0: \"xxxxxxxx\"\n")
		for i := range n {
			fmt.Fprintf(&b, "a%d: a%d + a%d\n", i+1, i, i)
		}
	case 1:
		b.WriteString("a0: {x: 1}\n")
		for i := range n {
			fmt.Fprintf(&b, "a%d: {l: a%d, r: a%d}\n", i+1, i, i)
		}
	case 2:
		fmt.Fprintf(&b, "a0: strings.Repeat(\"x\", %d)\na1: [for i in strings.Split(a0, \"\") {a0}]\n", 1<<(10+g.IntN(20)))
	case 3:
		b.WriteString("a0: [1, 2]\n")
		for i := range n {
			fmt.Fprintf(&b, "a%d: [for x in a%d for y in a%d {x}]\n", i+1, i, i)
		}
	default:
		b.WriteString("a0: '\\xff'\n")
		for i := range n {
			fmt.Fprintf(&b, "a%d: a%d * 4\n", i+1, i)
		}
	}
	fmt.Fprintf(&b, "images: x1: suspend: reason: a%d\n_s: strings.MinRunes(1)\n", n)
	return file("x.cue", b.String())
}

func (g *generator) cueRecursion() []configdir.File {
	text := pick(g,
		"#A: {a: #A}\nimages: x1: #A\n",
		"#A: {n: int, if n > 0 {next: #A & {n: n - 1}}}\nimages: x1: #A & {n: 100000}\n",
		"#F: {n: int, out: int, if n < 2 {out: n}, if n >= 2 {out: (#F & {\"n\": n - 1}).out + (#F & {\"n\": n - 2}).out}}\nimages: x1: minNumberOfCopies: (#F & {n: 60}).out\n",
		"a: b\nb: c\nc: a\nimages: a\n",
		"images: x1: images\n",
		"a: [...a]\nimages: a\n",
		"#T: [string]: #T\nimages: #T & {x1: x1: x1: {}}\n",
		"#L: {head: _, tail: null | #L}\nimages: x1: #L & {head: 1, tail: #L & {head: 2}}\n",
		"a: b + 1\nb: a + 1\nimages: x1: minNumberOfCopies: a\n",
		"let X = {y: X}\nimages: X\n",
		"a: {for k, v in a {\"\\(k)x\": v}, b: 1}\nimages: a\n",
		"#R: {x: #R | *1}\nimages: x1: #R & {x: x: x: x: x: x: 1}\n",
		"#M: {[=~\"^a\"]: #M}\nimages: #M & {a: a: a: a: a: {}}\n",
		"_#C: {n: int, v: [if n > 0 for i in [0, 1] {(_#C & {\"n\": n - 1}).v}]}\nimages: x1: nodeSelector: (_#C & {n: 40}).v\n",
	)
	return file("x.cue", text+"// "+strings.Repeat("x", g.number(1000))+"\n")
}

func (g *generator) cueDefinitions() []configdir.File {
	n := g.number(max(2, g.size/40))
	var b strings.Builder
	switch g.IntN(5) {
	case 0: // a chain of references
		b.WriteString("a0: source: upload: {}\n")
		for i := range n {
			fmt.Fprintf(&b, "a%d: a%d\n", i+1, i)
		}
		fmt.Fprintf(&b, "images: x1: a%d\n", n)
	case 1: // a chain of unifications
		b.WriteString("#a0: {source: _, ...}\n")
		for i := range n {
			fmt.Fprintf(&b, "#a%d: #a%d & {f%d: _, ...}\n", i+1, i, i)
		}
		fmt.Fprintf(&b, "images: x1: #a%d\n", n)
	case 2: // all match all patterns
		for i := range n {
			fmt.Fprintf(&b, "images: [=~\"%d\"]: f%d: %d\nimages: a%d: source: upload: {}\n", i%10, i, i, i)
		}
	case 3:
		for i := range n {
			fmt.Fprintf(&b, "images: a%d: source: upload: {}\n", i)
		}
	default:
		for i := range n {
			fmt.Fprintf(&b, "images: x1: {minNumberOfCopies: <%d, suspend: reason: !=\"%d\"}\n", i+1, i)
		}
	}
	return file("x.cue", b.String())
}

func (g *generator) cueExpressions() []configdir.File {
	n := g.number(g.size / 4)
	return file("x.cue", pick(g,
		"images: x1: minNumberOfCopies: "+strings.Repeat("1+", n)+"1\n",
		"images: x1: minNumberOfCopies: "+strings.Repeat("-", n)+"1\n",
		"images: x1: minNumberOfCopies: "+strings.Repeat("9", n)+" * "+strings.Repeat("9", n)+"\n",
		"import \"math\"\nimages: x1: minNumberOfCopies: math.Pow(9, math.Pow(9, 9))\n",
		"import \"math\"\nimages: x1: minNumberOfCopies: math.Exp(100000000) + math.Log(1e-100000000)\n",
		"images: x1: minNumberOfCopies: 1e"+strings.Repeat("9", 1+g.IntN(12))+" + 1\n",
		"images: x1: minNumberOfCopies: div(1e100000, 3) rem 7\n",
		"import \"json\"\nimages: x1: suspend: reason: json.Marshal(json.Unmarshal(\""+strings.Repeat("[", n)+"\"))\n",
		"import \"encoding/json\"\nimages: json.Unmarshal(#\"{\"a\":"+strings.Repeat("[", min(n, 10_000))+strings.Repeat("]", min(n, 10_000))+"}\"#)\n",
		"import \"encoding/yaml\"\nimages: yaml.Unmarshal(\"a: &a [x,x]\\n"+strings.Repeat("b: &b [*a,*a]\\n", 20)+"\")\n",
		"import \"strings\"\nimages: x1: suspend: reason: strings.Replace(strings.Repeat(\"x\", 1000000), \"x\", strings.Repeat(\"y\", 1000000), -1)\n",
		"import \"list\"\nimages: x1: nodeSelector: list.FlattenN(list.Repeat([[\"a\"]], 1000000000), -1)\n",
		"import \"list\"\nimages: x1: nodeSelector: list.SortStrings(list.Repeat([\"a\", \"b\"], 10000000))\n",
		"import \"text/template\"\nimages: x1: suspend: reason: template.Execute(\"{{range $i := .a}}{{range $j := $.a}}{{range $.a}}x{{end}}{{end}}{{end}}\", {a: ["+strings.Repeat("1,", min(n, 3000))+"]})\n",
		"import \"crypto/sha512\"\nimport \"strings\"\nimages: x1: checksum: \"\\(sha512.Sum512(strings.Repeat(\"x\", 1000000000)))\"\n",
		"import \"net\"\nimport \"time\"\nimages: x1: suspend: until: time.Format(net.ParseIP(\"::1\"), time.RFC3339)\n",
	))
}

func (g *generator) cuePatterns() []configdir.File {
	n := 1 + g.IntN(1000)
	pattern := pick(g, fmt.Sprintf("(a{%d}){%d}", n, n), "(x+x+)+y", strings.Repeat("(", n)+"a"+strings.Repeat(")*", n), strings.Repeat("a?", n)+strings.Repeat("a", n), "[\\\\pL\\\\pN]{1000}"+strings.Repeat("|x", n), strings.Repeat(".*", n))
	return file("x.cue", fmt.Sprintf("images: [=~%q]: {source: upload: {}}\nimages: \"%s\": {}\nx: \"%s\" & =~%q & !~%q\n", pattern, strings.Repeat("a", 1+g.IntN(40)), strings.Repeat("x", g.number(g.size)), pattern, pattern))
}

func (g *generator) cueImports() []configdir.File {
	from := pick(g, "tool/exec", "tool/file", "tool/http", "tool/os", "./a", "../..", "example.com/a", "example.com/a@v1", "/etc", "file:///etc/passwd", "a:b", "", "strings:x", "struct", "uuid", "net/http", "\\u0061", "crypto/md5")
	all := file("x.cue", fmt.Sprintf("%s\npackage x\n\nimport %s\nimages: x1: suspend: reason: \"\\(a)\" @tag(x,var=cwd) @embed(file=%q) @extern(%q)\n",
		pick(g, "@extern(embed)", "@if(x)", "@extern(\"wasm\")", "@ignore()", ""), pick(g, fmt.Sprintf("%q", from), fmt.Sprintf("a %q", from), fmt.Sprintf("(\n\ta %q\n)", from), strings.TrimSuffix(strings.Repeat(fmt.Sprintf("%q; import ", from), g.number(100)), "; import ")),
		pick(g, "/etc/passwd", "../../x", "x.cue", "*", "a/*.yaml", "/proc/self/environ"), from))
	if g.IntN(2) == 0 {
		all = append(all, file("cue.mod/module.cue", pick(g, "module: \"example.com\"\nlanguage: version: \"v0.9.0\"\n", "module: \"../..\"\n", "deps: \"example.com/a@v1\": v: \"v1.0.0\"\nmodule: \"x.com@v0\"\nlanguage: version: \"v0.9.0\"\n", "{", strings.Repeat("(", 10_000)))...)
		all = append(all, file("a/a.cue", pick(g, "package a\nimport \"example.com/a\"\nx: a.x\n", "package a\nx: x\n", "package a\n"+strings.Repeat("x: y: ", 2000)+"1\n"))...)
	}
	return all
}

// cueUnits are many packages, of which each takes long.
func (g *generator) cueUnits() []configdir.File {
	n := g.number(300)
	most := g.number(2000)
	var all []configdir.File
	for i := range n {
		all = append(all, file(fmt.Sprintf("x%d.cue", i), fmt.Sprintf("import \"list\"\nimages: {for i in list.Range(0, %d, 1) for j in list.Range(0, %d, 1) {\"a%d-\\(i)\": source: upload: {}}}\n", most, g.number(1000), i))...)
	}
	return all
}

func (g *generator) cueDepth() []configdir.File {
	pair := pick(g, [2]string{"(", ")"}, [2]string{"{a: ", "}"}, [2]string{"[", "]"}, [2]string{"a: ", ""}, [2]string{"!", ""}, [2]string{"\"\\(", ")\""}, [2]string{"if true {", "}"}, [2]string{"a.", ""}, [2]string{"*", ""}, [2]string{"{", "}"})
	n := g.number(max(1, g.size/len(pair[0])))
	return file("x.cue", "images: "+pick(g, "x1: ", "")+strings.Repeat(pair[0], n)+pick(g, "1", "{}", "x")+strings.Repeat(pair[1], pick(g, n, 0))+"\n")
}

// cueMutation writes valid CUE and changes it at some places.
func (g *generator) cueMutation() []configdir.File {
	b := []byte(strings.Join([]string{
		"package x\n", "import \"list\"\n", "#I: {source: upload: {}, minNumberOfCopies: int | *1}\n", "let N = 3\n",
		"images: {for i in list.Range(0, N, 1) {\"a\\(i)\": #I}}\n", "nodes: n1: disks: d1: path: \"/d\"\n", "settings: minNumberOfCopies: len([1, 2])\n",
		"if N > 2 {images: b1: #I & {minNumberOfCopies: 2}}\n", "images: [=~\"^a\"]: minNumberOfCopies: >0\n",
	}, ""))
	for range g.number(30) {
		at := g.IntN(len(b) + 1)
		end := min(len(b), at+g.IntN(30))
		switch g.IntN(4) {
		case 0:
			b = slices.Concat(b[:at], []byte(pick(g, g.word(), "&", "|", "...", "_|_", "for x in y ", "=~", "@a(", "let ", "#", "?:", "!:")), b[at:])
		case 1:
			b = slices.Concat(b[:at], b[end:])
		case 2:
			b = slices.Concat(b[:at], b[at:end], b[at:end], b[at:])
		case 3:
			if at < len(b) {
				b[at] = byte('0' + g.IntN(75))
			}
		}
	}
	return []configdir.File{{Path: "x.cue", Data: b}}
}

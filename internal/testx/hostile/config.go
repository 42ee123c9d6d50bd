package hostile

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// Config is a generated config directory.
type Config struct {
	Kind  string // of the attack
	Files []configdir.File
}

// generator generates the files of one directory.
type generator struct {
	*rand.Rand
	size  int // about how many bytes the files have together
	valid [][]byte
}

// kind is a kind of attack.
type kind struct {
	name  string
	files func(*generator) []configdir.File
}

// kinds are all kinds of attacks. A seed selects one of them, so that a sequence of seeds has all.
var kinds = []kind{
	{"deep", (*generator).deep},
	{"aliases", one((*generator).aliases)},
	{"merge keys", one((*generator).mergeKeys)},
	{"documents", one((*generator).documents)},
	{"values", (*generator).values},
	{"names", (*generator).names},
	{"invalid definitions", (*generator).invalidDefinitions},
	{"unknown fields", (*generator).unknownFields},
	{"valid definitions", (*generator).validDefinitions},
	{"nodes and disks", (*generator).nodes},
	{"clones", one((*generator).clones)},
	{"long scalars", (*generator).longScalars},
	{"no text", (*generator).noText},
	{"line breaks", one((*generator).lineBreaks)},
	{"config maps", (*generator).configMaps},
	{"manifests", one((*generator).manifests)},
	{"many files", (*generator).manyFiles},
	{"deep folders", (*generator).deepFolders},
	{"mutation", (*generator).mutation},
	{"splice", (*generator).splice},
	{"repetition", (*generator).repetition},
	{"cue comprehensions", (*generator).cueComprehensions},
	{"cue disjunctions", (*generator).cueDisjunctions},
	{"cue doubling", (*generator).cueDoubling},
	{"cue recursion", (*generator).cueRecursion},
	{"cue definitions", (*generator).cueDefinitions},
	{"cue expressions", (*generator).cueExpressions},
	{"cue patterns", (*generator).cuePatterns},
	{"cue imports", (*generator).cueImports},
	{"cue units", (*generator).cueUnits},
	{"cue depth", (*generator).cueDepth},
	{"cue mutation", (*generator).cueMutation},
}

// Kinds is the number of kinds: so many seeds in a row have all of them.
func Kinds() int { return len(kinds) }

// NewConfig generates the config directory of a seed, of at most about maxSize bytes. It mutates the
// configuration files of valid.
func NewConfig(seed uint64, maxSize int, valid fs.FS) Config {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)), valid: read(valid)}
	g.size = 1 << 10
	for g.size < maxSize && g.IntN(12) > 0 { // few are small
		g.size *= 2
	}
	g.size = min(maxSize, g.size+g.IntN(g.size))
	k := kinds[seed%uint64(len(kinds))]
	return Config{k.name, k.files(g)}
}

// read returns the content of all configuration files, in the order of their names.
func read(valid fs.FS) (all [][]byte) {
	err := fs.WalkDir(valid, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !configdir.IsConfig(path.Base(name)) {
			return err
		}
		b, err := fs.ReadFile(valid, name)
		all = append(all, b)
		return err
	})
	if err != nil || len(all) == 0 {
		panic(fmt.Sprintf("hostile: %d valid files, error %v", len(all), err))
	}
	return all
}

func file(name string, data string) []configdir.File {
	return []configdir.File{{Path: name, Data: []byte(data)}}
}

// one makes a generator of a directory from a generator of the text of one YAML file.
func one(text func(*generator) string) func(*generator) []configdir.File {
	return func(g *generator) []configdir.File { return file("x.yaml", text(g)) }
}

func pick[T any](g *generator, all ...T) T { return all[g.IntN(len(all))] }

// number returns a number from 1 to most, small ones as often as large ones.
func (g *generator) number(most int) int {
	n := 1
	for n < most && g.IntN(5) > 0 {
		n *= 2
	}
	return min(most, n+g.IntN(n))
}

// word returns a short text that some language may take for something else.
func (g *generator) word() string {
	return pick(g, "images", "nodes", "settings", "source", "upload", "download", "url", "disks", "<<", "*a", "&a", "!!binary x", "!!python/object:os.system", "~", "null", "yes", "0x1F", "1e999", ".nan", "-.inf",
		"2026-11-23T00:00:00Z", "---", "...", "%YAML 9.9", "%TAG ! tag:x,2000:", "? ", ": ", "- ", "{", "[", "]", "}", "'", "\"", "|", ">", "|9-", "#", "\t", "\\", "\r", "\u2028", "\ufeff", "\x00", "\xff", "$(id)", "{{ .Values }}", "<<<<<<< HEAD", "apiVersion", "kind", "metadata",
		strings.Repeat("x", g.number(4096)), fmt.Sprint(g.Int64()))
}

// fill repeats a part with a number until the text has about the size.
func (g *generator) fill(part func(i int) string) string {
	var b strings.Builder
	for i := 0; b.Len() < g.size; i++ {
		b.WriteString(part(i))
	}
	return b.String()
}

func (g *generator) deep() []configdir.File {
	pairs := pick(g, [2]string{"[", "]"}, [2]string{`{"a":`, "}"}, [2]string{`{"images":`, "}"}, [2]string{"[{\"a\":", "}]"}, [2]string{"- ", ""}, [2]string{"? ", ""}, [2]string{"{? ", "}"}, [2]string{"!!seq [", "]"}, [2]string{"&a [", "]"})
	n := g.size / len(pairs[0])
	if g.IntN(2) == 0 {
		n = g.number(200) // within the limit of a parser
	}
	text := pick(g, "", "images: ", "images: {x1: {source: ", `{"images": `) + strings.Repeat(pairs[0], n) + pick(g, "", "0") + strings.Repeat(pairs[1], pick(g, n, 0, n/2, n+1))
	if g.IntN(4) == 0 {
		text = strings.Join(slices.Collect(func(yield func(string) bool) {
			for i := range min(n, 3000) {
				if !yield(strings.Repeat(" ", i) + "a:") {
					return
				}
			}
		}), "\n")
	}
	return file(pick(g, "x.yaml", "x.json", "x.yml"), text)
}

func (g *generator) aliases() string {
	fan, levels := 1+g.IntN(30), 1+g.IntN(40)
	var b strings.Builder
	if g.IntN(3) == 0 {
		b.WriteString(pick(g, "a: &a [*a]\n", "&a {images: *a}\n", "a: &a {b: &b {c: *a, d: *b}}\n", "images: &a\n  x1: *a\n"))
	}
	b.WriteString("n0: &n0 " + pick(g, "x\n", "[x, x, x]\n", "{a: 1, b: 2}\n", `"`+strings.Repeat("x", g.number(g.size))+"\"\n"))
	for l := range levels {
		b.WriteString(fmt.Sprintf("n%d: &n%d ", l+1, l+1))
		if g.IntN(3) == 0 {
			b.WriteString("{")
			for i := range fan {
				fmt.Fprintf(&b, "k%d: *n%d, ", i, pick(g, l, g.IntN(l+1)))
			}
			b.WriteString("}\n")
			continue
		}
		b.WriteString("[" + strings.Repeat(fmt.Sprintf("*n%d, ", l), fan) + "]\n")
	}
	fmt.Fprintf(&b, "images: {x1: *n%d, x2: {source: *n%d}}\n", levels, g.IntN(levels))
	return b.String()
}

func (g *generator) mergeKeys() string {
	var b strings.Builder
	b.WriteString("n0: &n0 {a: 1}\n")
	n := 1 + g.IntN(200)
	for i := range n {
		list := make([]string, 1+g.IntN(20))
		for j := range list {
			list[j] = fmt.Sprintf("*n%d", g.IntN(i+1))
		}
		fmt.Fprintf(&b, "n%d: &n%d {<<: [%s], b%d: 1, <<: *n%d}\n", i+1, i+1, strings.Join(list, ", "), i, i)
	}
	b.WriteString("images:\n" + g.fill(func(i int) string { return fmt.Sprintf("  x%d: {<<: *n%d, source: {upload: {}}}\n", i, g.IntN(n)) }))
	return b.String()
}

func (g *generator) documents() string {
	part := pick(g, "---\n", "---\nimages: {}\n", "--- x\n", "---\n...\n", "--- {}\n", "---\r", "---\napiVersion: v1\nkind: X\nmetadata: {name: x}\n", "---\n&a x\n", "---\n# x\n", "%YAML 1.2\n---\n", "---\n---\u2028", "--- |\n")
	return g.fill(func(int) string { return part })
}

func (g *generator) values() []configdir.File {
	part := pick(g, "0,", "[],", "{},", `"",`, "null,", `"x",`, "-1,", "[[[0]]],", `{"a":0},`)
	text := `{"images": {}, ` + pick(g, `"x": [`, `"settings": {"pruneConfirmed": [`, `"images": {"x1": {"nodeSelector": [`) + strings.TrimSuffix(g.fill(func(int) string { return part }), ",") + "]}" + pick(g, "", "}}", "}")
	if g.IntN(3) == 0 {
		part := pick(g, "- 0\n", "- - - 0\n", "- a: 0\n", "-\n", "? 0\n", "? [a]\n: b\n", "- |\n  x\n", "- 'x'\n", "- !!str x\n")
		return file("x.yaml", "x:\n"+g.fill(func(int) string { return part }))
	}
	return file(pick(g, "x.json", "x.yaml"), text)
}

// name returns a name with a number, which may be invalid.
func (g *generator) name(style, i int) string {
	switch style {
	case 0:
		return fmt.Sprintf("a%d", i)
	case 1:
		return fmt.Sprintf("A%d", i)
	case 2:
		return strings.Repeat("x", 1+i%30) + fmt.Sprint(i)
	case 3:
		return fmt.Sprintf("%d", i)
	}
	return fmt.Sprintf("%s%d", strings.Repeat("\u00e9", i%60), i)
}

func (g *generator) names() []configdir.File {
	style, body := g.IntN(5), pick(g, "{}", "0", "null", "[]", `""`, `{"source":{}}`, `{"source":0}`)
	section := pick(g, "images", "nodes", "settings")
	text := g.fill(func(i int) string { return fmt.Sprintf(",%q:%s", g.name(style, i), body) })
	return file(pick(g, "x.json", "x.yaml"), fmt.Sprintf(`{"%s":{%s}}`, section, text[1:]))
}

// invalidDefinitions have mistakes in several fields, all of them different.
func (g *generator) invalidDefinitions() []configdir.File {
	style := g.IntN(5)
	wrong := []string{`"minNumberOfCopies":%d.5`, `"source":{"download":{"url":"x%d"}}`, `"source":{"upload":{},"clone":{"backingImage":"a%d"}}`, `"checksum":"%d"`, `"uuid":%d`, `"format":"f%d"`, `"nodeSelector":{"a":%d}`, `"disks":["%d"]`, `"suspend":{"until":%d}`, `"backup":{"target":"x%d"}`, `"bandwidthLimit":"%dQ"`, `"x%d":0`}
	n := 1 + g.IntN(len(wrong))
	g.Shuffle(len(wrong), func(i, j int) { wrong[i], wrong[j] = wrong[j], wrong[i] })
	text := g.fill(func(i int) string {
		fields := make([]string, n)
		for j := range fields {
			fields[j] = fmt.Sprintf(wrong[j], i)
		}
		return fmt.Sprintf(",%q:{%s}", g.name(style, i), strings.Join(fields, ","))
	})
	return file("x.json", `{"images":{`+text[1:]+"}}")
}

func (g *generator) unknownFields() []configdir.File {
	style := g.IntN(5)
	text := g.fill(func(i int) string { return fmt.Sprintf(",%q:0", g.name(style, i)) })
	return file(pick(g, "x.json", "x.yaml"), fmt.Sprintf(pick(g, `{"images":{"x1":{%s}}}`, `{"images":{"x1":{"source":{"download":{%s}}}}}`, `{"nodes":{"n1":{"disks":{"d1":{%s}}}}}`, `{%s}`, `{"settings":{"suspend":{%s}}}`), text[1:]))
}

// validDefinitions are images that cost a manager much, and that it must not refuse one by one.
func (g *generator) validDefinitions() []configdir.File {
	selectors := `"` + strings.Repeat(`x","`, g.IntN(20)) + `y"`
	body := pick(g, `{"source":{"upload":{}}}`, `{"source":{"upload":{}},"minNumberOfCopies":"all","keepGenerations":0}`, `{"source":{"upload":{}},"nodeSelector":[`+selectors+`]}`, `{"source":{"download":{"url":"https://127.0.0.1:1/x","mirrors":[`+strings.Repeat(`"https://127.0.0.1:1/y",`, 20)+`"https://127.0.0.1:1/z"]}}}`,
		`{"source":{"upload":{}},"suspend":{"reason":"`+strings.Repeat("x", g.number(200))+`"}}`)
	text := g.fill(func(i int) string { return fmt.Sprintf(",\"a%d\":%s", i, body) })
	return file("x.json", `{"images":{`+text[1:]+"}}")
}

func (g *generator) nodes() []configdir.File {
	perNode := g.number(2000)
	disks := make([]string, perNode)
	for i := range disks {
		disks[i] = fmt.Sprintf(`"d%d":{"path":"/d%d"}`, i, i)
	}
	own := strings.Join(disks, ",")
	text := g.fill(func(i int) string { return fmt.Sprintf(",\"n%d\":{\"disks\":{%s}}", i, own) })
	half := g.size
	g.size = g.number(g.size)
	images := g.fill(func(i int) string {
		return fmt.Sprintf(",\"a%d\":{\"source\":{\"upload\":{}},\"minNumberOfCopies\":\"all\"}", i)
	})
	g.size = half
	return append(file("x.json", `{"nodes":{`+text[1:]+"}}"), file("y.json", `{"images":{`+images[1:]+"}}")...)
}

func (g *generator) clones() string {
	links := max(2, g.size/60)
	step := pick(g, 1, 2, links-1, 0)
	var b strings.Builder
	b.WriteString("images:\n")
	for i := range links {
		fmt.Fprintf(&b, "  c%d: {source: {clone: {backingImage: c%d%s}}}\n", i, (i+step)%links, pick(g, "", "", ", encryption: encrypt, secret: s"))
	}
	return b.String()
}

func (g *generator) longScalars() []configdir.File {
	long := strings.Repeat(pick(g, "x", "9", "\u00e9", `\u0041`, " ", "a/", "../", "%41", "1_", "\U0001f600", `\\`), g.size/2)
	field := pick(g, "checksum", "uuid", "format", "minNumberOfCopies", "x")
	return pick(g,
		file("x.json", fmt.Sprintf(`{"images":{"x1":{"source":{"upload":{}},%q:"%s"}}}`, field, long)),
		file("x.json", fmt.Sprintf(`{"images":{"%s":{"source":{"upload":{}}}}}`, long)),
		file("x.yaml", fmt.Sprintf("images:\n  x1:\n    source: {download: {url: \"https://example.com/%s\"}}\n", long)),
		file("x.yaml", "settings:\n  cleanupWaitInterval: "+strings.Repeat("9", g.size/2)+pick(g, "", "h", ".5", "e"+strings.Repeat("9", 20))+"\n"),
		file("x.json", `{"settings":{"minNumberOfCopies":1e`+strings.Repeat("9", g.size/2)+"}}"),
		file("x.yaml", "images:\n  x1:\n    source: {upload: {}}\n    suspend:\n      reason: |\n"+g.fill(func(int) string { return "        x\n" })),
		file("x.yaml", "# "+long+"\nimages: {}\n"),
		file("x.yaml", "? "+long+"\n: x\nimages: {}\n"),
		file("x.yaml", "images:\n  x1: {source: {upload: {}}, nodeSelector: [!"+strings.Repeat("t", g.size/2)+" x]}\n"),
	)
}

func (g *generator) noText() []configdir.File {
	b := make([]byte, g.size)
	switch g.IntN(4) {
	case 0:
		for i := range b {
			b[i] = byte(g.Uint32())
		}
	case 1: // UTF-16
		b = nil
		for _, c := range "images: {x1: {source: {upload: {}}}}\n" {
			b = append(b, byte(c), 0)
		}
		b = append([]byte{0xff, 0xfe}, b...)
	case 2:
		text := []byte(g.fill(func(i int) string { return fmt.Sprintf("images: {x%d: {source: {upload: {}}}}\n", i) }))
		for range 1 + g.IntN(10) {
			text[g.IntN(len(text))] = pick[byte](g, 0, 0xff, 0xc0, 0x80, 0x1b, 0x7f, 0xed)
		}
		b = text
	default:
		b = []byte(strings.Repeat("\ufeff", g.number(g.size/3)) + "images: {}\n")
	}
	return []configdir.File{{Path: pick(g, "x.yaml", "x.json", "x.cue"), Data: b}}
}

func (g *generator) lineBreaks() string {
	br := pick(g, "\r", "\u2028", "\u2029", "\u0085", "\n\n\n\n\n\n", "\r\n", "\n\t", "\v", "\f")
	return "images:" + br + g.fill(func(i int) string { return fmt.Sprintf("  x%d: {source: {upload: {}}, a: \"%s\"}%s", i, br, br) })
}

func (g *generator) configMaps() []configdir.File {
	size := g.size
	g.size = g.number(max(1, size/2))
	inner := g.pickOther()
	g.size = size
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: " + pick(g, "ConfigMap", "ConfigMap", "ConfigMapList", "Secret") + "\nmetadata: {name: x}\n" + pick(g, "data", "data", "binaryData") + ":\n")
	for i := 0; b.Len() < g.size && i < 20_000; i++ {
		fmt.Fprintf(&b, "  a%d%s: %q\n", i, pick(g, ".yaml", ".json", ".cue", ".txt", "..yaml"), inner)
		if g.IntN(3) == 0 {
			inner = fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata:\n  a.yaml: %q\n", inner)
			inner = inner[:min(len(inner), g.size)]
		}
	}
	return file("x.yaml", b.String())
}

// pickOther returns the text of a YAML file of another kind.
func (g *generator) pickOther() string {
	return pick(g, (*generator).aliases, (*generator).documents, (*generator).mergeKeys, (*generator).clones, (*generator).lineBreaks)(g)
}

func (g *generator) manifests() string {
	items := func(i int) string {
		return fmt.Sprintf(pick(g,
			"- {apiVersion: longhorn.io/v1beta2, kind: BackingImage, metadata: {name: a%d}, spec: {sourceType: upload, sourceParameters: {}}}\n",
			"- {apiVersion: longhorn.io/v1beta2, kind: BackingImage, metadata: {name: A%d}, spec: {sourceType: x}}\n",
			"- {apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: s%[1]d}, provisioner: driver.longhorn.io, parameters: {backingImage: a%[1]d}}\n",
			"- {apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshotContent, metadata: {name: c%[1]d}, spec: {driver: driver.longhorn.io, source: {snapshotHandle: \"bi://backing?backingImageDataSourceType=upload&backingImage=a%[1]d\"}}}\n",
			"- {apiVersion: longhorn.io/v1beta2, kind: Node, metadata: {name: n%[1]d}, spec: {disks: {d: {path: /d}}}}\n",
			"- {apiVersion: longhorn.io/v1beta2, kind: Setting, metadata: {name: s%d}, value: x}\n"), i)
	}
	return "apiVersion: v1\nkind: List\nitems:\n" + g.fill(items)
}

func (g *generator) manyFiles() []configdir.File {
	n := g.number(3000)
	each := max(1, g.size/n)
	all := make([]configdir.File, 0, n)
	for i := range n {
		text := fmt.Sprintf("images: {a%d: {source: {upload: {}}}}\n", i) + strings.Repeat(pick(g, "# x\n", "---\n", "x\n", "\n"), each/4)
		all = append(all, configdir.File{Path: fmt.Sprintf("%s%d.yaml", pick(g, "", "a/", "b/c/"), i), Data: []byte(text)})
	}
	return all
}

func (g *generator) deepFolders() []configdir.File {
	var all []configdir.File
	dir := ""
	for i := range g.number(300) {
		dir += pick(g, "d", "a b", "\u202e", "y.yaml", "-", strings.Repeat("y", 1+g.IntN(200))) + "/"
		if len(dir) > 3500 {
			break
		}
		all = append(all, configdir.File{Path: dir + "x.yaml", Data: fmt.Appendf(nil, "images: {a%d: {source: {upload: {}}}}\n", i)})
	}
	return all
}

// mutation changes a valid file at some places.
func (g *generator) mutation() []configdir.File {
	b := slices.Clone(pick(g, g.valid...))
	for range g.number(200) {
		at := g.IntN(len(b) + 1)
		end := min(len(b), at+g.IntN(20))
		switch g.IntN(5) {
		case 0:
			b = slices.Concat(b[:at], []byte(g.word()), b[at:])
		case 1:
			b = slices.Concat(b[:at], b[end:])
		case 2:
			b = slices.Concat(b[:at], []byte(g.word()), b[end:])
		case 3:
			b = slices.Concat(b[:at], b[at:end], b[at:end], b[at:])
		case 4:
			if at < len(b) {
				b[at] ^= 1 << g.IntN(8)
			}
		}
	}
	return []configdir.File{{Path: pick(g, "x.yaml", "x.yaml", "x.json"), Data: b}}
}

// splice joins pieces of valid files.
func (g *generator) splice() []configdir.File {
	var b []byte
	for len(b) < g.size {
		other := pick(g, g.valid...)
		at := g.IntN(len(other))
		b = append(b, other[at:at+g.IntN(len(other)-at)]...)
		b = append(b, pick(g, "", "\n", "\n---\n", " ", ", ")...)
	}
	return []configdir.File{{Path: "x.yaml", Data: b}}
}

func (g *generator) repetition() []configdir.File {
	other := string(pick(g, g.valid...))
	return file("x.yaml", g.fill(func(int) string { return pick(g, "", "---\n") + other + "\n" }))
}

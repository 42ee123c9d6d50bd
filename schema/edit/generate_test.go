package edit

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// generator writes a file twice: with the old values of images, and with the new ones. So the expected content does not
// come from the code under test.
type generator struct {
	*rand.Rand
	prefix      string // of the names of images
	eol         string
	old, edited strings.Builder
	images      int
	wanted      map[string]Values
	refused     map[string]bool // images of wanted whose values an anchor or an expression shares
}

// newValues are the values of an image before and after. They are equal if the image is not updated.
type newValues struct{ oldURL, url, oldIndex, index, oldSum, sum string }

func newGenerator(seed uint64, prefix string) *generator {
	return &generator{Rand: rand.New(rand.NewPCG(seed, 18)), prefix: prefix, eol: "\n", wanted: map[string]Values{}, refused: map[string]bool{}}
}

// both writes a text in which \n is the line end of the file.
func (g *generator) both(format string, args ...any) {
	g.differ(fmt.Sprintf(format, args...), fmt.Sprintf(format, args...))
}

func (g *generator) differ(old, edited string) {
	g.old.WriteString(strings.ReplaceAll(old, "\n", g.eol))
	g.edited.WriteString(strings.ReplaceAll(edited, "\n", g.eol))
}

func (g *generator) oneOf(texts ...string) string { return texts[g.IntN(len(texts))] }

func (g *generator) chance(n int) bool { return g.IntN(n) == 0 }

func (g *generator) sum(n int) string {
	var b strings.Builder
	for range n / 16 {
		fmt.Fprintf(&b, "%016x", g.Uint64())
	}
	return b.String()
}

func (g *generator) address() string {
	folder := g.oneOf("images", "a,b", "it's", "ü", "%20", "x:y", "a[1]", "{b}", "x#y", strings.Repeat("long/", 1+g.IntN(100))+"x")
	return fmt.Sprintf("https://example.com/%s/a-%d.qcow2%s", folder, g.IntN(1e6), g.oneOf("", "", "?a=b&c=<d>", "?a='b',c"))
}

// image returns the values of one more image.
func (g *generator) image() (name string, v newValues) {
	name = fmt.Sprintf("%s-%d", g.prefix, g.images)
	g.images++
	v.oldURL = g.address()
	v.oldSum = g.oneOf("", "sha512:") + g.sum(128)
	if g.chance(3) {
		v.oldSum = "sha256:" + g.sum(64)
	}
	if g.chance(3) {
		v.oldIndex = v.oldURL + ".caibx"
	}
	v.url, v.sum, v.index = v.oldURL, v.oldSum, v.oldIndex
	if g.chance(4) {
		return name, v // not updated
	}
	if !g.chance(5) {
		v.url = g.address()
	}
	if v.oldIndex != "" {
		v.index = v.url + ".caibx"
	}
	v.sum = "sha256:" + g.sum(64)
	if g.chance(2) {
		v.sum = "sha512:" + g.sum(128)
		if !strings.HasPrefix(v.oldSum, "sha") {
			v.sum = strings.TrimPrefix(v.sum, "sha512:")
		}
	}
	digest, err := ident.ParseDigest(v.sum)
	if err != nil {
		panic(err)
	}
	g.wanted[name] = Values{URL: v.url, Index: v.index, Checksum: digest}
	return name, v
}

// yaml writes a YAML file with some images, each in one of the forms that a configuration may have.
func (g *generator) yaml() {
	g.eol = g.oneOf("\n", "\n", "\r\n")
	g.both("%s%s", g.oneOf("", "\ufeff"), g.oneOf("", "# äöü 日本\n", "---\n", "%YAML 1.1\n---\n", "\n\n", "--- # first\n"))
	for n, documents := 0, 1+g.IntN(3); n < documents; n++ {
		if n > 0 {
			g.both("%s", g.oneOf("---\n", "---\n# next\n", "...\n---\n", "--- # next\n"))
		}
		switch g.IntN(6) {
		case 0:
			g.list()
		case 1:
			g.configMap()
		case 2:
			name, v := g.image()
			g.backingImage("", name, v)
		case 3:
			g.flow()
		default:
			g.native("")
		}
	}
	g.both("%s", g.oneOf("", "\n\n", "# end\n", "# end", "...\n"))
}

// native writes a document of the native form, indented by base.
func (g *generator) native(base string) {
	unit := strings.Repeat(" ", 1+g.IntN(4))
	g.both("%simages:%s\n", base, g.oneOf("", "  # c: d", " &images", " !!map"))
	for range 1 + g.IntN(4) {
		g.noise(base + unit)
		name, v := g.image()
		switch {
		case g.chance(4):
			g.both("%s%s: ", base+unit, name)
			g.flowImage(v)
			g.both("%s\n", g.comment())
		case g.chance(12):
			g.shared(base+unit, name, v)
		default:
			g.both("%s%s:%s\n", base+unit, g.oneOf(name, `"`+name+`"`, "'"+name+"'", "? "+name+"\n"+base+unit), g.comment())
			g.blockImage(base+unit+unit, unit, v)
		}
	}
	if g.chance(4) {
		g.both("%s# the end of %q\n", base, "images")
	}
}

// noise writes lines that mean nothing.
func (g *generator) noise(indent string) {
	switch g.IntN(8) {
	case 0:
		g.both("\n")
	case 1:
		g.both("%s# url: %s\n", indent, g.address())
	case 2:
		g.both("%s# checksum: sha256:%s ü %s\n", indent, g.sum(64), strings.Repeat("long ", g.IntN(500)))
	case 3:
		g.both("%s\n", indent)
	}
}

func (g *generator) comment() string {
	return g.oneOf("", "", " # c", "   # url: \"x\" äöü", "  ", " # 'quote")
}

// blockImage writes an image on several lines.
func (g *generator) blockImage(indent, unit string, v newValues) {
	inner := indent + unit + unit
	fields := []func(){
		func() {
			g.both("%ssource:%s\n", indent, g.comment())
			g.noise(indent)
			g.both("%sdownload:%s\n", indent+unit, g.comment())
			values := []func(){func() { g.field(inner, "url", v.oldURL, v.url) }}
			if v.oldIndex != "" {
				values = append(values, func() { g.field(inner, "index", v.oldIndex, v.index) })
			}
			if g.chance(3) {
				values = append(values, func() { g.both("%smirrors: [ \"%s\" ]\n", inner, strings.ReplaceAll(v.oldURL, `"`, "")) })
			}
			if g.chance(3) {
				values = append(values, func() { g.both("%smaxSize: 10Gi\n", inner) })
			}
			g.inAnyOrder(inner, values)
		},
		func() { g.field(indent, "checksum", v.oldSum, v.sum) },
	}
	for _, more := range []string{
		"minNumberOfCopies: all", "nodeSelector:\n" + indent + "- a # b\n" + indent + "- \"ü\"", "diskSelector: &d [ssd, {}]",
		"suspend: {reason: " + `"` + v.oldSum + `"` + "}", "track: {listing: {url: \"https://example.com/\", match: 'a-(\\d+)', checksum: \"{file}.sha256\"}}",
		"suspend:\n" + indent + unit + "reason: >-\n" + indent + unit + unit + "url: x\n" + indent + unit + unit + "checksum: y",
	} {
		if g.chance(5) && !strings.Contains(more, "{}") {
			fields = append(fields, func() { g.both("%s%s\n", indent, more) })
			break
		}
	}
	g.inAnyOrder(indent, fields)
}

func (g *generator) inAnyOrder(indent string, fields []func()) {
	g.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
	for _, f := range fields {
		g.noise(indent)
		f()
	}
}

// field writes a field of a block mapping.
func (g *generator) field(indent, name, old, edited string) {
	name = g.oneOf(name, name, `"`+name+`"`, "'"+name+"'")
	if g.chance(12) {
		g.both("%s? %s%s\n%s: ", indent, name, g.comment(), indent)
	} else {
		g.both("%s%s:%s", indent, name, g.oneOf(" ", " ", "   ", "\t", "\n"+indent+"  ", " # where\n"+indent+"    "))
	}
	g.scalar(indent, false, old, edited)
}

// scalar writes a value in a style of YAML, and in a block mapping the end of the line. flow is true within braces, where
// a block cannot be, and where fewer characters can be plain.
func (g *generator) scalar(indent string, flow bool, old, edited string) {
	write := func(before, after string) {
		if !flow {
			after += g.comment() + "\n"
		}
		g.differ(before+old+after, before+edited+after)
	}
	styles := 7
	if flow {
		styles = 5
	}
	unsafe := flow && strings.ContainsAny(old+edited, ",[]{}?'")
	prefix := g.oneOf("", "", "", "!!str ", "&a ", "&b !!str ", "!!str &c ", "! ", "!<tag:yaml.org,2002:str> ")
	switch style := g.IntN(styles); {
	case style == 1 || style == 0 && unsafe:
		old, edited = strings.ReplaceAll(old, "'", "''"), strings.ReplaceAll(edited, "'", "''")
		write(prefix+"'", "'")
	case style == 0:
		write(prefix, "")
	case style == 2:
		write(prefix+`"`, `"`)
	case style == 5: // there may be no comment behind it, but blanks
		after := g.oneOf("\n", "\n\n", "  \n")
		before := prefix + g.oneOf("|", ">", "|-", ">+", "| # a block", ">-   # c") + "\n" + g.oneOf("", "\n") + indent + "    "
		g.differ(before+old+after, before+edited+after)
	default:
		write(g.oneOf("&x ", "!!str ", "&y !!str ")+`"`, `"`)
	}
}

// shared writes an image whose checksum is that of another image, too.
func (g *generator) shared(indent, name string, v newValues) {
	g.differ(indent, indent)
	other := fmt.Sprintf("%s-%d", g.prefix, g.images)
	g.images++
	text := fmt.Sprintf("%s: {source: {download: {url: %q%s}}, checksum: &shared_%s %q}\n", name, v.oldURL, map[bool]string{true: fmt.Sprintf(", index: %q", v.oldIndex)}[v.oldIndex != ""], g.prefix, v.oldSum)
	text += fmt.Sprintf("%s%s: {source: {upload: {}}, checksum: *shared_%s}\n", indent, other, g.prefix)
	g.both("%s", text)
	if want, ok := g.wanted[name]; ok && want.Checksum.String() != v.oldSum {
		g.refused[name] = true
	}
}

// flow writes a document of the native form within braces.
func (g *generator) flow() {
	space := func() string { return g.oneOf("", " ", "\n  ", "  # c\n  ", "\n\n ") }
	g.both("{%s%simages%s: {", space(), g.oneOf("", `"settings": {}, `), g.oneOf("", ` `))
	for i := range 1 + g.IntN(4) {
		if i > 0 {
			g.both(",")
		}
		name, v := g.image()
		g.both("%s%s: ", space(), name)
		g.flowImage(v)
	}
	g.both("%s%s}}%s\n", g.oneOf("", ","), space(), g.comment())
}

// flowImage writes an image within braces.
func (g *generator) flowImage(v newValues) {
	space := func() string { return g.oneOf("", " ", "  ") }
	source := func() {
		g.both("source: {%s\"download\": {%surl: ", space(), space())
		g.scalar("              ", true, v.oldURL, v.url)
		if v.oldIndex != "" {
			g.both("%s, 'index' : ", space())
			g.scalar("              ", true, v.oldIndex, v.index)
		}
		g.both("%s%s}}", g.oneOf("", ", mirrors: [\"https://example.org/ü\"]"), space())
	}
	checksum := func() {
		g.both("%schecksum: ", g.oneOf("", "nodeSelector: [a, \"ü\"], ", "suspend: {reason: \"日本\"}, "))
		g.scalar("              ", true, v.oldSum, v.sum)
	}
	g.both("{%s", space())
	if g.chance(2) {
		source()
		g.both("%s,%s", space(), g.oneOf(" ", "\n              "))
		checksum()
	} else {
		checksum()
		g.both("%s,%s", space(), g.oneOf(" ", "\n              "))
		source()
	}
	g.both("%s}", space())
}

// list writes a List of manifests.
func (g *generator) list() {
	g.both("apiVersion: v1\nkind: List\nitems:%s\n", g.comment())
	indent := g.oneOf("", "  ")
	for range 1 + g.IntN(4) {
		g.noise(indent)
		g.both("%s- ", indent)
		name, v := g.image()
		g.backingImage(indent+"  ", name, v)
	}
}

// backingImage writes a manifest of Longhorn. Its first line is not indented.
func (g *generator) backingImage(indent, name string, v newValues) {
	v.oldIndex = "" // it has no such field
	if want, ok := g.wanted[name]; ok {
		want.Index = ""
		g.wanted[name] = want
	}
	version := g.oneOf("v1beta1", "v1beta2")
	g.both("apiVersion: longhorn.io/%s%s\n%skind: BackingImage\n", version, g.comment(), indent)
	metadata := fmt.Sprintf("%smetadata:\n%s  name: %s\n%s  annotations:\n%s    example.com/checksum: %q\n", indent, indent, name, indent, indent, v.oldSum)
	fields := []func(){
		func() { g.both("%s", metadata) },
		func() {
			g.both("%sspec:%s\n", indent, g.comment())
			address := func() { g.field(indent+"  ", "imageURL", v.oldURL, v.url) }
			if version == "v1beta2" {
				address = func() {
					g.both("%s  sourceType: download\n%s  sourceParameters:\n", indent, indent)
					g.field(indent+"    ", "url", v.oldURL, v.url)
				}
			}
			g.inAnyOrder(indent+"  ", []func(){address, func() { g.field(indent+"  ", "checksum", v.oldSum, v.sum) }})
		},
	}
	if g.chance(3) {
		fields = append(fields, func() { g.both("%sstatus: {checksum: \"%s\"}\n", indent, v.oldSum) })
	}
	g.inAnyOrder(indent, fields)
}

// configMap writes a ConfigMap with a file of the native form in a block.
func (g *generator) configMap() {
	g.both("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata:\n  a.yaml: %s\n", g.oneOf("|", "|-", "|+", "|2", "| # c"))
	g.native("    ")
	g.both("%s", g.oneOf("", "  readme: \"url: x\"\n"))
}

// json writes a JSON file with some images of the native form, or in manifests.
func (g *generator) json() {
	space := func() string { return g.oneOf("", " ", "\n", "\r\n\t", "  ") }
	value := func(name, old, edited string) {
		g.both("%q%s:%s\"", name, space(), space())
		g.differ(old, edited)
		g.both("\"")
	}
	manifests := g.chance(2)
	if manifests {
		g.both("%s{%s\"apiVersion\": \"v1\", \"kind\": \"List\",%s\"items\":%s[", space(), space(), space(), space())
	} else {
		g.both("%s{%s\"images\":%s{", space(), space(), space())
	}
	for i := range 1 + g.IntN(5) {
		if i > 0 {
			g.both("%s,%s", space(), space())
		}
		name, v := g.image()
		if manifests {
			want, ok := g.wanted[name]
			if want.Index = ""; ok {
				g.wanted[name] = want
			}
			g.both("{\"apiVersion\": \"longhorn.io/v1beta2\", \"kind\": \"BackingImage\", \"metadata\": {\"annotations\": {\"x\": \"ü\"}, \"name\": %q}, %s\"spec\": {", name, space())
			value("checksum", v.oldSum, v.sum)
			g.both(", %s\"sourceType\": \"download\", \"sourceParameters\": {%s", space(), space())
			value("url", v.oldURL, v.url)
			g.both("}}%s}", space())
			continue
		}
		g.both("%s%q%s:%s{ \"nodeSelector\": [\"ü\"], \"suspend\": {\"reason\": %q}, \"source\": {\"download\": {", space(), name, space(), space(), v.oldSum)
		value("url", v.oldURL, v.url)
		if v.oldIndex != "" {
			g.both(",%s", space())
			value("index", v.oldIndex, v.index)
		}
		g.both("}},%s", space())
		value("checksum", v.oldSum, v.sum)
		g.both("%s}", space())
	}
	g.both("%s}%s", map[bool]string{true: "]"}[manifests]+map[bool]string{false: "}"}[manifests], space())
}

// cue writes a CUE file. Files of one folder are one instance.
func (g *generator) cue() {
	g.eol = g.oneOf("\n", "\n", "\r\n")
	hidden := "#" + strings.ToUpper(g.prefix[:1]) + strings.ReplaceAll(g.prefix[1:], "-", "_")
	g.both("// ä\npackage a\n\n%s: {minNumberOfCopies: *2 | int, ...}\n", hidden)
	for range 1 + g.IntN(4) {
		name, v := g.image()
		if g.chance(8) {
			g.both("let sum_%s = %q\nimages: %q: {source: download: url: %q, checksum: sum_%s}\n", strings.ReplaceAll(name, "-", "_"), v.oldSum, name, v.oldURL, strings.ReplaceAll(name, "-", "_"))
			if want, ok := g.wanted[name]; ok {
				want.Index = ""
				g.wanted[name], g.refused[name] = want, true
			}
			continue
		}
		download := func() {
			g.both("\turl:%s", g.oneOf(" ", "\t", "   "))
			g.literal(v.oldURL, v.url)
			if v.oldIndex != "" {
				g.both("\t\"index\": ")
				g.literal(v.oldIndex, v.index)
			}
		}
		if g.chance(2) {
			g.both("images: %q: %s%s{\n", name, g.oneOf("", hidden+" & "), g.oneOf("", ""))
			g.both("source: download: { // %s\n", v.oldURL)
			download()
			g.both("}\n checksum: ")
			g.literal(v.oldSum, v.sum)
			g.both("}\n")
		} else {
			g.both("images: %q: source: download: {\n", name)
			download()
			g.both("}\n\nimages: %q: checksum: ", name)
			g.literal(v.oldSum, v.sum)
		}
	}
}

// literal writes a string literal of CUE, and the end of the line.
func (g *generator) literal(old, edited string) {
	quotes := g.oneOf(`"`, `"`, `#"`, `##"`, `"""`, `#"""`)
	hashes := strings.Trim(quotes, `"`)
	before, after := quotes, strings.Trim(quotes, "#")+hashes
	if strings.HasSuffix(quotes, `"""`) {
		before, after = before+"\n\t\t", "\n\t\t"+after
	}
	after += g.oneOf("", " // c", " @x(y)") + "\n"
	g.differ(before+old+after, before+edited+after)
}

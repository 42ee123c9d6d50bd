package hostile

import (
	"fmt"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// Worst returns the config directories that once cost most, and directories just below each limit.
func Worst() []Config {
	repeat := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	images := func(n int, body string) []configdir.File {
		return file("x.json", `{"images":{`+strings.TrimPrefix(repeat(n, `,"a%[1]d":`+body), ",")+"}}")
	}
	nodes := func(n int) []configdir.File {
		return file("y.json", `{"nodes":{`+strings.TrimPrefix(repeat(n, `,"n%d":{"disks":{"d":{"path":"/d"}}}`), ",")+"}}")
	}
	var units []configdir.File
	for i := range 200 {
		units = append(units, file(fmt.Sprintf("x%d.cue", i), comprehension)...)
	}
	return []Config{
		{"values of JSON, 16 MB", file("x.json", `{"images": {}, "x": [`+strings.Repeat("0,", 7_900_000)+"0]}")},
		{"values of JSON, 8 MB", file("x.json", `{"images": {}, "x": [`+strings.Repeat("0,", 4_000_000)+"0]}")},
		{"values of JSON, below the limit", file("x.json", `{"images": {}, "x": [`+strings.Repeat("0,", 499_000)+"0]}")},
		{"values of YAML, below the limit", file("x.yaml", "images: {}\nx:\n"+strings.Repeat("- 0\n", 240_000))},
		{"values of two files", append(file("x.json", `{"images": {}, "x": [`+strings.Repeat("0,", 499_000)+"0]}"), file("y.json", `{"images": {}, "x": [`+strings.Repeat("0,", 499_000)+"0]}")...)},
		{"documents, 12 MB", file("x.yaml", strings.Repeat("---\n", 3_000_000))},
		{"documents, below the limit", file("x.yaml", strings.Repeat("---\n", 49_000))},
		{"documents with images", file("x.yaml", repeat(11_900, "---\nimages: {a%d: {source: {upload: {}}}}\n"))},
		{"a comprehension", file("x.cue", comprehension)},
		{"six comprehensions", units[:6]},
		{"200 comprehensions", units},
		{"a million names", images(1_000_000, "0")},
		{"49,000 empty images", images(49_000, "{}")},
		{"images with different mistakes", images(11_900, `{"minNumberOfCopies":"x%[1]d","checksum":"%[1]d","format":"x","source":{"download":{"url":"x%[1]d","x":1}}}`)},
		{"11,900 empty images", images(11_900, "{}")},
		{"11,900 valid images", images(11_900, `{"source":{"upload":{}}}`)},
		{"11,900 valid images with a reason", images(11_900, `{"source":{"upload":{}},"suspend":{"reason":"x%[1]d"}}`)},
		{"19 million pairs of images and disks", append(images(9900, `{"source":{"upload":{}},"minNumberOfCopies":8}`), nodes(2000)...)},
		{"98,000 desired copies", append(images(49, `{"source":{"upload":{}},"minNumberOfCopies":"all"}`), nodes(2000)...)},
		{"clones of clones", file("x.yaml", "images:\n  c0: {source: {upload: {}}}\n"+repeat(11_900, "  c%[1]d1: {source: {clone: {backingImage: c%[1]d}}}\n"))},
		{"images of CUE", file("x.cue", "import \"list\"\nimages: {for i in list.Range(0, 9000, 1) {\"a\\(i)\": source: upload: {}}}\n")},
		{"strings of CUE", file("x.cue", "import \"strings\"\nx: strings.Repeat(\"x\", 100000000)\nimages: {}\n")},
		{"many strings of CUE", file("x.cue", "import \"strings\"\n_x: strings.Repeat(\"x\", 1000000)\nimages: {for i in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25] {\"a\\(i)\": {source: upload: {}, suspend: reason: _x}}}\n")},
		{"32 MB of large files", []configdir.File{
			file("a.cue", "images: {}\nx: \""+strings.Repeat("x", 8_300_000)+"\"\n")[0], file("b.cue", "images: {}\nx: \""+strings.Repeat("y", 8_300_000)+"\"\n")[0],
			file("c.yaml", "images: {}\nx: \""+strings.Repeat("z", 8_300_000)+"\"\n")[0], file("d.yaml", "# "+strings.Repeat("x", 8_300_000)+"\nimages: {}\n")[0],
		}},
		{"CUE that embeds files", append(file("e.yaml", "images: {}\nx: \""+strings.Repeat("z", 8_300_000)+"\"\n"),
			append(file("cue.mod/module.cue", "module: \"example.com\"\nlanguage: version: \"v0.9.0\"\n"), file("x.cue", "@extern(embed)\npackage x\nimages: {}\ny: _ @embed(file=e.yaml)\n")...)...)},
	}
}

// comprehension is a short file whose evaluation does not end in a reasonable time.
const comprehension = `import "list"
_l: list.Range(0, 100000, 1)
images: {for i in _l for j in _l for k in _l {"a\(i)-\(j)-\(k)": source: upload: {}}}
`

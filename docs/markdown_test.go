package docs

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the folder of the project.
const root = ".."

// document is one Markdown file of the project.
type document struct {
	name   string   // relative to the root, with slashes
	prose  string   // the text without fenced and indented code
	blocks []block  // the fenced code, in order
	slugs  []string // the anchors of its headings
}

// block is fenced code: its info string ("sh run", "yaml") and its text.
type block struct{ info, text string }

// documents are all Markdown files that are written for people, by name.
func documents(t *testing.T) []document {
	t.Helper()
	names := []string{"README.md"}
	for _, dir := range []string{"docs", "examples", "testdata/script"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(file string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(file, ".md") {
				return err
			}
			name, err := filepath.Rel(root, file)
			names = append(names, filepath.ToSlash(name))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(names) < 10 {
		t.Fatalf("found only %q", names)
	}
	var all []document
	for _, name := range names {
		all = append(all, readDocument(t, name))
	}
	return all
}

func readDocument(t *testing.T, name string) document {
	t.Helper()
	return parse(name, readFile(t, name))
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// parse knows as much of Markdown as the documents use: headings with #, code with three
// backquotes or indented by four spaces.
func parse(name, text string) document {
	d := document{name: name}
	var prose, code strings.Builder
	var info string
	fenced := false
	for line := range strings.Lines(text) {
		bare := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(bare, "```"):
			if fenced {
				d.blocks = append(d.blocks, block{info, code.String()})
			}
			fenced, info = !fenced, strings.TrimPrefix(bare, "```")
			code.Reset()
		case fenced:
			code.WriteString(line)
		case strings.HasPrefix(line, "    "):
		default:
			if heading := strings.TrimLeft(bare, "#"); heading != bare && strings.HasPrefix(heading, " ") {
				d.slugs = append(d.slugs, slug(heading))
			}
			prose.WriteString(line)
		}
	}
	d.prose = prose.String()
	return d
}

var notInSlug = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)

// slug is the anchor that GitHub gives a heading. The documents have no two equal headings.
func slug(heading string) string {
	heading = notInSlug.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
	return strings.ReplaceAll(heading, " ", "-")
}

var (
	codeSpan = regexp.MustCompile("`([^`\n]+)`")
	link     = regexp.MustCompile(`\]\(([^()\s]+)\)`)
)

// spans are the texts in backquotes.
func (d document) spans() []string {
	var all []string
	for _, m := range codeSpan.FindAllStringSubmatch(d.prose, -1) {
		all = append(all, m[1])
	}
	return all
}

// TestLinks follows the links that stay in the project.
func TestLinks(t *testing.T) {
	all := documents(t)
	for _, d := range all {
		for _, m := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(d.prose, "code"), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			to := path.Join(path.Dir(d.name), file)
			if file == "" {
				to = d.name
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s links to %s: %v", d.name, m[1], err)
				continue
			}
			i := slices.IndexFunc(all, func(other document) bool { return other.name == to })
			if anchor != "" && (i < 0 || !slices.Contains(all[i].slugs, anchor)) {
				t.Errorf("%s links to %s: %s has no heading %q", d.name, m[1], to, anchor)
			}
		}
	}
}

func TestEveryDocumentIsInTheIndex(t *testing.T) {
	index := readFile(t, "docs/README.md")
	for _, d := range documents(t) {
		if name, isDoc := strings.CutPrefix(d.name, "docs/"); isDoc && name != "README.md" && !strings.Contains(index, "("+name+")") {
			t.Errorf("docs/README.md does not link to %s", name)
		}
	}
}

func TestReadmeIsShort(t *testing.T) {
	if n := strings.Count(readFile(t, "README.md"), "\n"); n > 200 {
		t.Errorf("README.md has %d lines, want at most 200", n)
	}
}

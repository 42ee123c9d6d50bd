package docs

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/configuration.md")

const schemaFile = "schema/load/schema.cue"

// section is a definition of the schema that has fields.
type section struct {
	name   string // "Image"
	doc    string
	fields []field
}

type field struct {
	name     string
	doc      string
	required bool
	value    string // what the field must be, in words
	initial  string // its default; "": none
	example  string
	kind     string // the section that it contains; "": none
}

var (
	definition = regexp.MustCompile(`^#(\w+): .*\{$`)
	fieldLine  = regexp.MustCompile(`^\t(\w+)([?!]?): (.*)$`)
	want       = regexp.MustCompile(`@want\(("(?:[^"\\]|\\.)*")`)
	example    = regexp.MustCompile(`@example\(("(?:[^"\\]|\\.)*")`)
	initial    = regexp.MustCompile(`^\*("[^"]*"|\w+)`)
	reference  = regexp.MustCompile(`#(\w+)$`)
)

// sections reads the definitions from the text of the schema, which has one field on each
// line and its comment above it.
func sections(t *testing.T) []section {
	t.Helper()
	var all []section
	var comment []string
	open := false
	for line := range strings.Lines(readFile(t, schemaFile)) {
		line = strings.TrimSuffix(line, "\n")
		text := strings.TrimSpace(line)
		doc := strings.Join(comment, " ")
		switch {
		case strings.HasPrefix(text, "//"):
			comment = append(comment, strings.TrimSpace(strings.TrimPrefix(text, "//")))
			continue
		case definition.MatchString(line):
			all, open = append(all, section{name: definition.FindStringSubmatch(line)[1], doc: doc}), true
		case line == "}":
			open = false
		case open && fieldLine.MatchString(line):
			last := &all[len(all)-1]
			last.fields = append(last.fields, parseField(t, fieldLine.FindStringSubmatch(line), doc))
		}
		comment = nil
	}
	return all
}

func parseField(t *testing.T, m []string, doc string) field {
	t.Helper()
	f := field{name: m[1], doc: doc, required: m[2] == "!"}
	expr, _, _ := strings.Cut(m[3], " @")
	f.value, f.example = attribute(t, want, m[3]), attribute(t, example, m[3])
	if found := initial.FindStringSubmatch(expr); found != nil {
		f.initial = found[1]
	}
	if found := reference.FindStringSubmatch(expr); found != nil {
		f.kind = found[1]
	}
	return f
}

// attribute returns the text of an attribute in a line, or "".
func attribute(t *testing.T, pattern *regexp.Regexp, line string) string {
	t.Helper()
	found := pattern.FindStringSubmatch(line)
	if found == nil {
		return ""
	}
	text, err := strconv.Unquote(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// configurationReference returns the text of docs/configuration.md.
func configurationReference(t *testing.T) string {
	t.Helper()
	all := sections(t)
	isSection := map[string]bool{}
	for _, s := range all {
		isSection[s.name] = true
	}
	var b strings.Builder
	b.WriteString(`# Configuration

This file is generated from ` + "`" + schemaFile + "`: `go test ./docs -run TestConfigurationReferenceIsCurrent -update`" + ` writes it.

All files ` + "`*.yaml`, `*.yml` (in capitals, too), `*.json` and `*.cue`" + ` of the config directory together are one configuration.
Each image, node and setting is defined once. [examples](../examples) has directories to start from,
[sources](sources.md) explains the sources, and [manifests](manifests.md) the manifests of Longhorn,
Harvester, CDI and Kubernetes that are accepted, too. ` + "`backing-image-manager schema`" + ` prints the schema, and
` + "`backing-image-manager schema --format jsonschema`" + ` a JSON Schema for editors.
`)
	for _, s := range all {
		if len(s.fields) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n", s.name)
		if s.doc != "" {
			b.WriteString(s.doc + "\n\n")
		}
		b.WriteString("| field | value | default | meaning | example |\n|---|---|---|---|---|\n")
		for _, f := range s.fields {
			name, value, preset := "`"+f.name+"`", f.value, ""
			switch {
			case f.kind == "Upload":
				value = "`{}`"
			case isSection[f.kind]:
				value = fmt.Sprintf("see [%s](#%s)", f.kind, strings.ToLower(f.kind))
			}
			if f.required {
				preset = "required"
			}
			if f.initial != "" {
				preset = "`" + f.initial + "`"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | `%s` |\n", name, cell(value), preset, cell(f.doc), f.example)
		}
	}
	return b.String()
}

// cell escapes what Markdown interprets in a cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", `\<`).Replace(text)
}

// TestConfigurationReferenceIsCurrent compares docs/configuration.md with the schema. With
// -update it writes the document.
func TestConfigurationReferenceIsCurrent(t *testing.T) {
	want := configurationReference(t)
	file := filepath.Join(root, "docs", "configuration.md")
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("docs/configuration.md differs from the schema (error %v): go test ./docs -run TestConfigurationReferenceIsCurrent -update", err)
	}
}

package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestAlertsAreDocumented compares the alerts of examples/prometheus with the table in operations.md, and checks that
// the pages and headings to which they refer exist.
func TestAlertsAreDocumented(t *testing.T) {
	rules := readFile(t, "examples/prometheus/rules.yaml")
	var alerts, listed []string
	for _, m := range regexp.MustCompile(`(?s)- alert: (\w+)\n.*?severity: (\w+)`).FindAllStringSubmatch(rules, -1) {
		alerts = append(alerts, m[1]+" "+m[2])
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(BackingImage\\w+)` \\| (\\w+) \\|").FindAllStringSubmatch(readFile(t, "docs/operations.md"), -1) {
		listed = append(listed, m[1]+" "+m[2])
	}
	if !slices.Equal(alerts, listed) || len(alerts) < 10 {
		t.Errorf("the rules have %q, operations.md has %q", alerts, listed)
	}
	const base = "https://github.com/seed-26586806/backing-image-manager/blob/main/"
	runbooks := regexp.MustCompile(`(?m)^ +runbook_url: (\S+)$`).FindAllStringSubmatch(rules, -1)
	if len(runbooks) != len(alerts) {
		t.Errorf("%d of %d alerts have a runbook_url", len(runbooks), len(alerts))
	}
	for _, m := range runbooks {
		page, heading, _ := strings.Cut(strings.TrimPrefix(m[1], base), "#")
		if !strings.HasPrefix(m[1], base) || !slices.Contains(readDocument(t, page).slugs, heading) {
			t.Errorf("%s is no heading of the documents", m[1])
		}
	}
}

// TestMetricsInTextExist: a metric in backquotes, with its whole name, is a metric.
func TestMetricsInTextExist(t *testing.T) {
	metrics := readFile(t, "docs/metrics.md")
	pattern := regexp.MustCompile(`backing_image_manager_\w+`)
	for _, d := range documents(t) {
		for _, span := range d.spans() {
			if name := pattern.FindString(span); name != "" && !strings.Contains(metrics, "`"+name+"`") {
				t.Errorf("%s: there is no metric %s", d.name, name)
			}
		}
	}
	for _, file := range []string{"examples/prometheus/rules.yaml", "examples/prometheus/dashboard.json"} {
		for _, name := range pattern.FindAllString(readFile(t, file), -1) {
			if !strings.Contains(metrics, "`"+name+"`") {
				t.Errorf("%s: there is no metric %s", file, name)
			}
		}
	}
}

var camelCase = regexp.MustCompile(`^[a-z]+([A-Z]+[a-z0-9]*)+`)

// kubernetesFields are fields in documents that this program does not read.
var kubernetesFields = []string{"hostPort", "binaryData", "accessKeyId", "secretKey"}

// TestFieldsInTextExist: a name in mixed case in backquotes, in a document for operators, is a
// field of the configuration, of a manifest or of a copy.
func TestFieldsInTextExist(t *testing.T) {
	fields := readFile(t, schemaFile) + readFile(t, "schema/manifest/manifest.cue") + readFile(t, "schema/manifest/kind.go") + readFile(t, "disk/model/copy.go")
	for _, name := range []string{"README.md", "docs/operations.md", "docs/sources.md", "docs/manifests.md", "docs/security.md", "docs/reasons.md", "docs/changelog.md"} {
		for _, span := range readDocument(t, name).spans() {
			if field := camelCase.FindString(span); field != "" && !slices.Contains(kubernetesFields, field) && !regexp.MustCompile(`\b`+field+`\b`).MatchString(fields) {
				t.Errorf("%s: there is no field %s", name, field)
			}
		}
	}
}

// TestEveryReasonIsDocumented compares docs/reasons.md with the constants of type model.Code in
// package plan, in both directions.
func TestEveryReasonIsDocumented(t *testing.T) {
	codes := reasonCodes(t)
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(readFile(t, "docs/reasons.md"), -1) {
		documented = append(documented, m[1])
	}
	for _, code := range codes {
		if !slices.Contains(documented, code) {
			t.Errorf("docs/reasons.md does not have the code %s", code)
		}
	}
	for _, code := range documented {
		if !slices.Contains(codes, code) {
			t.Errorf("docs/reasons.md has the code %s, which package plan does not have", code)
		}
	}
}

func reasonCodes(t *testing.T) []string {
	t.Helper()
	var codes []string
	for _, decl := range parseGo(t, "reconcile/plan/reason.go").Decls {
		group, isGroup := decl.(*ast.GenDecl)
		if !isGroup || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			value, isValue := spec.(*ast.ValueSpec)
			if !isValue || len(value.Values) != 1 {
				continue
			}
			kind, _ := value.Type.(*ast.SelectorExpr)
			text, isText := value.Values[0].(*ast.BasicLit)
			if kind == nil || kind.Sel.Name != "Code" || !isText {
				continue
			}
			code, err := strconv.Unquote(text.Value)
			if err != nil {
				t.Fatal(err)
			}
			codes = append(codes, code)
		}
	}
	if len(codes) < 10 {
		t.Fatalf("found only the codes %q", codes)
	}
	return codes
}

func parseGo(t *testing.T, name string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

var (
	goFile     = regexp.MustCompile(`^[\w./-]+\.go$`)
	identifier = regexp.MustCompile(`^[A-Za-z]\w*(\.[A-Za-z]\w*)?$`)
)

// items returns the lines of a text. A line that continues a paragraph or an item of a list is joined
// to it.
func items(text string) []string {
	var all []string
	for line := range strings.Lines(text) {
		bare := strings.TrimSpace(line)
		begins := bare == "" || itemStart.MatchString(bare) || len(all) == 0 || all[len(all)-1] == ""
		if begins {
			all = append(all, bare)
		} else {
			all[len(all)-1] += " " + bare
		}
	}
	return all
}

var itemStart = regexp.MustCompile(`^([*|#]|[0-9]+\. )`)

// TestNamedCodeExists: in the documents for developers, a path in backquotes exists. An identifier
// in backquotes is declared in its package (plan.Action), or in a Go file that its paragraph names.
func TestNamedCodeExists(t *testing.T) {
	files, symbols := 0, 0
	packages := packageFiles(t)
	for _, name := range []string{"docs/architecture.md", "docs/code-map.md", "docs/development.md", "docs/rules.md"} {
		for _, item := range items(readDocument(t, name).prose) {
			var named []string // the Go files
			var spans []string // the identifiers
			for _, m := range codeSpan.FindAllStringSubmatch(item, -1) {
				span := strings.TrimSuffix(m[1], "()")
				switch {
				case strings.Contains(span, "NAME"), strings.HasPrefix(span, "backing"): // any name; files on a disk
				case goFile.MatchString(span):
					named = append(named, span)
				case identifier.MatchString(span):
					spans = append(spans, span)
				case strings.Contains(span, "/") && !strings.ContainsAny(span, " :$*<>|…") && isTopFolder(span):
					if _, err := os.Stat(filepath.Join(root, span)); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
			}
			files += len(named)
			for _, span := range spans {
				in, inner := named, span
				if pkg, exported, qualified := strings.Cut(span, "."); qualified && packages[pkg] != nil {
					in, inner = packages[pkg], exported
				}
				if len(in) == 0 {
					continue // not about a file
				}
				symbols++
				if !slices.ContainsFunc(in, func(file string) bool { return declarations(t, file)[inner] }) {
					t.Errorf("%s: none of %q declares %s", name, in, inner)
				}
			}
		}
	}
	if files < 80 || symbols < 80 {
		t.Errorf("checked only %d files and %d symbols", files, symbols)
	}
}

// packageFiles returns the Go files of the product by the name of their package.
func packageFiles(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, top := range []string{"schema", "disk", "fetch", "reconcile", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(file string, d fs.DirEntry, err error) error {
			if d != nil && d.IsDir() && d.Name() == "testx" {
				return fs.SkipDir
			}
			if err != nil || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			name, err := filepath.Rel(root, file)
			pkg := filepath.Base(filepath.Dir(file))
			all[pkg] = append(all[pkg], filepath.ToSlash(name))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func isTopFolder(span string) bool {
	first, _, _ := strings.Cut(span, "/")
	info, err := os.Stat(filepath.Join(root, first))
	return err == nil && info.IsDir()
}

// declarations are the names that a file declares at its top level; methods with and without
// their type.
func declarations(t *testing.T, name string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, decl := range parseGo(t, name).Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			all[decl.Name.Name] = true
			if decl.Recv != nil {
				kind := decl.Recv.List[0].Type
				if pointer, isPointer := kind.(*ast.StarExpr); isPointer {
					kind = pointer.X
				}
				if named, isNamed := kind.(*ast.Ident); isNamed {
					all[named.Name+"."+decl.Name.Name] = true
				}
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					all[spec.Name.Name] = true
					if fields, isStruct := spec.Type.(*ast.StructType); isStruct {
						for _, field := range fields.Fields.List {
							for _, f := range field.Names {
								all[spec.Name.Name+"."+f.Name] = true
							}
						}
					}
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						all[n.Name] = true
					}
				}
			}
		}
	}
	return all
}

// TestEveryRuleIsDefined: docs/rules.md defines each rule that a comment of the code, or a
// mutant of the simulation, cites by its id.
func TestEveryRuleIsDefined(t *testing.T) {
	defined := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| ([A-Z][0-9]+) \|`).FindAllStringSubmatch(readFile(t, "docs/rules.md"), -1) {
		defined[m[1]] = true
	}
	id := regexp.MustCompile(`\b[SPFDRUX][1-9]\b|\b[CI]1?[0-9]\b`)
	cited := 0
	check := func(name, text string) {
		for _, rule := range id.FindAllString(text, -1) {
			cited++
			if !defined[rule] {
				t.Errorf("%s cites %s, which docs/rules.md does not define", name, rule)
			}
		}
	}
	err := filepath.WalkDir(filepath.Join(root, "reconcile"), func(file string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch filepath.Ext(file) {
		case ".go":
			code, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, comment := range code.Comments {
				check(file, comment.Text())
			}
		case ".txtar":
			if strings.Contains(file, "mutants") {
				check(file, readFile(t, strings.TrimPrefix(file, root+"/")))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(defined) < 30 || cited < 30 {
		t.Errorf("found only %d rules and %d citations", len(defined), cited)
	}
}

// TestTroubleshootingQuotesMessages: each message in the table of the operator's guide is in
// the code.
func TestTroubleshootingQuotesMessages(t *testing.T) {
	_, table, _ := strings.Cut(readFile(t, "docs/operations.md"), "\n| message contains |")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(table, -1)
	if len(rows) < 5 {
		t.Fatalf("found only the messages %q", rows)
	}
	var source strings.Builder
	for _, dir := range []string{"disk", "fetch", "reconcile"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(file string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			data, err := os.ReadFile(file)
			source.Write(data)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range rows {
		if !strings.Contains(source.String(), m[1]) {
			t.Errorf("docs/operations.md quotes the message %q, which the code does not have", m[1])
		}
	}
}

// TestEveryPackageIsInTheCodeMap: the table has every folder with product code, and no
// other one. Below internal, test support is none.
func TestEveryPackageIsInTheCodeMap(t *testing.T) {
	_, table, _ := strings.Cut(readFile(t, "docs/code-map.md"), "\n| package | purpose |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var documented, packages []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(table, -1) {
		documented = append(documented, m[1])
	}
	for _, top := range []string{"cmd", "schema", "disk", "fetch", "reconcile", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(file string, d fs.DirEntry, err error) error {
			if d != nil && d.IsDir() && d.Name() == "testx" {
				return fs.SkipDir
			}
			if err != nil || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			dir, err := filepath.Rel(root, filepath.Dir(file))
			packages = append(packages, filepath.ToSlash(dir))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(packages)
	packages = slices.Compact(packages)
	for _, name := range packages {
		if !slices.Contains(documented, name) {
			t.Errorf("docs/code-map.md does not have the package %s", name)
		}
	}
	for _, name := range documented {
		if !slices.Contains(packages, name) {
			t.Errorf("docs/code-map.md has %s, which is no package", name)
		}
	}
}

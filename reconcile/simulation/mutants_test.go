package simulation

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

var mutants = flag.String("cluster.mutants", "", "regular expression: the mutants to run. The simulation must detect each")

// mutant is a change of product code that breaks one rule. The comment of its file has the rule and
// what the change does. Pairs of sections follow: "find FILE", with a text that occurs once in FILE,
// and "replace". FILE is relative to the folder reconcile.
type mutant struct {
	name  string
	rule  string
	edits []edit
}

type edit struct{ file, find, replace string }

// isAboutProofs reports whether the mutant breaks the rule about proofs (H3). To detect such a mutant, the
// simulation also checks the responses and proofs of the nodes, in clusters with a compromised node.
func (m mutant) isAboutProofs() bool { return strings.HasPrefix(m.rule, "H3") }

// test returns the test that detects the mutant.
func (m mutant) test() string {
	if strings.HasPrefix(m.rule, "U5") {
		return "^TestSharedFolder$"
	}
	return "^TestCluster$"
}

// kind returns the kind of clusters that detects the mutant soonest: see adversity.
func (m mutant) kind() string {
	switch {
	case m.isAboutProofs():
		return "peer"
	case strings.HasPrefix(m.rule, "P3"):
		return "skew"
	}
	return "none"
}

func readMutants(t *testing.T) []mutant {
	files, err := filepath.Glob("testdata/mutants/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no mutants: %v", err)
	}
	var all []mutant
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m := mutant{name: strings.TrimSuffix(filepath.Base(file), ".txtar"), rule: strings.TrimSpace(string(a.Comment))}
		for i := 0; i+1 < len(a.Files); i += 2 {
			of, ok := strings.CutPrefix(a.Files[i].Name, "find ")
			if !ok || a.Files[i+1].Name != "replace" {
				t.Fatalf("%s: the sections must be pairs of find FILE and replace", file)
			}
			m.edits = append(m.edits, edit{of, string(a.Files[i].Data), string(a.Files[i+1].Data)})
		}
		all = append(all, m)
	}
	return all
}

// apply returns the changed files by name. It fails if a text to find does not occur exactly once:
// then the product has changed, and the mutant must be adapted.
func (m mutant) apply() (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, e := range m.edits {
		if files[e.file] == nil {
			data, err := os.ReadFile(filepath.Join("..", e.file))
			if err != nil {
				return nil, err
			}
			files[e.file] = data
		}
		find := strings.TrimSuffix(e.find, "\n")
		if n := bytes.Count(files[e.file], []byte(find)); n != 1 {
			return nil, fmt.Errorf("%s has this text %d times, want once:\n%s", e.file, n, find)
		}
		files[e.file] = bytes.Replace(files[e.file], []byte(find), []byte(strings.TrimSuffix(e.replace, "\n")), 1)
	}
	return files, nil
}

// TestMutantsFit fails if a mutant does not match the product code, or does not compile.
func TestMutantsFit(t *testing.T) {
	race.Skip(t)
	t.Parallel()
	checker := newTypeChecker(t)
	for _, m := range readMutants(t) {
		files, err := m.apply()
		if err == nil {
			err = checker.check(files)
		}
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}

// typeChecker checks the types of changed packages against the compiled product, in this process. This
// takes a second for all mutants. To compile all mutants takes minutes.
type typeChecker struct {
	fset     *token.FileSet
	importer types.Importer
}

func newTypeChecker(t *testing.T) typeChecker {
	out, err := need.Go(t.Context(), "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "..").Output()
	if err != nil {
		t.Fatal(err)
	}
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = file
	}
	fset := token.NewFileSet()
	open := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	return typeChecker{fset, importer.ForCompiler(fset, "gc", open)}
}

// check type-checks the packages of the changed files.
func (c typeChecker) check(files map[string][]byte) error {
	folders := map[string]bool{}
	for name := range files {
		folders[path.Dir(name)] = true
	}
	for folder := range folders {
		dir := filepath.Join("..", folder)
		p, err := build.ImportDir(dir, 0)
		if err != nil {
			return err
		}
		var syntax []*ast.File
		for _, name := range p.GoFiles {
			var source any // nil: the file is read
			if changed, ok := files[path.Join(folder, name)]; ok {
				source = changed
			}
			file, err := parser.ParseFile(c.fset, filepath.Join(dir, name), source, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			syntax = append(syntax, file)
		}
		config := types.Config{Importer: c.importer}
		if _, err := config.Check(p.Name, c.fset, syntax, nil); err != nil {
			return fmt.Errorf("it does not compile: %w", err)
		}
	}
	return nil
}

// TestMutants compiles each mutant with go test -overlay, which does not change the source files, and
// runs the simulation with it. The simulation checks deletions only against the simulated disks
// (-cluster.world), not against the responses and proofs of peers, except for the mutants about proofs: see
// isAboutProofs.
func TestMutants(t *testing.T) {
	if *mutants == "" {
		t.Skip("it takes minutes: -cluster.mutants=. (make mutants)")
	}
	only := regexp.MustCompile(*mutants)
	for _, m := range readMutants(t) {
		if only.MatchString(m.name) {
			t.Run(m.name, m.run)
		}
	}
}

var caught = regexp.MustCompile(`(?s)(\d+) clusters in (\S+):.*seed (\d+) broke a rule:\n(.*?)\n`)

func (m mutant) run(t *testing.T) {
	files, err := m.apply()
	if err != nil {
		t.Fatal(err)
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	dir := t.TempDir()
	for name, data := range files {
		real, err := filepath.Abs(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		overlay.Replace[real] = filepath.Join(dir, strings.NewReplacer("/", "_", "..", "_").Replace(name))
		if err := os.WriteFile(overlay.Replace[real], data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	out, err := need.Go(t.Context(), "test", "-overlay", filepath.Join(dir, "overlay.json"), "-count=1", "-timeout=60m",
		"-run="+m.test(), "-v", "-cluster.world="+strconv.FormatBool(!m.isAboutProofs()), "-cluster.kind="+m.kind(), "-cluster.seeds=1000", "-cluster.lines=1").CombinedOutput()
	found := caught.FindSubmatch(out)
	if err == nil || found == nil {
		t.Errorf("%s\nwas not caught in 1,000 seeds:\n%s", m.rule, tail(out, 3000))
		return
	}
	t.Logf("%s\ncaught in seed %s, %s (%s with its compilation): %s", m.rule, found[3], found[2],
		time.Since(began).Round(time.Second), bytes.TrimSpace(found[4]))
}

func tail(b []byte, n int) []byte { return b[max(0, len(b)-n):] }

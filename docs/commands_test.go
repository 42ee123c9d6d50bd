package docs

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/freeport"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

const program = "backing-image-manager"

// binDir has the program. All tests share it.
var binDir string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "docs")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	build := need.Go(context.Background(), "build", "-o", filepath.Join(dir, program), "./cmd/"+program)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	binDir = dir
	return m.Run()
}

// TestCommandsRun runs the blocks "sh run" of each document, as one script in an empty folder
// beside the examples.
func TestCommandsRun(t *testing.T) {
	for _, d := range documents(t) {
		var script strings.Builder
		for _, b := range d.blocks {
			if b.info == "sh run" {
				script.WriteString(b.text)
			}
		}
		if script.Len() == 0 {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			runScript(t, script.String())
		})
	}
}

// runScript runs a script of a document. A daemon in it listens on a free port instead of
// the default one. The folder www of the script is that of http://images.example.com.
func runScript(t *testing.T, script string) {
	for _, program := range []string{"curl", "openssl", "git"} {
		if strings.Contains(script, program+" ") {
			need.Programs(t, program)
		}
	}
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "examples"), os.DirFS(filepath.Join(root, "examples"))); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(script, program+" daemon ") {
		address, err := freeport.Address("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		script = strings.ReplaceAll(script, program+" daemon ", program+" daemon --listen "+address+" ")
		script = strings.ReplaceAll(script, "127.0.0.1:8000", address)
	}
	site := httptest.NewServer(http.FileServer(http.Dir(filepath.Join(dir, "www"))))
	t.Cleanup(site.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-eu", "-c", "trap 'kill ${!:-} 2>/dev/null || true' EXIT\n"+script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+binDir+string(os.PathListSeparator)+os.Getenv("PATH"), "HOME="+dir, "HTTP_PROXY="+site.URL)
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\nof the script\n%s", err, out, script)
	}
}

// TestConfigurationsAreValid validates the blocks "yaml", each as a config directory.
func TestConfigurationsAreValid(t *testing.T) {
	checked := 0
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			if b.info != "yaml" {
				continue
			}
			checked++
			file := filepath.Join(t.TempDir(), "config.yaml")
			text := strings.ReplaceAll(b.text, "sha512:…", "sha512:"+strings.Repeat("0a", 64))
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(filepath.Join(binDir, program), "validate", file).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s\nof\n%s", d.name, err, out, b.text)
			}
		}
	}
	if checked < 5 {
		t.Errorf("checked only %d blocks", checked)
	}
}

// command is a command of the program, with the flags that its --help lists.
type command struct {
	path  string // "" for the program itself, otherwise words such as "disk init"
	flags []string
	subs  []string
}

var (
	helpFlag = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([\w-]+)`)
	helpSub  = regexp.MustCompile(`(?m)^  ([\w-]+) +\S`)
)

// commands returns all commands of the program, from their help.
func commands(t *testing.T) map[string]command {
	t.Helper()
	all := map[string]command{}
	var visit func(words []string)
	visit = func(words []string) {
		out, err := exec.Command(filepath.Join(binDir, program), append(slices.Clone(words), "--help")...).Output()
		if err != nil {
			t.Fatalf("%q --help: %v", words, err)
		}
		c := command{path: strings.Join(words, " ")}
		text, flags, _ := strings.Cut(string(out), "\nFlags:\n")
		for _, m := range helpFlag.FindAllStringSubmatch(flags, -1) {
			c.flags = append(c.flags, m[1])
		}
		if _, list, found := strings.Cut(text, "Available Commands:\n"); found {
			for _, m := range helpSub.FindAllStringSubmatch(list, -1) {
				c.subs = append(c.subs, m[1])
			}
		}
		all[c.path] = c
		for _, sub := range c.subs {
			if sub != "help" && sub != "completion" {
				visit(append(slices.Clone(words), sub))
			}
		}
	}
	visit(nil)
	if len(all) < 20 {
		t.Fatalf("found only %d commands", len(all))
	}
	return all
}

// TestFlagsInCommandsExist checks the commands and flags of every line with the program in
// the shell blocks, also of those that do not run here.
func TestFlagsInCommandsExist(t *testing.T) {
	all, checked := commands(t), 0
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			if kind, _, _ := strings.Cut(b.info, " "); kind != "sh" {
				continue
			}
			for line := range strings.Lines(strings.ReplaceAll(b.text, "\\\n", " ")) {
				for _, call := range calls(line) {
					checked++
					if err := checkCall(all, call); err != nil {
						t.Errorf("%s: %v in %q", d.name, err, strings.TrimSpace(line))
					}
				}
			}
		}
	}
	if checked < 20 {
		t.Errorf("checked only %d commands", checked)
	}
}

// calls returns the words after each name of the program in a line of a shell script.
func calls(line string) [][]string {
	var found [][]string
	words := strings.Fields(line)
	for i, word := range words {
		if word != program || i > 0 && !slices.Contains([]string{"|", "&&", ";", "sudo", "(", "!"}, words[i-1]) {
			continue
		}
		end := i + 1
		for end < len(words) && !slices.Contains([]string{"|", "&&", ";", "&", "#"}, words[end]) {
			end++
		}
		found = append(found, words[i+1:end])
	}
	return found
}

func checkCall(all map[string]command, words []string) error {
	c := all[""]
	for len(words) > 0 && slices.Contains(c.subs, words[0]) && words[0] != "help" && words[0] != "completion" {
		c, words = all[strings.TrimSpace(c.path+" "+words[0])], words[1:]
	}
	if len(c.subs) > 0 && len(words) > 0 && !strings.HasPrefix(words[0], "-") && words[0] != "completion" {
		return fmt.Errorf("%q has no command %q", c.path, words[0])
	}
	for _, word := range words {
		if flag, isFlag := strings.CutPrefix(word, "--"); isFlag {
			if name, _, _ := strings.Cut(flag, "="); !slices.Contains(c.flags, name) {
				return fmt.Errorf("%q has no flag --%s", c.path, name)
			}
		}
	}
	return nil
}

var flagSpan = regexp.MustCompile(`^--([a-z][\w-]*)`)

// TestFlagsInTextExist: a flag in backquotes is a flag of some command.
func TestFlagsInTextExist(t *testing.T) {
	known := map[string]bool{}
	for _, c := range commands(t) {
		for _, name := range c.flags {
			known[name] = true
		}
	}
	for _, d := range documents(t) {
		for _, span := range d.spans() {
			if m := flagSpan.FindStringSubmatch(span); m != nil && !known[m[1]] {
				t.Errorf("%s: no command has the flag --%s", d.name, m[1])
			}
		}
	}
}

// TestEveryScenarioCommandIsDocumented: docs/scenarios.md has the commands of "test --help"
// with the same arguments.
func TestEveryScenarioCommandIsDocumented(t *testing.T) {
	out, err := exec.Command(filepath.Join(binDir, program), "test", "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, help, _ := strings.Cut(string(out), "\nCommands that change the cluster:\n")
	help, _, _ = strings.Cut(help, "\nThese commands of testscript")
	found := regexp.MustCompile(`(?m)^  (\w.*)$`).FindAllStringSubmatch(help, -1)
	if len(found) < 15 {
		t.Fatalf("test --help has only the commands %q", found)
	}
	text := readFile(t, "docs/scenarios.md")
	for _, m := range found {
		if !strings.Contains(text, "| `"+strings.ReplaceAll(m[1], "|", `\|`)+"` |") {
			t.Errorf("docs/scenarios.md does not have the command %s", m[1])
		}
	}
}

var (
	goTest  = regexp.MustCompile(`go test (.*)`)
	goNames = regexp.MustCompile(`(?m)^func (Test|Benchmark)(\w+)\(`)
)

// TestGoTestCommandsSelectSomething: each "go test" of the documents names packages that
// exist, and selects at least one test or benchmark of them.
func TestGoTestCommandsSelectSomething(t *testing.T) {
	checked := 0
	for _, file := range []string{"docs/performance.md", "docs/development.md", "docs/configuration.md", "docs/metrics.md", "testdata/script/README.md"} {
		for _, m := range goTest.FindAllStringSubmatch(readFile(t, file), -1) {
			checked++
			if err := checkGoTest(strings.Fields(strings.TrimRight(m[1], "`:.,"))); err != nil {
				t.Errorf("%s: %v in %q", file, err, m[0])
			}
		}
	}
	if checked < 5 {
		t.Errorf("checked only %d commands", checked)
	}
}

func checkGoTest(words []string) error {
	var sources bytes.Buffer
	selects := map[string]string{}
	for i, word := range words {
		word = strings.Trim(word, "`'")
		if i > 0 && (words[i-1] == "-run" || words[i-1] == "-bench") {
			selects[words[i-1]], _, _ = strings.Cut(strings.Trim(words[i], "`'"), "/")
		}
		dir, isPackage := strings.CutPrefix(word, "./")
		if !isPackage {
			continue
		}
		pattern := filepath.Join(root, strings.TrimSuffix(dir, "/..."), "*_test.go")
		files, err := filepath.Glob(pattern)
		if deep, err2 := filepath.Glob(filepath.Join(filepath.Dir(pattern), "*", "*_test.go")); err2 == nil && strings.HasSuffix(dir, "/...") {
			files = append(files, deep...)
		}
		if err != nil || len(files) == 0 {
			return fmt.Errorf("no tests in %s", word)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			sources.Write(data)
		}
	}
	for flag, pattern := range selects {
		if pattern == "^$" || pattern == "." {
			continue
		}
		selected, err := regexp.Compile(pattern)
		if err != nil {
			return err
		}
		kind := map[string]string{"-run": "Test", "-bench": "Benchmark"}[flag]
		matches := func(m []string) bool { return m[1] == kind && selected.MatchString(m[1]+m[2]) }
		if !slices.ContainsFunc(goNames.FindAllStringSubmatch(sources.String(), -1), matches) {
			return fmt.Errorf("%s %s selects nothing", flag, pattern)
		}
	}
	return nil
}

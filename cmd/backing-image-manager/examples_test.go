package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

func TestExamplesPassValidateStrict(t *testing.T) {
	dirs, err := filepath.Glob("../../examples/*")
	configs, err2 := filepath.Glob("../../examples/kubernetes/*/*/config") // an overlay changes files of its base
	if err := errors.Join(err, err2); err != nil || len(dirs) == 0 || len(configs) == 0 {
		t.Fatalf("examples %q and %q, error %v", dirs, configs, err)
	}
	for _, dir := range append(configs, dirs...) {
		switch filepath.Base(dir) {
		case "kubernetes":
			dir = filepath.Join(dir, "base")
		case "fleet":
			dir = filepath.Join(dir, "config") // the other files are no configuration
		case "prometheus", "systemd":
			continue
		}
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			continue
		}
		if out, errOut, err := try(t, "validate", "--strict", dir); err != nil {
			t.Errorf("%s: %v\n%s%s", dir, err, out, errOut)
		}
	}
}

// A new user copies the configuration of the README.
func TestConfigurationOfTheReadmePassesValidateStrict(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```").FindAllSubmatch(text, -1)
	if len(blocks) == 0 {
		t.Fatal("README.md has no configuration")
	}
	for _, b := range blocks {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "config.yaml"), b[1], 0o600); err != nil {
			t.Fatal(err)
		}
		if out, errOut, err := try(t, "validate", "--strict", dir); err != nil {
			t.Errorf("%v\n%s%s%s", err, b[1], out, errOut)
		}
	}
}

// The commands of the example workflow must succeed in a copy of the example, which stands for a
// checkout.
func TestCommandsOfTheExampleWorkflowRun(t *testing.T) {
	example, err := filepath.Abs("../../examples/fleet")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(example, ".github/workflows/plan.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	checkout := filepath.Join(t.TempDir(), "checkout")
	for _, dir := range []string{checkout, filepath.Join(checkout, "../base")} {
		if err := os.CopyFS(dir, os.DirFS(example)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(checkout)
	commands := regexp.MustCompile(`(?m)- run: backing-image-manager (.*?)( >\S+)?$`).FindAllSubmatch(text, -1)
	if len(commands) != 2 {
		t.Fatalf("the workflow has %d commands, want 2", len(commands))
	}
	for _, c := range commands {
		if out, errOut, err := try(t, strings.Fields(string(c[1]))...); err != nil || errOut != "" {
			t.Errorf("%s: %v\n%s%s", c[1], err, out, errOut)
		}
	}
}

// TestExampleWorkflowUpdatesTheImages runs the steps of the workflow that updates images in a copy of the example, with a
// repository and an upstream on this machine. A program gh stands for that of GitHub, and records its arguments.
func TestExampleWorkflowUpdatesTheImages(t *testing.T) {
	need.Programs(t, "git")
	dir := t.TempDir()
	w := newWorkflow(t, dir, "../../examples/fleet/.github/workflows/update.yaml")
	site := filepath.Join(dir, "site")
	publish := func(names ...string) {
		if err := os.RemoveAll(site); err != nil {
			t.Fatal(err)
		}
		list := ""
		for _, name := range names {
			writeFile(t, filepath.Join(site, name), "image")
			list += fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(name)), name)
		}
		writeFile(t, filepath.Join(site, "SHA256SUMS"), list)
	}
	publish("debian-12-20261101.raw", "ubuntu-24.04-20261101.raw")
	proxy := httptest.NewServer(http.FileServer(http.Dir(site))) // for http://images.example.com
	t.Cleanup(proxy.Close)
	w.env = append(w.env, "HTTP_PROXY="+proxy.URL)
	before := readFile(t, "../../examples/fleet/config/images.yaml")

	w.git(t, "checkout", "-q", "--detach") // as the checkout of a workflow
	if err := w.run(t); err != nil {
		t.Fatal(err)
	}
	proposed := w.git(t, "show", "origin/update-images:config/images.yaml")
	want := before
	for _, image := range []string{"debian-12", "ubuntu-24.04"} {
		name := image + "-20261101.raw"
		old := regexp.MustCompile(`(?s)/` + regexp.QuoteMeta(image) + `\.raw(.*?)"sha256:[0-9a-f]{64}"`)
		want = old.ReplaceAllString(want, fmt.Sprintf(`/%s${1}"sha256:%x"`, name, sha256.Sum256([]byte(name))))
	}
	if proposed != want || want == before {
		t.Errorf("the workflow proposes\n%s\nand not\n%s", proposed, want)
	}
	for file, text := range map[string]string{"update.md": "### Updated 2 images; 0 up to date, 0 refused.", "plan.md": "to transfer"} {
		if got := readFile(t, filepath.Join(w.checkout, file)); !strings.Contains(got, text) {
			t.Errorf("%s is\n%s", file, got)
		}
	}
	calls := readFile(t, w.calls)
	for _, call := range []string{"pr create --head update-images --title Update images --body-file update.md\n", "pr comment update-images --body-file plan.md"} {
		if !strings.Contains(calls, call) {
			t.Errorf("gh was not called with %q, but with\n%s", call, calls)
		}
	}

	// In the next nights, the pull request is open, then it is merged, and then one image is refused: the workflow fails.
	w.git(t, "checkout", "-q", "main")
	writeFile(t, w.calls, "")
	if err := w.run(t); err != nil {
		t.Fatal(err)
	}
	if calls := readFile(t, w.calls); calls != "auth setup-git\n" {
		t.Errorf("the same was proposed again: %s", calls)
	}
	w.git(t, "checkout", "-q", "-B", "main", "origin/update-images")
	writeFile(t, w.calls, "")
	if err := w.run(t); err != nil {
		t.Fatal(err)
	}
	publish("debian-12-20261001.raw", "ubuntu-24.04-20261101.raw")
	if err := w.run(t); err == nil || !strings.Contains(readFile(t, filepath.Join(w.checkout, "update.md")), "older-than-pinned") {
		t.Errorf("the workflow does not fail because of a refusal: %v", err)
	}
	if calls := readFile(t, w.calls); calls != "" {
		t.Errorf("nothing has changed, but gh was called: %s", calls)
	}
}

// workflow is a job of a workflow and a checkout in which it runs.
type workflow struct {
	steps           []workflowStep
	checkout, calls string // calls is a file with the arguments of gh
	env             []string
}

type workflowStep struct {
	ID, If, Run     string
	ContinueOnError bool `json:"continue-on-error"`
}

// newWorkflow reads a workflow with one job, and makes a repository and a checkout of the example around it.
func newWorkflow(t *testing.T, dir, file string) *workflow {
	t.Helper()
	var parsed struct {
		Jobs map[string]struct{ Steps []workflowStep }
	}
	if err := yaml.Unmarshal([]byte(readFile(t, file)), &parsed); err != nil || len(parsed.Jobs) != 1 {
		t.Fatalf("%d jobs, %v", len(parsed.Jobs), err)
	}
	w := &workflow{checkout: filepath.Join(dir, "work", "checkout"), calls: filepath.Join(dir, "calls")}
	for _, job := range parsed.Jobs {
		w.steps = job.Steps
	}
	if err := os.CopyFS(w.checkout, os.DirFS(filepath.Join(filepath.Dir(file), "../.."))); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "bin/gh"), "#!/bin/sh\necho \"$@\" >>"+w.calls+"\n")
	if err := os.Chmod(filepath.Join(dir, "bin/gh"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.env = append(os.Environ(), "HOME="+dir, "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	w.git(t, "init", "-q", "--bare", filepath.Join(dir, "origin"))
	w.git(t, "init", "-q", "-b", "main")
	w.git(t, "remote", "add", "origin", filepath.Join(dir, "origin"))
	w.git(t, "add", ".")
	w.git(t, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-q", "-m", "Add the configuration")
	return w
}

func (w *workflow) git(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env = w.checkout, w.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return string(out)
}

// run runs the steps as GitHub does, and returns the error of the first that fails.
func (w *workflow) run(t *testing.T) error {
	t.Helper()
	dir := filepath.Dir(w.checkout)
	if err := os.RemoveAll(filepath.Join(dir, "base")); err != nil {
		t.Fatal(err)
	}
	output := filepath.Join(dir, "output")
	writeFile(t, output, "")
	failed := map[string]bool{}
	for _, s := range w.steps {
		runs := false
		switch s.If {
		case "":
			runs = s.Run != "" && !strings.HasPrefix(s.Run, "go install ")
		case "steps.commit.outputs.created == 'true'":
			runs = strings.Contains(readFile(t, output), "created=true\n")
		case "steps.update.outcome == 'failure'":
			runs = failed["update"]
		default:
			t.Fatalf("the test does not know the condition %s", s.If)
		}
		if !runs {
			continue
		}
		cmd := exec.Command("bash", "-e", "-c", s.Run)
		cmd.Dir, cmd.Env = w.checkout, append(w.env, "GITHUB_OUTPUT="+output, "GITHUB_STEP_SUMMARY="+filepath.Join(dir, "summary"))
		if out, err := cmd.CombinedOutput(); err != nil {
			if failed[s.ID] = true; !s.ContinueOnError {
				return fmt.Errorf("%s: %w: %s", s.Run, err, out)
			}
		}
	}
	return nil
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestExampleScenariosPass(t *testing.T) {
	out, errOut, err := try(t, "test", "../../examples/suites", "--config-dir", "../../examples/suites/config")
	if err != nil || !strings.HasSuffix(out, "\n5 scenarios passed.\n") {
		t.Errorf("%v\n%s%s", err, out, errOut)
	}
}

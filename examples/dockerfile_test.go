// Package examples tests the files in this folder and the Dockerfile: it parses manifests and
// units as strictly as Kubernetes and systemd do, and runs the program as they describe, in
// containers and network namespaces.
//
// dockerfile_test.go builds the program, manifests_test.go renders and checks manifests,
// fleet_test.go makes the network and the disks of a cluster, and kubernetes_test.go and
// systemd_test.go run one. prometheus_test.go evaluates rules and the dashboard with the metrics of
// daemons, and promql_test.go finds the metrics in their expressions.
package examples

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// tmp has the program that all tests use.
var tmp string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if tmp, err = os.MkdirTemp("", "examples"); err != nil {
			panic(err)
		}
		defer os.RemoveAll(tmp)
		return m.Run()
	}())
}

// image is the container image of the Dockerfile. Tests have no tool that builds it, so they run
// its build command, unchanged.
type image struct {
	program    string            // the file that the build command makes
	copies     map[string]string // from the build stage into the image
	entrypoint string
	user       string
}

var (
	buildArg   = regexp.MustCompile(`(?m)^ARG (\w+)=(.*)$`)
	buildRun   = regexp.MustCompile(`(?m)^RUN (CGO_ENABLED=0 go build .*)$`)
	imageCopy  = regexp.MustCompile(`(?m)^COPY --from=build (\S+) (\S+)$`)
	imageUser  = regexp.MustCompile(`(?m)^USER (\S+)$`)
	imageEntry = regexp.MustCompile(`(?m)^ENTRYPOINT \["(\S+)"\]$`)
)

// buildOnce builds the image; its error has the output of the build.
var buildOnce = sync.OnceValues(func() (image, error) {
	file, err := os.ReadFile("../Dockerfile")
	if err != nil {
		return image{}, err
	}
	_, final, _ := strings.Cut(string(file), "\nFROM scratch\n")
	i := image{
		program: filepath.Join(tmp, "backing-image-manager"), copies: map[string]string{},
		entrypoint: imageEntry.FindStringSubmatch(final)[1], user: imageUser.FindStringSubmatch(final)[1],
	}
	for _, c := range imageCopy.FindAllStringSubmatch(final, -1) {
		i.copies[c[1]] = c[2] + filepath.Base(c[1])
	}
	const output = "bin/backing-image-manager"
	command := strings.Replace(buildRun.FindStringSubmatch(string(file))[1], " -o "+output, " -o "+i.program, 1)
	build := exec.Command("sh", "-c", command)
	build.Dir = ".."
	build.Env = os.Environ()
	for _, arg := range buildArg.FindAllStringSubmatch(string(file), -1) {
		build.Env = append(build.Env, arg[1]+"="+arg[2]+"-of-the-test")
	}
	if out, err := build.CombinedOutput(); err != nil {
		return image{}, &exec.Error{Name: command + "\n" + string(out), Err: err}
	}
	return i, nil
})

func builtImage(t *testing.T) image {
	t.Helper()
	i, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestDockerfile(t *testing.T) {
	i := builtImage(t)
	if i.copies["/src/bin/backing-image-manager"] != i.entrypoint || i.copies["/etc/ssl/certs/ca-certificates.crt"] == "" {
		t.Errorf("the image contains %v and runs %s", i.copies, i.entrypoint)
	}
	if i.user != "65532:65532" {
		t.Errorf("the user is %s", i.user)
	}
	f, err := elf.Open(i.program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the program needs a dynamic loader, which the image lacks")
		}
	}
	out, err := exec.Command(i.program, "version").Output()
	if want := "backing-image-manager (devel)-of-the-test, commit unknown-of-the-test, go1."; err != nil || !bytes.HasPrefix(out, []byte(want)) {
		t.Errorf("the version is %s, error %v, want %s…", out, err, want)
	}
}

// TestDockerfileUsesTheGoOfTheModule compares the Go versions of Dockerfile and go.mod.
func TestDockerfileUsesTheGoOfTheModule(t *testing.T) {
	docker, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	module, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`(?m)^go (\S+)$`).FindSubmatch(module)[1]
	if !bytes.Contains(docker, []byte("\nFROM golang:"+string(want)+"-")) {
		t.Errorf("the Dockerfile does not build with Go %s", want)
	}
}

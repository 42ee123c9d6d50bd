// Package examples holds its files to what they promise: manifests and units are read as
// strictly as their readers do it, and the program runs as they say.
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

// tmp is where what is made once for all tests lies.
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

// image is what the Dockerfile makes: there is nobody here who builds it, so its build
// command runs here as it stands.
type image struct {
	program    string // the file that is copied into it
	copies     map[string]string
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

// built is the image, with the output of the build if there is none.
var built = sync.OnceValues(func() (image, error) {
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

func theImage(t *testing.T) image {
	t.Helper()
	i, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestDockerfile(t *testing.T) {
	i := theImage(t)
	if i.copies["/src/bin/backing-image-manager"] != i.entrypoint || i.copies["/etc/ssl/certs/ca-certificates.crt"] == "" {
		t.Errorf("the image has %v, and runs %s", i.copies, i.entrypoint)
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
			t.Error("the program needs a loader, and the image has none")
		}
	}
	out, err := exec.Command(i.program, "version").Output()
	if want := "backing-image-manager (devel)-of-the-test, commit unknown-of-the-test, go1."; err != nil || !bytes.HasPrefix(out, []byte(want)) {
		t.Errorf("the version is %s, error %v, want %s…", out, err, want)
	}
}

// TestDockerfileHasOurGo: the Go of the image is the one that the module asks for.
func TestDockerfileHasOurGo(t *testing.T) {
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

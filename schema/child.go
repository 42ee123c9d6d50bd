package schema

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
	"testing/fstest"

	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/errors"
	cueload "cuelang.org/go/cue/load"
	"cuelang.org/go/cue/parser"
	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// childVariable is set in the environment of a child.
const childVariable = "BACKING_IMAGE_MANAGER_EVALUATE_CUE"

// What evaluating the .cue files of a directory may take: an evaluation cannot
// be stopped, so it has a process of its own that the kernel stops.
const (
	childSeconds = 4
	childMemory  = 512 << 20
	childAnswer  = 64 << 20
)

// ChildMain has to be called first thing in main, and in TestMain of tests that
// load .cue files. In a process that a Loader started to evaluate .cue files it
// does that and exits; otherwise it does nothing.
func ChildMain() {
	if os.Getenv(childVariable) == "" {
		return
	}
	if err := serveUnits(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serveUnits answers units one by one, so that it is plain which of them the
// process died of.
func serveUnits(in, out *os.File) error {
	if err := limitSelf(); err != nil {
		return err
	}
	decoder := json.NewDecoder(in)
	for decoder.More() {
		var u unit
		if err := decoder.Decode(&u); err != nil {
			return fmt.Errorf("read what to evaluate: %w", err)
		}
		b, err := json.Marshal(u.evaluate())
		if len(b) > childAnswer {
			b, err = json.Marshal(failed(&u, errTooExpensive))
		}
		if err == nil {
			_, err = out.Write(append(b, '\n'))
		}
		if err != nil {
			return fmt.Errorf("write the result: %w", err)
		}
	}
	return nil
}

func limitSelf() error {
	var pages uint64
	b, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(b), &pages)
	}
	if err != nil {
		return fmt.Errorf("read own memory: %w", err)
	}
	// The runtime of Go reserves address space that it never uses.
	memory := pages*uint64(os.Getpagesize()) + childMemory
	if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: memory, Max: memory}); err != nil {
		return fmt.Errorf("limit own memory: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CPU, &unix.Rlimit{Cur: childSeconds, Max: childSeconds}); err != nil {
		return fmt.Errorf("limit own time: %w", err)
	}
	return nil
}

// evaluate does not panic: where CUE does, that is a mistake as any other.
func (u *unit) evaluate() (a answer) {
	defer func() {
		if p := recover(); p != nil {
			first, _, _ := strings.Cut(fmt.Sprint(p), "\n")
			a = failed(u, fmt.Errorf("CUE breaks down on it: %s", document.Printable(withoutAddresses(first))))
			a.Passing = false
		}
	}()
	files := fstest.MapFS{}
	for _, f := range u.Files {
		files[f.Path] = &fstest.MapFile{Data: f.Data}
	}
	for _, f := range u.Others {
		// The loader looks at all files of a module; a broken one must not keep
		// the others from being imported.
		if _, err := parser.ParseFile(f.Path, f.Data); path.Ext(f.Path) != ".cue" || err == nil {
			files[f.Path] = &fstest.MapFile{Data: f.Data}
		}
	}
	instance := cueload.Instances([]string{u.Origin}, &cueload.Config{
		FS: files, Env: []string{"CUE_REGISTRY=none"}, Tests: true, Tools: true,
	})[0]
	if instance.Err != nil {
		return answer{Mistakes: u.mistakes(instance.Err)}
	}
	root := cuecontext.New().BuildInstance(instance)
	w := walker{unit: u}
	w.found = u.mistakes(root.Validate())
	doc := w.value(root, nil, document.Position{File: u.Files[0].Path})
	return answer{Document: doc, Mistakes: w.found}
}

// maxMistakes bounds what is told of one unit.
const maxMistakes = 100

func (u *unit) mistakes(err error) []mistake {
	var all []mistake
	for _, e := range errors.Errors(err) {
		if len(all) == maxMistakes {
			break
		}
		m := mistake{Path: unquote(e.Path()), Message: withoutAddresses(messageOf(e))}
		for _, pos := range errors.Positions(e) {
			at := position(pos)
			switch {
			case !u.owns(at.File):
			case m.Line == 0:
				m.Position = at
			case m.Also.Line == 0:
				m.Also = at
			}
		}
		if strings.HasPrefix(m.Message, "import failed") {
			m.Hint = "packages of the config directory and CUE's own can be imported, no others"
		}
		if m.Line == 0 {
			m.Position = document.Position{File: u.Files[0].Path}
		}
		m.Message = strings.ReplaceAll(m.Message, "/"+m.Position.String()+": ", "") // told as the place
		all = append(all, m)
	}
	return all
}

// messageOf is the message of e, and of what it wraps where that says more.
func messageOf(e errors.Error) string {
	format, args := e.Msg()
	msg := fmt.Sprintf(format, args...)
	if inner := errors.Unwrap(e); inner != nil && !strings.Contains(msg, inner.Error()) {
		msg += ": " + inner.Error()
	}
	return msg
}

func (u *unit) owns(name string) bool {
	for _, files := range [][]configdir.File{u.Files, u.Others} {
		for _, f := range files {
			if f.Path == name {
				return true
			}
		}
	}
	return false
}

var anyAddress = regexp.MustCompile(`[A-Za-z0-9+.-]+://[^\s"]*`)

// withoutAddresses keeps a password in an address out of a message.
func withoutAddresses(s string) string {
	return anyAddress.ReplaceAllString(strings.Join(strings.Fields(s), " "), "…")
}

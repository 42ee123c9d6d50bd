package sandbox

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"strings"
	"testing/fstest" // MapFS, a file system in memory; it does not link package testing
	"time"

	"cuelang.org/go/cue"
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

// Limits of a child. The kernel enforces the limits of CPU time and address space.
const (
	childSeconds = 4         // of CPU time
	childMemory  = 192 << 20 // bytes of resident memory
	childSpace   = 208 << 20 // bytes of address space: three arenas of the Go heap, of 64 MiB each, and what is not heap
	childGoal    = 112 << 20 // bytes that the garbage collector aims at; 7,000 images with typical fields fit into one package, 8,000 do not
	childResult  = 32 << 20  // bytes of the result of one unit
)

// ChildMain must be called first in main, and in TestMain of tests that
// load .cue files. In a child that Evaluate started, it evaluates the units and
// exits. Otherwise it does nothing.
func ChildMain() {
	if os.Getenv(childVariable) == "" {
		return
	}
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve evaluates the units one by one and writes each result at once, so that the parent
// knows on which unit the process crashed.
func serve(in, out *os.File) error {
	if err := limitSelf(); err != nil {
		return err
	}
	go watchMemory() // until the process exits
	e, origins, err := receiveUnits(in)
	if err != nil {
		return fmt.Errorf("read what to evaluate: %w", err)
	}
	var b bytes.Buffer
	encoder := gob.NewEncoder(&b)
	for _, origin := range origins {
		u := e.units[origin]
		err := encoder.Encode(e.limited(u, e.evaluate(u)))
		if b.Len() > childResult {
			tooExpensive()
		}
		if err == nil {
			_, err = b.WriteTo(out)
		}
		if err != nil {
			return fmt.Errorf("write the result: %w", err)
		}
	}
	return nil
}

// receiveUnits reads what the parent sends. It returns the origins of the units to evaluate.
func receiveUnits(in *os.File) (*evaluator, []string, error) {
	decoder := gob.NewDecoder(in)
	var header wireHeader
	if err := decoder.Decode(&header); err != nil {
		return nil, nil, err
	}
	e := &evaluator{limits: header.Limits, all: fstest.MapFS{}, valid: fstest.MapFS{}, units: map[string]*Unit{}}
	files := make([]configdir.File, header.Files)
	for i := range files {
		if err := decoder.Decode(&files[i]); err != nil {
			return nil, nil, err
		}
		e.add(files[i])
	}
	for _, u := range unitsOf(files) {
		e.units[u.Origin] = u
	}
	return e, header.Origins, nil
}

// tooExpensive ends the process as if it had no more memory.
func tooExpensive() {
	fmt.Fprintln(os.Stderr, "out of memory")
	os.Exit(2)
}

func limitSelf() error {
	size, _, err := memoryUse()
	if err != nil {
		return err
	}
	// Add what the process has now: the runtime of Go reserves address space that it
	// never uses.
	memory := size + childSpace
	if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: memory, Max: memory}); err != nil {
		return fmt.Errorf("limit the memory of the process: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CPU, &unix.Rlimit{Cur: childSeconds, Max: childSeconds}); err != nil {
		return fmt.Errorf("limit the CPU time of the process: %w", err)
	}
	return nil
}

// watchMemory ends the process when it has more resident memory than childMemory. The kernel has no limit
// for it. The limit of the address space is not enough, because limitSelf adds it to what the process has
// at the start.
func watchMemory() {
	for range time.Tick(10 * time.Millisecond) {
		if _, resident, err := memoryUse(); err != nil || resident > childMemory {
			tooExpensive()
		}
	}
}

// memoryUse returns the address space and the resident memory of the process in bytes.
func memoryUse() (size, resident uint64, err error) {
	b, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(b), &size, &resident)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read the memory use of the process: %w", err)
	}
	page := uint64(os.Getpagesize())
	return size * page, resident * page, nil
}

// evaluator evaluates the units of one child.
type evaluator struct {
	limits Limits
	all    fstest.MapFS     // all files
	valid  fstest.MapFS     // the files that CUE can parse: CUE loads all files of a module, so one invalid file would be an error of all units
	units  map[string]*Unit // by origin
}

func (e *evaluator) add(f configdir.File) {
	file := &fstest.MapFile{Data: f.Data}
	e.all[f.Path] = file
	if isCUE(f) {
		if _, err := parser.ParseFile(f.Path, f.Data); err != nil {
			return
		}
	}
	e.valid[f.Path] = file
}

// limited counts the text of result r. With too much text, it returns a problem in place of r.
func (e *evaluator) limited(u *Unit, r Result) Result {
	if r.Document != nil {
		r.Text = r.Document.TextSize()
	}
	for _, p := range r.Problems {
		r.Text += len(p.Message)
		for _, name := range p.Path {
			r.Text += len(name)
		}
	}
	if r.Text > e.limits.Text {
		return tooMuch(u, fmt.Sprintf("%d bytes of text", e.limits.Text))
	}
	return r
}

// tooMuch is the result for a unit whose document has more than the limit.
func tooMuch(u *Unit, limit string) Result {
	return failed(u, "has more than "+limit+": it is not read", "declare less in one directory")
}

// failed is the result for a unit with a problem as a whole.
func failed(u *Unit, message, hint string) Result {
	return Result{Problems: []document.Problem{{Position: document.Position{File: u.Files[0].Path}, Message: message, Hint: hint}}}
}

// evaluate evaluates a unit. A panic of CUE becomes a problem.
func (e *evaluator) evaluate(u *Unit) (r Result) {
	defer func() {
		if p := recover(); p != nil {
			first, _, _ := strings.Cut(fmt.Sprint(p), "\n")
			r = failure(u, fmt.Errorf("CUE crashes on it: %s", document.Printable(withoutAddresses(first))))
			r.Transient = false
		}
	}()
	files, invalid := maps.Clone(e.valid), false
	for _, f := range u.Files {
		invalid = invalid || files[f.Path] == nil
		files[f.Path] = e.all[f.Path]
	}
	// CUE would add the files of the same package in the folders above.
	_, name, _ := strings.Cut(u.Origin, ":")
	for dir := path.Dir(u.Files[0].Path); dir != "."; {
		dir = path.Dir(dir)
		if above := e.units["./"+dir+":"+name]; above != nil {
			for _, f := range above.Files {
				delete(files, f.Path)
			}
		}
	}
	instance := cueload.Instances([]string{u.Origin}, &cueload.Config{
		FS: files, Env: []string{"CUE_REGISTRY=none"}, Tests: true, Tools: true,
	})[0]
	if instance.Err != nil {
		return Result{Problems: e.problems(u, instance.Err, invalid)}
	}
	if len(instance.BuildFiles) == 0 {
		return failed(u, "build constraints (@if) exclude all its files", "")
	}
	root := cuecontext.New().BuildInstance(instance)
	incomplete := root.Validate(cue.Concrete(true)) // includes all other errors
	w := walker{files: e.all, left: e.limits.Values}
	if incomplete != nil {
		w.problems = e.problems(u, root.Validate(), false)
	}
	doc := w.value(root, nil, document.Position{File: u.Files[0].Path})
	if w.left < 0 {
		return tooMuch(u, fmt.Sprintf("%d values", e.limits.Values))
	}
	w.addIncomplete(e.problems(u, incomplete, false))
	return Result{Document: doc, Values: e.limits.Values - w.left, Problems: w.problems}
}

// Limits of the problems of one unit. Messages of CUE quote values, which may have any length.
const (
	maxProblems = 100
	maxMessage  = 500 // bytes
)

// problems converts the errors of CUE. The argument invalid says that a file cannot be parsed.
func (e *evaluator) problems(u *Unit, err error, invalid bool) []document.Problem {
	var all []document.Problem
	for _, found := range errors.Errors(err) {
		if len(all) == maxProblems {
			break
		}
		p := document.Problem{Path: unquote(found.Path()), Message: withoutAddresses(messageOf(found))}
		for _, pos := range errors.Positions(found) {
			at := position(pos)
			switch {
			case e.all[at.File] == nil:
			case p.Line == 0:
				p.Position = at
			case p.Also.Line == 0:
				p.Also = at
			}
		}
		if strings.HasPrefix(p.Message, "import failed") {
			p.Hint = "import only packages of the config directory and of CUE itself"
		}
		if invalid && len(p.Path) == 0 && p.Hint == "" {
			p.Message = "not valid CUE: " + p.Message
		}
		if p.Line == 0 {
			p.Position = document.Position{File: u.Files[0].Path}
		}
		p.Message = strings.ReplaceAll(p.Message, "/"+p.Position.String()+": ", "") // the problem has this position
		if len(p.Message) > maxMessage {
			p.Message = strings.ToValidUTF8(p.Message[:maxMessage], "") + "…"
		}
		all = append(all, p)
	}
	return all
}

// messageOf returns the message of error e, and then the message of the error that e wraps,
// unless the first message contains the second.
func messageOf(e errors.Error) string {
	format, args := e.Msg()
	msg := fmt.Sprintf(format, args...)
	if inner := errors.Unwrap(e); inner != nil && !strings.Contains(msg, inner.Error()) {
		msg += ": " + inner.Error()
	}
	return msg
}

// unquote turns the labels of a CUE path into names. The result ends before a comprehension, whose fields have no names yet.
func unquote(labels []string) document.Path {
	path := make(document.Path, 0, len(labels))
	for _, l := range labels {
		if strings.HasSuffix(l, "[]") || strings.HasPrefix(l, "<") {
			break
		}
		path = append(path, strings.Trim(l, `"`))
	}
	return path
}

var anyAddress = regexp.MustCompile(`[A-Za-z0-9+.-]+://[^\s"]*`)

// withoutAddresses removes addresses from a message: they may contain passwords.
func withoutAddresses(s string) string {
	return anyAddress.ReplaceAllString(strings.Join(strings.Fields(s), " "), "…")
}

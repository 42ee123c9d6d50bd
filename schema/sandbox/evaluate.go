package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Unit is a group of files that CUE evaluates together: the files of a folder with the same package
// clause, or one file without a package clause.
type Unit struct {
	Origin string // the package to load, ./folder:package, or the path of the file
	Files  []configdir.File
	// Imports are the files that Files may import or embed. They may include Files. The list is
	// empty if Files import and embed nothing. Several units may share the list.
	Imports []configdir.File
	// Sum is a hash of everything that the result depends on.
	Sum [sha256.Size]byte
}

// Result is the result of evaluating a Unit.
type Result struct {
	Document *document.Value // nil if there is none
	Values   int             // number of values in Document, names of fields included
	Text     int             // bytes of text in Document and Problems
	Problems []document.Problem
	// Transient is true if another attempt may have another result, so that the caller
	// must not remember this one.
	Transient bool
}

var packageClause = regexp.MustCompile(`(?m)^[ \t]*package[ \t]+([\pL_$][\pL\pN_$]*)`)

// Units groups the .cue files of a snapshot. It leaves out the files below cue.mod: other files
// import them, and they declare nothing themselves.
func Units(files []configdir.File) []*Unit {
	byOrigin := map[string]*Unit{}
	var all []*Unit
	for _, f := range files {
		if path.Ext(f.Path) != ".cue" || belowModule(f.Path) {
			continue
		}
		origin := f.Path
		if m := packageClause.FindSubmatch(f.Data); m != nil && string(m[1]) != "_" {
			origin = "./" + path.Dir(f.Path) + ":" + string(m[1])
		}
		u := byOrigin[origin]
		if u == nil {
			u = &Unit{Origin: origin}
			byOrigin[origin], all = u, append(all, u)
		}
		u.Files = append(u.Files, f)
	}
	// A unit usually depends on few files. The caller evaluates it again when one of them changes.
	var shared [everything + 1]dependency
	for _, u := range all {
		r := u.reads()
		if r > ownFiles && shared[r].files == nil {
			shared[r] = newDependency(readable(files, r))
		}
		u.Imports = shared[r].files
		own := newDependency(u.Files)
		u.Sum = sha256.Sum256(slices.Concat([]byte(u.Origin+"\x00"), own.sum[:], shared[r].sum[:]))
	}
	return all
}

// dependency is a list of files, with a hash of them.
type dependency struct {
	files []configdir.File
	sum   [sha256.Size]byte
}

func newDependency(files []configdir.File) dependency {
	h := sha256.New()
	for _, f := range files {
		sum := sha256.Sum256(f.Data)
		fmt.Fprintf(h, "%q %v %x\n", f.Path, f.Err, sum)
	}
	d := dependency{files: files}
	h.Sum(d.sum[:0])
	return d
}

// reach is the set of files that the evaluation of a unit may read.
type reach uint8

const (
	ownFiles   reach = iota // only the files of the unit
	cueFiles                // all .cue files: the unit imports packages of the config directory
	everything              // all files: the unit embeds files
)

var (
	importClause = regexp.MustCompile(`(?s)import\s*(\(.*?\n?[ \t]*\)|[^\n]*)`)
	importPath   = regexp.MustCompile(`"([^"\n]*)"`)
)

// reads returns which files the unit may read. In case of doubt, it returns more than necessary.
func (u *Unit) reads() reach {
	r := ownFiles
	for _, f := range u.Files {
		if bytes.Contains(f.Data, []byte("@extern")) {
			return everything
		}
		for _, clause := range importClause.FindAllSubmatch(f.Data, -1) {
			if importsPackage(clause[1]) {
				r = cueFiles
			}
		}
	}
	return r
}

// importsPackage reports whether a clause may import a package that is not part of CUE. The
// packages of CUE have no dot in the first element of their path.
func importsPackage(clause []byte) bool {
	if bytes.Contains(clause, []byte("//")) || bytes.ContainsAny(clause, "#\\") {
		return true // a comment or an unusual string
	}
	for _, m := range importPath.FindAllSubmatch(clause, -1) {
		first, _, _ := strings.Cut(string(m[1]), "/")
		if strings.Contains(first, ".") || strings.Contains(first, ":") {
			return true
		}
	}
	return false
}

// readable returns the files that a unit with the reach r may read.
func readable(files []configdir.File, r reach) []configdir.File {
	return slices.DeleteFunc(slices.Clone(files), func(f configdir.File) bool {
		return f.Err != nil || r == cueFiles && path.Ext(f.Path) != ".cue"
	})
}

func belowModule(name string) bool {
	for dir := path.Dir(name); dir != "." && dir != "/"; dir = path.Dir(dir) {
		if path.Base(dir) == "cue.mod" {
			return true
		}
	}
	return false
}

// Limits limit the cost of an evaluation.
type Limits struct {
	// Values is how many values the document of one unit may have, names of fields included.
	Values int
	// Text is how many bytes of text the result of one unit may have, problems included. A few lines
	// of CUE can repeat a text to any length.
	Text int
	// Time is the processor time of all units together. The last unit may start before the limit
	// and exceed it by the time that a single unit may use.
	Time time.Duration
}

// Evaluate evaluates units in child processes, and calls each with the result of every unit, in order.
// A child that crashes returns no more results. If it crashed on its first unit, this unit is the
// cause. Otherwise an earlier unit of the child may be the cause, so Evaluate starts a new child for
// the rest. When ctx ends or the time limit is reached, each remaining unit gets a transient problem.
// Evaluate returns the processor time of all children.
func Evaluate(ctx context.Context, units []*Unit, limits Limits, each func(i int, r Result)) (used time.Duration) {
	for next := 0; next < len(units); {
		if ctx.Err() != nil || used >= limits.Time {
			each(next, failure(units[next], errNoTime))
			next++
			continue
		}
		first := next
		took, err := runChild(ctx, units[next:], limits, func(r Result) {
			each(next, r)
			next++
		})
		used += took
		if next == first {
			each(next, failure(units[next], err))
			next++
		}
	}
	return used
}

// failure returns the result for a unit on which a child crashed, or for which Evaluate could not
// start a child.
func failure(u *Unit, err error) Result {
	p := document.Problem{Position: document.Position{File: u.Files[0].Path}, Message: err.Error()}
	if errors.Is(err, errTooExpensive) {
		p.Hint = "check for nested comprehensions, or write it in YAML"
		return Result{Problems: []document.Problem{p}}
	}
	if errors.Is(err, errNoTime) {
		p.Hint = "wait, or write them in YAML"
	}
	return Result{Problems: []document.Problem{p}, Transient: true}
}

var errNoTime = errors.New("is not evaluated yet: the .cue files of the directory take too long together")

var errTooExpensive = fmt.Errorf("its evaluation takes more than %d seconds or %d MiB", childSeconds, childMemory>>20)

// runChild starts a child, and calls each with the result of every unit that the child evaluates. It
// returns the processor time of the child.
func runChild(ctx context.Context, units []*Unit, limits Limits, each func(Result)) (used time.Duration, err error) {
	if os.Getenv(childVariable) != "" {
		return 0, errors.New("evaluate CUE: the program does not call sandbox.ChildMain")
	}
	child := exec.CommandContext(ctx, "/proc/self/exe")
	child.Env = []string{childVariable + "=1", "CUE_REGISTRY=none", "GOMAXPROCS=1", fmt.Sprintf("GOMEMLIMIT=%d", childGoal)}
	child.WaitDelay = time.Second
	var stderr headBuffer
	child.Stderr = &stderr
	in, err := child.StdinPipe()
	if err != nil {
		return 0, fmt.Errorf("evaluate CUE: %w", err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		return 0, fmt.Errorf("evaluate CUE: %w", err)
	}
	debug.FreeOSMemory() // a container counts the garbage of this process and the memory of the child together
	if err := child.Start(); err != nil {
		return 0, fmt.Errorf("evaluate CUE: %w", err)
	}
	var sending sync.WaitGroup
	sending.Go(func() { send(in, units, limits) })
	receive(out, len(units), each)
	err = child.Wait() // also closes in
	sending.Wait()
	return child.ProcessState.UserTime() + child.ProcessState.SystemTime(), childError(ctx, err, &stderr)
}

// wireUnit is a Unit as JSON between parent and child.
type wireUnit struct {
	Origin  string
	Files   []configdir.File
	Imports int // the unit may read only the first Imports files of wireHeader.Imports
}

// wireHeader has the data that all units of a child share. In Imports, the .cue files are first.
type wireHeader struct {
	MaxValues int
	MaxText   int
	Imports   []configdir.File
}

// send writes the units. It ignores errors: Wait returns the reason why a child stopped
// reading.
func send(in io.WriteCloser, units []*Unit, limits Limits) {
	defer in.Close()
	header := wireHeader{MaxValues: limits.Values, MaxText: limits.Text}
	for _, u := range units {
		if len(u.Imports) > len(header.Imports) {
			header.Imports = u.Imports
		}
	}
	header.Imports = slices.Clone(header.Imports)
	slices.SortStableFunc(header.Imports, func(a, b configdir.File) int { return cmp.Compare(notCUE(a), notCUE(b)) })
	encoder := json.NewEncoder(in)
	err := encoder.Encode(header)
	for _, u := range units {
		if err != nil {
			return
		}
		err = encoder.Encode(wireUnit{u.Origin, u.Files, len(u.Imports)})
	}
}

func notCUE(f configdir.File) int {
	if path.Ext(f.Path) == ".cue" {
		return 0
	}
	return 1
}

// receive calls each with the results that arrive before the child ends.
func receive(out io.Reader, n int, each func(Result)) {
	decoder := json.NewDecoder(out)
	for range n {
		var w wireResult
		if decoder.Decode(&w) != nil {
			return
		}
		each(w.result())
	}
}

// childError returns why a child did not evaluate all units.
func childError(ctx context.Context, err error, stderr *headBuffer) error {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return errors.New("evaluate CUE: the child ended early")
	case ctx.Err() != nil:
		return errNoTime
	case errors.As(err, &exit) && (exit.ExitCode() == -1 || stderr.outOfMemory()):
		return errTooExpensive
	}
	return fmt.Errorf("evaluate CUE: %w", err)
}

// headBuffer keeps the first 4 KiB that a child writes to stderr.
type headBuffer struct{ bytes.Buffer }

func (b *headBuffer) Write(p []byte) (int, error) {
	if room := 4096 - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// outOfMemory reports whether the runtime of Go wrote that the limit of memory or of the
// stack was exceeded. The exit code alone does not show that.
func (b *headBuffer) outOfMemory() bool {
	return strings.Contains(b.String(), "out of memory") || strings.Contains(b.String(), "cannot allocate") || strings.Contains(b.String(), "stack")
}

// wireResult is a Result as JSON between child and parent.
type wireResult struct {
	Document  *document.Value
	Values    int
	Text      int
	Problems  []wireProblem
	Transient bool
}

// wireProblem is a problem with the elements of its path: as a text, a path cannot be split.
type wireProblem struct {
	document.Problem
	Path []string `json:"path,omitempty"`
}

func (r Result) wire() wireResult {
	w := wireResult{Document: r.Document, Values: r.Values, Text: r.Text, Transient: r.Transient}
	for _, p := range r.Problems {
		w.Problems = append(w.Problems, wireProblem{p, p.Path})
	}
	return w
}

func (w wireResult) result() Result {
	r := Result{Document: w.Document, Values: w.Values, Text: w.Text, Transient: w.Transient}
	for _, p := range w.Problems {
		p.Problem.Path = p.Path
		r.Problems = append(r.Problems, p.Problem)
	}
	if r.Document != nil {
		restoreNumbers(r.Document)
	}
	return r
}

// restoreNumbers sets the numbers in v from their text: JSON would turn integers into
// floats.
func restoreNumbers(v *document.Value) {
	if v.Kind == document.Number {
		v.Number = document.ParseNumber(json.Number(v.Text))
	}
	for _, f := range v.Fields {
		restoreNumbers(f.Value)
	}
	for _, item := range v.Items {
		restoreNumbers(item)
	}
}

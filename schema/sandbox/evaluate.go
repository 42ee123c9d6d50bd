package sandbox

import (
	"bytes"
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
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// childTimeout limits the wall-clock time of a child. On a busy machine a child needs much
// more of it than of CPU time.
const childTimeout = time.Minute

// Unit is what CUE evaluates together: the files of a folder with the same package clause,
// or one file without a package clause.
type Unit struct {
	Origin string // the package to load, ./folder:package, or the path of the file
	Files  []configdir.File
	// Imports are the files that Files may import or embed. It is empty if they import
	// and embed nothing.
	Imports []configdir.File
}

// Result is the result of evaluating a Unit.
type Result struct {
	Document *document.Value // nil if there is none
	Problems []document.Problem
	// Transient is true if another attempt may have another result, so that the caller
	// must not remember this one.
	Transient bool
}

var packageClause = regexp.MustCompile(`(?m)^[ \t]*package[ \t]+([\pL_$][\pL\pN_$]*)`)

// Units groups the .cue files of a snapshot. It leaves out the files below cue.mod: they
// declare nothing, other files import them.
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
	for _, u := range all {
		u.Imports = u.importable(files)
	}
	return all
}

func belowModule(name string) bool {
	for dir := path.Dir(name); dir != "." && dir != "/"; dir = path.Dir(dir) {
		if path.Base(dir) == "cue.mod" {
			return true
		}
	}
	return false
}

// importable returns the other files that u may read: all of them if it imports or embeds
// anything.
func (u *Unit) importable(files []configdir.File) []configdir.File {
	if !slices.ContainsFunc(u.Files, func(f configdir.File) bool {
		return bytes.Contains(f.Data, []byte("import")) || bytes.Contains(f.Data, []byte("@extern"))
	}) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(files), func(f configdir.File) bool {
		return f.Err != nil || slices.ContainsFunc(u.Files, func(own configdir.File) bool { return own.Path == f.Path })
	})
}

// Sum returns a hash of everything that the result depends on.
func (u *Unit) Sum() [sha256.Size]byte {
	b, err := json.Marshal(u)
	if err != nil {
		panic(fmt.Sprintf("sandbox: encode .cue files: %v", err))
	}
	return sha256.Sum256(b)
}

// Evaluate evaluates units and returns their results in the same order. A child that
// crashes returns no more results. If it crashed on its first unit, that unit is the
// cause. Otherwise the earlier units may be, so the rest gets a new child.
func Evaluate(ctx context.Context, units []*Unit) []Result {
	results := make([]Result, 0, len(units))
	for len(results) < len(units) {
		rest := units[len(results):]
		some, err := runChild(ctx, rest)
		results = append(results, some...)
		if len(some) == 0 {
			results = append(results, failure(rest[0], err))
		}
	}
	return results
}

// failure is the result for a unit on which a child crashed, or for which no child could
// be started.
func failure(u *Unit, err error) Result {
	p := document.Problem{Position: document.Position{File: u.Files[0].Path}, Message: err.Error()}
	if errors.Is(err, errTooExpensive) {
		p.Hint = "check for nested comprehensions, or write it in YAML"
		return Result{Problems: []document.Problem{p}}
	}
	return Result{Problems: []document.Problem{p}, Transient: true}
}

var errTooExpensive = fmt.Errorf("its evaluation takes more than %d seconds or %d MiB", childSeconds, childMemory>>20)

// runChild returns the results of as many units as one child evaluates.
func runChild(ctx context.Context, units []*Unit) ([]Result, error) {
	if os.Getenv(childVariable) != "" {
		return nil, errors.New("evaluate CUE: the program does not call sandbox.ChildMain")
	}
	ctx, cancel := context.WithTimeout(ctx, childTimeout)
	defer cancel()
	child := exec.CommandContext(ctx, "/proc/self/exe")
	child.Env = []string{childVariable + "=1", "CUE_REGISTRY=none", "GOMAXPROCS=1", fmt.Sprintf("GOMEMLIMIT=%d", childMemory*3/4)}
	child.WaitDelay = time.Second
	var stderr headBuffer
	child.Stderr = &stderr
	in, err := child.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("evaluate CUE: %w", err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("evaluate CUE: %w", err)
	}
	if err := child.Start(); err != nil {
		return nil, fmt.Errorf("evaluate CUE: %w", err)
	}
	var sending sync.WaitGroup
	sending.Go(func() { send(in, units) })
	results := receive(out, len(units))
	err = child.Wait() // also closes in
	sending.Wait()
	return results, childError(ctx, err, &stderr)
}

// send writes the units. It ignores errors: Wait returns the reason why a child stopped
// reading.
func send(in io.WriteCloser, units []*Unit) {
	defer in.Close()
	encoder := json.NewEncoder(in)
	for _, u := range units {
		if encoder.Encode(u) != nil {
			return
		}
	}
}

// receive returns the results that arrive before the child ends.
func receive(out io.Reader, n int) []Result {
	decoder := json.NewDecoder(out)
	var results []Result
	for len(results) < n {
		var w wireResult
		if decoder.Decode(&w) != nil {
			break
		}
		results = append(results, w.result())
	}
	return results
}

// childError returns why a child did not evaluate all units.
func childError(ctx context.Context, err error, stderr *headBuffer) error {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return errors.New("evaluate CUE: the child ended early")
	case context.Cause(ctx) != nil && ctx.Err() == context.DeadlineExceeded:
		return fmt.Errorf("its evaluation took more than %v", childTimeout)
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
	Problems  []wireProblem
	Transient bool
}

// wireProblem is a problem with the elements of its path: as a text, a path cannot be split.
type wireProblem struct {
	document.Problem
	Path []string `json:"path,omitempty"`
}

func (r Result) wire() wireResult {
	w := wireResult{Document: r.Document, Transient: r.Transient}
	for _, p := range r.Problems {
		w.Problems = append(w.Problems, wireProblem{p, p.Path})
	}
	return w
}

func (w wireResult) result() Result {
	r := Result{Document: w.Document, Transient: w.Transient}
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

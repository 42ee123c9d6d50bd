package sandbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/gob"
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

	"github.com/seed-26586806/backing-image-manager/internal/head"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Directory is the .cue files of a config directory.
type Directory struct {
	Units []*Unit
	Files []configdir.File  // what the units may read: the .cue files, or all files if a .cue file embeds files
	Sum   [sha256.Size]byte // of everything that the results depend on
}

// Unit is a group of files that CUE evaluates together: the files of a folder with the same package
// clause, or one file without a package clause.
type Unit struct {
	Origin string // the package to load, ./folder:package, or the path of the file
	Files  []configdir.File
}

// Result is the result of evaluating a Unit.
type Result struct {
	Document *document.Value // nil if there is none
	Values   int             // number of values in Document, names of fields included
	Text     int             // bytes of text in Document and Problems
	Problems []document.Problem
	// Transient is true if another attempt may have another result. Then the caller must
	// not remember this result.
	Transient bool
}

var packageClause = regexp.MustCompile(`(?m)^[ \t]*package[ \t]+([\pL_$][\pL\pN_$]*)`)

// NewDirectory groups the .cue files of a snapshot.
func NewDirectory(files []configdir.File) Directory {
	embeds := slices.ContainsFunc(files, func(f configdir.File) bool { return isCUE(f) && bytes.Contains(f.Data, []byte("@extern")) })
	d, h := Directory{Units: unitsOf(files)}, sha256.New()
	for _, f := range files {
		if !embeds && !isCUE(f) {
			continue
		}
		fmt.Fprintf(h, "%q %v %x\n", f.Path, f.Err, sha256.Sum256(f.Data))
		if f.Err == nil {
			d.Files = append(d.Files, f)
		}
	}
	h.Sum(d.Sum[:0])
	return d
}

// unitsOf groups .cue files. Files below cue.mod are in no unit: other files import them, and they declare nothing themselves.
func unitsOf(files []configdir.File) (units []*Unit) {
	byOrigin := map[string]*Unit{}
	for _, f := range files {
		if !isCUE(f) || slices.Contains(strings.Split(path.Dir(f.Path), "/"), "cue.mod") {
			continue
		}
		u := byOrigin[origin(f)]
		if u == nil {
			u = &Unit{Origin: origin(f)}
			byOrigin[u.Origin], units = u, append(units, u)
		}
		u.Files = append(u.Files, f)
	}
	return units
}

// origin returns the origin of the unit of a file.
func origin(f configdir.File) string {
	if m := packageClause.FindSubmatch(f.Data); m != nil && string(m[1]) != "_" {
		return "./" + path.Dir(f.Path) + ":" + string(m[1])
	}
	return f.Path
}

func isCUE(f configdir.File) bool { return path.Ext(f.Path) == ".cue" }

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

// Evaluate evaluates units in child processes. It calls each(i, result) for every unit i, in order. The units may read
// the files.
// A child that crashes returns no more results. If it crashed on its first unit, this unit is the
// cause. Otherwise an earlier unit of the child may be the cause, so Evaluate starts a new child for
// the rest. When ctx ends or the time limit is reached, each remaining unit gets a transient problem.
// Evaluate returns the processor time of all children.
func Evaluate(ctx context.Context, files []configdir.File, units []*Unit, limits Limits, each func(i int, r Result)) (used time.Duration) {
	for next := 0; next < len(units); {
		if ctx.Err() != nil || used >= limits.Time {
			each(next, failure(units[next], errNoTime))
			next++
			continue
		}
		first := next
		took, err := runChild(ctx, files, units[next:], limits, func(r Result) {
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

// failure returns the result for a unit that no child evaluated: the unit is too expensive, the time is over, or the child failed.
func failure(u *Unit, err error) Result {
	if errors.Is(err, errTooExpensive) {
		return failed(u, err.Error(), "check for nested comprehensions, or write it in YAML")
	}
	hint := ""
	if errors.Is(err, errNoTime) {
		hint = "wait, or write them in YAML"
	}
	r := failed(u, err.Error(), hint)
	r.Transient = true
	return r
}

var errNoTime = errors.New("is not evaluated yet: the .cue files of the directory take too long together")

var errTooExpensive = fmt.Errorf("its evaluation takes more than %d seconds or %d MiB", childSeconds, childMemory>>20)

// runChild starts a child. It calls each(result) for every unit that the child evaluates. It returns the processor time of
// the child, and why further units have no result.
func runChild(ctx context.Context, files []configdir.File, units []*Unit, limits Limits, each func(Result)) (used time.Duration, err error) {
	if os.Getenv(childVariable) != "" {
		return 0, errors.New("evaluate CUE: the program does not call sandbox.ChildMain")
	}
	child := exec.CommandContext(ctx, "/proc/self/exe")
	child.Env = []string{childVariable + "=1", "CUE_REGISTRY=none", "GOMAXPROCS=1", fmt.Sprintf("GOMEMLIMIT=%d", childGoal)}
	child.WaitDelay = time.Second
	var stderr head.Buffer
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
	sending.Go(func() { send(in, files, units, limits) })
	receive(out, len(units), each)
	err = child.Wait() // also closes in
	sending.Wait()
	return child.ProcessState.UserTime() + child.ProcessState.SystemTime(), childError(ctx, err, stderr.String())
}

// wireHeader is the first value that the parent sends to the child: the units to evaluate, and how many files they may
// read. The files follow.
type wireHeader struct {
	Limits  Limits
	Files   int
	Origins []string
}

// send writes the units and the files. It ignores errors: Wait returns the reason why a child stopped
// reading.
func send(in io.WriteCloser, files []configdir.File, units []*Unit, limits Limits) {
	defer in.Close()
	encoder, header := gob.NewEncoder(in), wireHeader{Limits: limits, Files: len(files)}
	for _, u := range units {
		header.Origins = append(header.Origins, u.Origin)
	}
	err := encoder.Encode(header)
	for i := 0; i < len(files) && err == nil; i++ {
		err = encoder.Encode(files[i])
	}
}

// receive calls the function each with every result that arrives before the child ends, at most n.
func receive(out io.Reader, n int, each func(Result)) {
	decoder := gob.NewDecoder(out)
	for range n {
		var r Result
		if decoder.Decode(&r) != nil {
			return
		}
		each(r)
	}
}

// childError returns why a child did not evaluate all units.
func childError(ctx context.Context, err error, stderr string) error {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return errors.New("evaluate CUE: the child ended early")
	case ctx.Err() != nil:
		return errNoTime
	case errors.As(err, &exit) && (exit.ExitCode() == -1 || outOfMemory(stderr)):
		return errTooExpensive
	}
	return fmt.Errorf("evaluate CUE: %w", err)
}

// outOfMemory reports whether the runtime of Go wrote to stderr that the limit of memory or of the
// stack was exceeded. The exit code alone does not show that.
func outOfMemory(stderr string) bool {
	return strings.Contains(stderr, "out of memory") || strings.Contains(stderr, "cannot allocate") || strings.Contains(stderr, "stack")
}

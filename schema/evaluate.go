package schema

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

// childPatience is how long a child may take by the clock: on a busy machine
// much longer than its own time.
const childPatience = time.Minute

// ask has units evaluated and returns their answers in order. A child that dies
// answers no more: when it died of its first unit, that one is to blame, and
// the rest, or a unit that may have suffered from those before, gets a new one.
func ask(ctx context.Context, units []*unit) []answer {
	answers := make([]answer, 0, len(units))
	for len(answers) < len(units) {
		rest := units[len(answers):]
		got, err := askChild(ctx, rest)
		answers = append(answers, got...)
		if len(got) == 0 {
			answers = append(answers, failed(rest[0], err))
		}
	}
	return answers
}

// failed is the answer for a unit that a child died of, or could not be asked.
func failed(u *unit, err error) answer {
	m := mistake{Position: document.Position{File: u.Files[0].Path}, Message: err.Error()}
	if errors.Is(err, errTooExpensive) {
		m.Hint = "look for comprehensions within comprehensions, or write it in YAML"
		return answer{Mistakes: []mistake{m}}
	}
	return answer{Mistakes: []mistake{m}, Passing: true}
}

var errTooExpensive = fmt.Errorf("evaluating it takes more than %d seconds or %d MiB", childSeconds, childMemory>>20)

// askChild returns the answers to as many units as one child lives for.
func askChild(ctx context.Context, units []*unit) ([]answer, error) {
	if os.Getenv(childVariable) != "" {
		return nil, errors.New("evaluate CUE: the program does not call schema.ChildMain")
	}
	ctx, cancel := context.WithTimeout(ctx, childPatience)
	defer cancel()
	child := exec.CommandContext(ctx, "/proc/self/exe")
	child.Env = []string{childVariable + "=1", "CUE_REGISTRY=none", "GOMAXPROCS=1", fmt.Sprintf("GOMEMLIMIT=%d", childMemory*3/4)}
	child.WaitDelay = time.Second
	var complaint tail
	child.Stderr = &complaint
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
	answers := receive(out, len(units))
	err = child.Wait() // it closes in, too
	sending.Wait()
	return answers, verdictOnChild(ctx, err, &complaint)
}

// send writes the units; a child that died takes no more, which Wait tells.
func send(in io.WriteCloser, units []*unit) {
	defer in.Close()
	encoder := json.NewEncoder(in)
	for _, u := range units {
		if encoder.Encode(u) != nil {
			return
		}
	}
}

// receive returns the answers that come before the child ends.
func receive(out io.Reader, n int) []answer {
	decoder := json.NewDecoder(out)
	var answers []answer
	for len(answers) < n {
		var a answer
		if decoder.Decode(&a) != nil {
			break
		}
		answers = append(answers, a)
	}
	return answers
}

// verdictOnChild says why a child did not answer to the end.
func verdictOnChild(ctx context.Context, err error, complaint *tail) error {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return errors.New("evaluate CUE: the child ended early")
	case context.Cause(ctx) != nil && ctx.Err() == context.DeadlineExceeded:
		return fmt.Errorf("evaluating it took more than %v", childPatience)
	case errors.As(err, &exit) && (exit.ExitCode() == -1 || complaint.outOfMemory()):
		return errTooExpensive
	}
	return fmt.Errorf("evaluate CUE: %w", err)
}

// tail keeps the beginning of what a child complains of.
type tail struct{ bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	if room := 4096 - t.Len(); room > 0 {
		t.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (t *tail) outOfMemory() bool {
	return strings.Contains(t.String(), "out of memory") || strings.Contains(t.String(), "cannot allocate") || strings.Contains(t.String(), "stack")
}

// answer is what the evaluation of a unit came to, as the child writes it.
type answer struct {
	Document *wireValue `json:",omitempty"`
	Mistakes []mistake  `json:",omitempty"`
	// Passing: another try may end otherwise, so the answer is not kept.
	Passing bool `json:",omitempty"`
}

// mistake is an error of CUE in the user's own files.
type mistake struct {
	Path []string
	document.Position
	Message string
	Also    document.Position
	Hint    string
}

// wireValue is a value as it passes from the child.
type wireValue struct {
	Kind   document.Kind
	Text   string      `json:",omitempty"`
	Fields []wireField `json:",omitempty"`
	Items  []wireValue `json:",omitempty"`
	document.Position
}

type wireField struct {
	Name string
	document.Position
	Value wireValue
}

func (w wireValue) value() *document.Value {
	v := &document.Value{Kind: w.Kind, Text: w.Text, Pos: w.Position}
	if w.Kind == document.Number {
		v.Number = document.ParseNumber(json.Number(w.Text))
	}
	for _, f := range w.Fields {
		v.Fields = append(v.Fields, document.Field{Name: f.Name, Pos: f.Position, Value: f.Value.value()})
	}
	for _, i := range w.Items {
		v.Items = append(v.Items, i.value())
	}
	return v
}

// content splits the answer into things, as that of any other file.
func (a answer) content(u *unit) *content {
	c := &content{origin: u.Origin}
	if a.Document != nil {
		c.document(a.Document.value())
	}
	for _, m := range a.Mistakes {
		c.mistake(m)
	}
	return c
}

// mistake puts an error of CUE to the thing that it is in, or else to the file.
func (c *content) mistake(m mistake) {
	p := document.Problem{Position: m.Position, Path: m.Path, Message: m.Message, Also: m.Also, Hint: m.Hint}
	var s int
	if len(m.Path) > 1 {
		s = slices.Index(sectionNames[:], m.Path[0])
	}
	if len(m.Path) < 2 || s < 0 {
		c.problems = append(c.problems, p)
		return
	}
	k := key{section(s), m.Path[1]}
	for _, t := range c.things {
		if t.key == k {
			t.problems = append(t.problems, p)
			return
		}
	}
	c.ours = true
	c.things = append(c.things, &thing{key: k, origin: c.origin, pos: m.Position, value: &document.Value{},
		verdict: &verdict{}, problems: []document.Problem{p}})
}

// unquote turns the labels of a CUE path into names.
func unquote(labels []string) []string {
	names := make([]string, 0, len(labels))
	for _, l := range labels {
		names = append(names, strings.Trim(l, `"`))
	}
	return names
}

// unit is what CUE evaluates at once: the files of a folder with one package
// clause, or one file without.
type unit struct {
	Origin string // what to load: ./folder:package, or a file
	Files  []configdir.File
	// Others are what the files may import or embed; nothing where they do not.
	Others []configdir.File
}

var packageClause = regexp.MustCompile(`(?m)^[ \t]*package[ \t]+([\pL_$][\pL\pN_$]*)`)

// units groups the .cue files of a snapshot. Those below cue.mod say nothing by
// themselves: they are there to be imported.
func units(files []configdir.File) []*unit {
	byOrigin := map[string]*unit{}
	var all []*unit
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
			u = &unit{Origin: origin}
			byOrigin[origin], all = u, append(all, u)
		}
		u.Files = append(u.Files, f)
	}
	for _, u := range all {
		u.Others = u.reach(files)
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

// reach returns the files that u may read besides its own: all of them where it
// imports or embeds anything.
func (u *unit) reach(files []configdir.File) []configdir.File {
	if !slices.ContainsFunc(u.Files, func(f configdir.File) bool {
		return bytes.Contains(f.Data, []byte("import")) || bytes.Contains(f.Data, []byte("@extern"))
	}) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(files), func(f configdir.File) bool {
		return f.Err != nil || slices.ContainsFunc(u.Files, func(own configdir.File) bool { return own.Path == f.Path })
	})
}

func (u *unit) key() contentKey {
	b, err := json.Marshal(u)
	if err != nil {
		panic(fmt.Sprintf("schema: encode .cue files: %v", err))
	}
	return contentKey{u.Origin, sha256.Sum256(b)}
}

// unreadable returns what stands against evaluating u at all.
func (u *unit) unreadable() *content {
	c := &content{origin: u.Origin}
	for _, f := range u.Files {
		c.readable(f)
	}
	if len(c.problems) == 0 {
		return nil
	}
	return c
}

// readCUE evaluates the units that are not as they were the last time.
func (l *Loader) readCUE(ctx context.Context, files []configdir.File, kept map[contentKey]*content) []*content {
	var contents []*content
	var asked []*unit
	for _, u := range units(files) {
		if c := u.unreadable(); c != nil {
			contents = append(contents, c)
		} else if c := l.contents[u.key()]; c != nil {
			contents, kept[u.key()] = append(contents, c), c
		} else {
			asked = append(asked, u)
		}
	}
	for i, a := range ask(ctx, asked) {
		c := a.content(asked[i])
		contents = append(contents, c)
		if !a.Passing {
			kept[asked[i].key()] = c
		}
	}
	return contents
}

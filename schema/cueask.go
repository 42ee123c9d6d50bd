package schema

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
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
	m := mistake{Position: Position{File: u.Files[0].Path}, Message: err.Error()}
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

package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/seed-26586806/backing-image-manager/reconcile"
)

// progress shows people how work goes: as bars below the messages on a terminal,
// as log lines elsewhere. Never both: on a terminal the messages pass through it,
// so that they do not tear the bars.
type progress struct {
	w   io.Writer
	tty *os.File // nil: log lines

	mu    sync.Mutex
	bars  int // lines that the bars take now, above which the cursor has to go
	meter meter
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w}
	if f, ok := terminal(w); ok && os.Getenv("TERM") != "dumb" {
		p.tty = f
	}
	return p
}

// logger is where messages go as long as the work lasts.
func (p *progress) logger() *slog.Logger {
	if p.tty == nil {
		return slog.New(redacted(slog.NewTextHandler(p.w, nil)))
	}
	return slog.New(redacted(briefHandler{w: p}))
}

// Write prints a message above the bars.
func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.erase(); err != nil {
		return 0, err
	}
	return p.w.Write(b)
}

// erase takes the bars away; the next drawing brings them back.
func (p *progress) erase() error {
	if p.bars == 0 {
		return nil
	}
	_, err := fmt.Fprintf(p.w, "\x1b[%dA\x1b[J", p.bars)
	p.bars = 0
	return err
}

// follow draws what transfers returns until stop is called, which leaves nothing
// of the bars.
func (p *progress) follow(transfers func() map[reconcile.Key]reconcile.Transfer) (stop func()) {
	if p.tty == nil {
		return func() {}
	}
	done := make(chan struct{})
	var drawing sync.WaitGroup
	drawing.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				p.draw(nil)
				return
			case now := <-tick.C:
				p.draw(p.meter.lines(now, transfers(), p.width()))
			}
		}
	})
	return func() { close(done); drawing.Wait() }
}

// show draws what is waited for, in place of what was drawn before; nil is nothing.
func (p *progress) show(what error) {
	switch {
	case p.tty == nil:
	case what == nil:
		p.draw(nil)
	default:
		lines := strings.Split(what.Error(), "\n")
		if more := len(lines) - maxBars; more > 0 {
			lines = append(lines[:maxBars], fmt.Sprintf("and %d more", more))
		}
		for i, line := range lines {
			lines[i] = oneLine(line)
		}
		p.draw(cut(lines, p.width()))
	}
}

func (p *progress) width() int {
	width, _, err := term.GetSize(int(p.tty.Fd()))
	if err != nil || width <= 0 {
		return 80
	}
	return width
}

// draw writes all lines at once, so that nothing flickers. That a terminal has
// gone is no reason to stop working.
func (p *progress) draw(lines []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bars == 0 && len(lines) == 0 {
		return
	}
	var b strings.Builder
	if p.bars > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", p.bars)
	}
	for _, line := range lines {
		fmt.Fprintf(&b, "%s\x1b[K\n", line)
	}
	b.WriteString("\x1b[J")
	_, _ = io.WriteString(p.w, b.String())
	p.bars = len(lines)
}

package main

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"golang.org/x/term"
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
			lines[i] = report.OneLine(line)
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

// meter turns what transfers have done into lines with a rate.
type meter struct {
	seen map[reconcile.Key][]sample
}

// sample is how far a transfer was at a time. A transfer that resumes begins with
// what is there already, so its rate follows from samples and not from its start.
type sample struct {
	at   time.Time
	done int64
}

const (
	rateOver = 5 * time.Second // what the rate is averaged over
	maxBars  = 16
)

// barWidths are tried in turn until the lines fit the terminal.
var barWidths = []int{30, 20, 10, 6, 0}

// lines shows the transfers, sorted by image and disk, in no more than width
// columns. Those that nothing is known of, such as deletions, have no line.
func (m *meter) lines(now time.Time, under map[reconcile.Key]reconcile.Transfer, width int) []string {
	keys := slices.SortedFunc(maps.Keys(under), func(a, b reconcile.Key) int {
		return strings.Compare(a.ID.String()+a.Disk.String(), b.ID.String()+b.Disk.String())
	})
	keys = slices.DeleteFunc(keys, func(key reconcile.Key) bool {
		kind := under[key].Action.Kind
		return kind == reconcile.Cleanup || kind == reconcile.Evict
	})
	seen := map[reconcile.Key][]sample{}
	for _, key := range keys {
		seen[key] = remember(m.seen[key], sample{now, under[key].Progress.Done.Load()})
	}
	m.seen = seen
	var lines []string
	for _, w := range barWidths {
		var rows [][]string
		for _, key := range keys[:min(len(keys), maxBars)] {
			rows = append(rows, bar(under[key], rate(seen[key]), w))
		}
		lines = report.Align(rows)
		if !slices.ContainsFunc(lines, func(l string) bool { return utf8.RuneCountInString(l) >= width }) {
			return lines
		}
	}
	return cut(lines, width)
}

// cut shortens lines to less than width columns, so that none takes two.
func cut(lines []string, width int) []string {
	for i, line := range lines {
		r := []rune(line)
		lines[i] = string(r[:min(len(r), max(0, width-1))])
	}
	return lines
}

// remember appends a sample and drops those that are too old.
func remember(samples []sample, s sample) []sample {
	for len(samples) > 1 && s.at.Sub(samples[0].at) > rateOver {
		samples = samples[1:]
	}
	return append(slices.Clip(samples), s)
}

// rate is in bytes per second.
func rate(samples []sample) float64 {
	first, last := samples[0], samples[len(samples)-1]
	elapsed := last.at.Sub(first.at).Seconds()
	if elapsed <= 0 {
		return 0
	}
	return float64(last.done-first.done) / elapsed
}

func bar(t reconcile.Transfer, rate float64, width int) []string {
	done, total := t.Progress.Done.Load(), t.Progress.Total.Load()
	row := []string{string(t.Action.Kind), t.Action.Image, t.Action.Disk}
	if total <= 0 {
		return append(row, report.Size(done), rateText(rate))
	}
	if width > 0 {
		full := int(min(1, float64(done)/float64(total)) * float64(width))
		row = append(row, "["+strings.Repeat("=", full)+strings.Repeat(" ", width-full)+"]")
	}
	return append(row,
		fmt.Sprintf("%3d%%", min(100, done*100/total)),
		report.Size(done)+" / "+report.Size(total),
		rateText(rate), restText(total-done, rate))
}

func rateText(rate float64) string {
	if rate <= 0 {
		return ""
	}
	return report.Size(int64(rate)) + "/s"
}

// restText is how long the rest will take at the rate.
func restText(rest int64, rate float64) string {
	const tooLong = 100 * time.Hour
	if rest <= 0 || rate <= 0 || float64(rest)/rate > tooLong.Seconds() {
		return ""
	}
	seconds := time.Duration(float64(rest)/rate*float64(time.Second)) + time.Second/2
	return seconds.Truncate(time.Second).String() + " left"
}

// terminal returns the file behind w if it is a terminal.
func terminal(w io.Writer) (*os.File, bool) {
	f, ok := w.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

// colourful reports whether colours may be written to w.
func colourful(w io.Writer) bool {
	_, tty := terminal(w)
	return tty && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

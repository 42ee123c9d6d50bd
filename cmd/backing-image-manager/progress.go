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

	"golang.org/x/term"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
)

// terminal returns the file behind w if it is a terminal.
func terminal(w io.Writer) (*os.File, bool) {
	f, ok := w.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

// hasColour reports whether w accepts colours.
func hasColour(w io.Writer) bool {
	_, tty := terminal(w)
	return tty && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// progress shows running transfers: as bars on a terminal, as log lines elsewhere. On a
// terminal all messages have to pass through it, because it moves the cursor.
type progress struct {
	w   io.Writer
	tty *os.File // nil means log lines

	mu    sync.Mutex
	bars  int // number of lines with bars above the cursor
	meter rateMeter
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w}
	if f, ok := terminal(w); ok && os.Getenv("TERM") != "dumb" {
		p.tty = f
	}
	return p
}

// logger returns the logger for messages during the transfers. On a terminal, the bars show what succeeds.
func (p *progress) logger() *slog.Logger {
	options := *redacted
	if p.tty != nil {
		options.Level = slog.LevelWarn
	}
	return slog.New(slog.NewTextHandler(p, &options))
}

// Write writes a message above the bars.
func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replace(nil) // the next draw writes the bars again
	return p.w.Write(b)
}

// watch draws the bars of running transfers several times a second. The function stop ends this
// and removes the bars.
func (p *progress) watch(transfers func() map[ident.CopyRef]job.Transfer) (stop func()) {
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

// singleTransfer returns the argument of watch for one transfer outside a reconciler.
func singleTransfer(kind model.Op, id ident.ID, place string, p *fetch.Progress) func() map[ident.CopyRef]job.Transfer {
	t := job.Transfer{
		Action:   plan.Action{Op: kind, Image: id.Name, UUID: id.UUID, Disk: place},
		Progress: p,
	}
	return func() map[ident.CopyRef]job.Transfer {
		return map[ident.CopyRef]job.Transfer{t.Action.CopyRef(): t}
	}
}

// showPending draws the lines of an error that says what a command waits for, in place of the
// lines of its last call. nil removes the lines.
func (p *progress) showPending(pending error) {
	switch {
	case p.tty == nil:
	case pending == nil:
		p.draw(nil)
	default:
		lines := errorLines(pending)
		if more := len(lines) - maxBars; more > 0 {
			lines = append(lines[:maxBars], fmt.Sprintf("and %d more", more))
		}
		p.draw(truncate(lines, p.width()))
	}
}

func (p *progress) width() int {
	width, _, err := term.GetSize(int(p.tty.Fd()))
	if err != nil || width <= 0 {
		return 80
	}
	return width
}

func (p *progress) draw(lines []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replace(lines)
}

// replace replaces the bars; the caller holds the mutex. It writes all lines at once, so that the terminal does not
// flicker. An error is ignored: the work continues without its terminal.
func (p *progress) replace(lines []string) {
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

// rateMeter turns the progress of transfers into lines with a rate.
type rateMeter struct {
	samples map[ident.CopyRef][]sample
}

// sample is the progress of a transfer at one time. A rate uses only samples since the transfer
// resumed: bytes from before were not transferred now.
type sample struct {
	at            time.Time
	resumed, done int64
}

const (
	rateWindow = 5 * time.Second // the rate is the average over this time
	maxBars    = 16
)

// barWidths are tried in this order until the lines fit the terminal.
var barWidths = []int{30, 20, 10, 6, 0}

// lines returns a line for each transfer, sorted by image and disk, with fewer than width
// columns. Deletions have no line, because they have no progress.
func (m *rateMeter) lines(now time.Time, transfers map[ident.CopyRef]job.Transfer, width int) []string {
	keys := slices.SortedFunc(maps.Keys(transfers), func(a, b ident.CopyRef) int {
		return strings.Compare(a.ID.String()+a.Disk.String(), b.ID.String()+b.Disk.String())
	})
	keys = slices.DeleteFunc(keys, func(key ident.CopyRef) bool {
		kind := transfers[key].Action.Op
		return kind == model.Cleanup || kind == model.Evict
	})
	samples := map[ident.CopyRef][]sample{} // without the samples of transfers that ended
	for _, key := range keys {
		p := transfers[key].Progress
		samples[key] = addSample(m.samples[key], sample{now, p.Resumed.Load(), p.Done.Load()})
	}
	m.samples = samples
	var lines []string
	for _, w := range barWidths {
		var rows [][]string
		for _, key := range keys[:min(len(keys), maxBars)] {
			rows = append(rows, bar(transfers[key], bytesPerSecond(samples[key]), w))
		}
		lines = report.Align(rows)
		if !slices.ContainsFunc(lines, func(l string) bool { return utf8.RuneCountInString(l) >= width }) {
			return lines
		}
	}
	return truncate(lines, width)
}

// truncate shortens lines to fewer than width columns, so that no line wraps.
func truncate(lines []string, width int) []string {
	for i, line := range lines {
		r := []rune(line)
		lines[i] = string(r[:min(len(r), max(0, width-1))])
	}
	return lines
}

// addSample appends a sample. It drops the samples from before the window, or from before the transfer resumed.
func addSample(samples []sample, s sample) []sample {
	if len(samples) > 0 && samples[0].resumed != s.resumed {
		samples = nil
	}
	for len(samples) > 1 && s.at.Sub(samples[0].at) > rateWindow {
		samples = samples[1:]
	}
	return append(slices.Clip(samples), s)
}

// bytesPerSecond returns the rate in the window.
func bytesPerSecond(samples []sample) float64 {
	first, last := samples[0], samples[len(samples)-1]
	elapsed := last.at.Sub(first.at).Seconds()
	if elapsed <= 0 {
		return 0
	}
	return float64(last.done-first.done) / elapsed
}

// bar returns the cells of a line, with a bar of width columns.
func bar(t job.Transfer, rate float64, width int) []string {
	done, total := t.Progress.Done.Load(), t.Progress.Total.Load()
	row := []string{string(t.Action.Op), t.Action.Image, t.Action.Disk}
	var speed []string
	if rate > 0 {
		speed = append(speed, report.Size(int64(rate))+"/s")
	}
	if total <= 0 {
		return append(append(row, report.Size(done)), speed...)
	}
	if left, ok := timeLeft(total-done, rate); ok {
		speed = append(speed, left.String()+" left")
	}
	if width > 0 {
		full := int(min(1, float64(done)/float64(total)) * float64(width))
		row = append(row, "["+strings.Repeat("=", full)+strings.Repeat(" ", width-full)+"]")
	}
	row = append(row, fmt.Sprintf("%3d%%", min(100, done*100/total)), report.Size(done)+" / "+report.Size(total))
	return append(row, speed...)
}

// timeLeft returns the time that the remaining bytes take at the rate, in whole seconds. ok is
// false if the rate is too low for an estimate.
func timeLeft(remaining int64, rate float64) (left time.Duration, ok bool) {
	const maxLeft = 100 * time.Hour
	if remaining <= 0 || rate <= 0 || float64(remaining)/rate > maxLeft.Seconds() {
		return 0, false
	}
	seconds := time.Duration(float64(remaining)/rate*float64(time.Second)) + time.Second/2
	return seconds.Truncate(time.Second), true
}

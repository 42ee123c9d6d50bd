package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed-26586806/backing-image-manager/reconcile"
)

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
		lines = align(rows)
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
		return append(row, size(done), rateText(rate))
	}
	if width > 0 {
		full := int(min(1, float64(done)/float64(total)) * float64(width))
		row = append(row, "["+strings.Repeat("=", full)+strings.Repeat(" ", width-full)+"]")
	}
	return append(row,
		fmt.Sprintf("%3d%%", min(100, done*100/total)),
		size(done)+" / "+size(total),
		rateText(rate), restText(total-done, rate))
}

func rateText(rate float64) string {
	if rate <= 0 {
		return ""
	}
	return size(int64(rate)) + "/s"
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

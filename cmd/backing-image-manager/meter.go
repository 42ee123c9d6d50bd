package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

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
	barWidth = 24
)

// lines shows the transfers, sorted by image and disk, in no more than width
// columns. Those that nothing is known of, such as deletions, have no line.
func (m *meter) lines(now time.Time, under map[reconcile.Key]reconcile.Transfer, width int) []string {
	seen := map[reconcile.Key][]sample{}
	var rows [][]string
	keys := slices.SortedFunc(maps.Keys(under), func(a, b reconcile.Key) int {
		return strings.Compare(a.ID.String()+a.Disk.String(), b.ID.String()+b.Disk.String())
	})
	for _, key := range keys {
		t := under[key]
		if t.Progress == nil || t.Action.Kind == reconcile.Cleanup || t.Action.Kind == reconcile.Evict {
			continue
		}
		seen[key] = remember(m.seen[key], sample{now, t.Progress.Done.Load()})
		if len(rows) < maxBars {
			rows = append(rows, bar(t, rate(seen[key])))
		}
	}
	m.seen = seen
	lines := align(rows)
	for i, line := range lines {
		if r := []rune(line); len(r) >= width {
			lines[i] = string(r[:width-1])
		}
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

func bar(t reconcile.Transfer, rate float64) []string {
	done, total := t.Progress.Done.Load(), t.Progress.Total.Load()
	row := []string{string(t.Action.Kind), t.Action.Image, t.Action.Disk}
	if total <= 0 {
		return append(row, size(done), rateText(rate))
	}
	full := int(min(1, float64(done)/float64(total)) * barWidth)
	return append(row,
		"["+strings.Repeat("=", full)+strings.Repeat(" ", barWidth-full)+"]",
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

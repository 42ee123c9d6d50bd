package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

func TestBarsShowRateAndRemainingTime(t *testing.T) {
	running := map[ident.CopyRef]job.Transfer{}
	transfer := func(kind model.Op, image string, done, total int64) *fetch.Progress {
		p := &fetch.Progress{}
		p.Done.Store(done)
		p.Total.Store(total)
		a := plan.Action{Op: kind, Image: image, UUID: "6846a0b2", Node: "node1", Disk: "disk1", Bytes: total}
		running[a.CopyRef()] = job.Transfer{Action: a, Progress: p}
		return p
	}
	parrot := transfer(model.Download, "parrot", 512<<20, 1<<30) // resumed after half
	desert := transfer(model.Sync, "desert", 0, -1)
	transfer(model.Cleanup, "old", 0, 1<<30)

	var m rateMeter
	start := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	m.lines(start, running, 100)
	parrot.Done.Add(128 << 20)
	desert.Done.Add(1 << 20)
	for _, c := range []struct {
		width int
		want  string
	}{
		{120, `
sync      desert  disk1  1.0 MiB                           512 KiB/s
download  parrot  disk1  [==================            ]   62%       640 MiB / 1.0 GiB  64 MiB/s  6s left
`},
		{80, `
sync      desert  disk1  1.0 MiB  512 KiB/s
download  parrot  disk1   62%     640 MiB / 1.0 GiB  64 MiB/s  6s left
`},
		{20, `
sync      desert  d
download  parrot  d
`},
	} {
		got := m.lines(start.Add(2*time.Second), running, c.width)
		if text := "\n" + strings.Join(got, "\n") + "\n"; text != c.want {
			t.Errorf("in %d columns the lines are %s\nwant %s", c.width, text, c.want)
		}
	}
	if got := m.lines(start.Add(3*time.Second), nil, 80); len(got) != 0 {
		t.Errorf("after the end the lines are %q", got)
	}
}

// The bytes that exist when a transfer resumes become known after its first bar was drawn.
func TestRateOmitsResumedBytes(t *testing.T) {
	a := plan.Action{Op: model.Download, Image: "parrot", UUID: "6846a0b2", Node: "node1", Disk: "disk1"}
	p := &fetch.Progress{}
	p.Total.Store(1 << 30)
	running := map[ident.CopyRef]job.Transfer{a.CopyRef(): {Action: a, Progress: p}}

	var m rateMeter
	start := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	m.lines(start, running, 120)
	p.Resume(512 << 20)
	p.Done.Add(1 << 20)
	want := []string{
		"download  parrot  disk1  [===============               ]   50%  513 MiB / 1.0 GiB",
		"download  parrot  disk1  [===============               ]   51%  529 MiB / 1.0 GiB  16 MiB/s  31s left",
	}
	for i, want := range want {
		if got := m.lines(start.Add(time.Duration(i+1)*time.Second), running, 120); !slices.Equal(got, []string{want}) {
			t.Errorf("%d s after the start the line is %q, want %q", i+1, got, want)
		}
		p.Done.Add(16 << 20)
	}
}

func TestMessagesEraseTheBars(t *testing.T) {
	var screen bytes.Buffer
	p := &progress{w: &screen}
	p.draw([]string{"bar 1", "bar 2"})
	screen.Reset()
	fmt.Fprintln(p, "message")
	if got, want := screen.String(), "\x1b[2A\x1b[Jmessage\n"; got != want {
		t.Errorf("a message is written as %q, want %q", got, want)
	}
	screen.Reset()
	p.draw([]string{"bar 1"})
	if got, want := screen.String(), "bar 1\x1b[K\n\x1b[J"; got != want {
		t.Errorf("the bars are drawn again as %q, want %q", got, want)
	}
	screen.Reset()
	p.draw(nil)
	if got, want := screen.String(), "\x1b[1A\x1b[J"; got != want {
		t.Errorf("the bars are removed by %q, want %q", got, want)
	}
}

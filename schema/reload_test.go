package schema

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/race"
)

// A Loader that kept what it judged for one state of a file would grow by
// kilobytes with each.
func TestReloadsKeepNoMemory(t *testing.T) {
	if race.Enabled {
		t.Skip("the detector keeps memory itself: CI runs this without it too")
	}
	l := NewLoader()
	const reloads = 1000
	var before int64
	for i := range 50 + reloads {
		if i == 50 {
			before = heap()
		}
		text := "settings: {cleanupWaitInterval: 5}\nimages:\n"
		for n := range 5 {
			text += fmt.Sprintf("  image-%d: {source: {download: {url: \"https://example.com/%d\"}}, minNumberOfCopies: %d}\n", n, i, 1+n)
		}
		mustBeValid(t, l.Load(t.Context(), Snapshot{Files: []File{{Path: "a.yaml", Data: []byte(text)}}}))
	}
	grown := heap() - before
	runtime.KeepAlive(l)
	if grown > int64(reloads)<<10 {
		t.Errorf("%d reloads keep %d KiB", reloads, grown>>10)
	}
}

func TestInterruptedLoadAllowsNothingAndForgetsNothing(t *testing.T) {
	l := NewLoader()
	images := manyImages(3)
	mustBeValid(t, l.Load(t.Context(), oneFile(images[:1])))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := l.Load(ctx, oneFile(images))
	if r.May != ObserveOnly || len(r.Errors) != 1 || r.Digest != "" {
		t.Errorf("interrupted: %s", describe(r))
	}
	r = l.Load(t.Context(), oneFile(images))
	mustBeValid(t, r)
	if len(r.Config.Images) != 3 {
		t.Errorf("after the interruption: %s", describe(r))
	}
}

package backoff

import (
	"math"
	"testing"
	"time"
)

func TestDoubling(t *testing.T) {
	d := Doubling{time.Second, 5 * time.Second}
	for failures, want := range map[int]time.Duration{-1: time.Second, 0: time.Second, 1: 2 * time.Second, 2: 4 * time.Second, 3: 5 * time.Second, math.MaxInt: 5 * time.Second} {
		if got := d.After(failures); got != want {
			t.Errorf("after %d failures: %v, want %v", failures, got, want)
		}
	}
	if got := (Doubling{}).After(math.MaxInt); got != 0 {
		t.Errorf("no delay doubles to %v", got)
	}
	if got := (Doubling{time.Minute, time.Second}).After(0); got != time.Second {
		t.Errorf("the first delay is %v, more than the limit", got)
	}
}

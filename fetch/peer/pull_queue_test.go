package peer

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A source whose sends hang is busy for ever.
func TestPullWaitsNotForEverForABusySource(t *testing.T) {
	m := numberedManifest(t, 60)
	for name, origin := range map[string]*link{"alone": nil, "with an origin": {rate: 100 * mbit}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := simulate(m, map[string]*link{"node1": {}})
				s.open = func(context.Context, Source, int64, int64) (io.ReadCloser, error) {
					return nil, &BusyError{After: time.Second}
				}
				if origin != nil {
					s.origin.open = origin.send
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*longestQueue)
				defer cancel()
				took, err := s.run(ctx)
				if origin != nil {
					if err != nil || s.progress.Moved.Load() != m.Size() {
						t.Errorf("after %v: %v", took, err)
					}
				} else if err == nil || !strings.Contains(err.Error(), "node1/disk1: it sends to others already") {
					t.Errorf("after %v: %v", took, err)
				}
				if took < longestQueue || took > longestQueue+2*time.Minute {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

func TestPullOfSingleChunksWaitsNotForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, get := singly(func(int, int64, int64) (io.ReadCloser, error) { return nil, &BusyError{After: time.Second} })
		ctx, cancel := context.WithTimeout(t.Context(), 2*longestQueue)
		defer cancel()
		if err := get(ctx, 1); err == nil || !strings.Contains(err.Error(), "it sends to others already") {
			t.Error(err)
		}
	})
}

package fetch

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// slowReader returns n bytes per read after a delay. It ends when done is closed.
type slowReader struct {
	done  <-chan struct{}
	n     int
	every time.Duration
	left  int
}

func (r *slowReader) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, io.EOF
	}
	select {
	case <-time.After(r.every):
	case <-r.done:
		return 0, context.Canceled
	}
	n := min(r.n, r.left, len(p))
	r.left -= n
	return n, nil
}

// TestStallReader runs with synthetic time.
func TestStallReader(t *testing.T) {
	tests := []struct {
		name      string
		n         int           // bytes per read
		every     time.Duration // delay of each read
		disk      time.Duration // delay between reads
		stalls    bool
		noticedBy time.Duration
	}{
		{"fast", 64 << 10, time.Millisecond, 0, false, 0},
		{"just fast enough", 1100, time.Second, 0, false, 0},
		{"too slow", 900, time.Second, 0, true, 31 * time.Second},
		{"single bytes", 1, 100 * time.Millisecond, 0, true, 31 * time.Second},
		{"large pieces, rarely", 29 << 10, 29 * time.Second, 0, false, 0},
		{"nothing", 1, time.Hour, 0, true, 30 * time.Second},
		{"slow disk", 1, time.Millisecond, 20 * time.Second, false, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				w := &stallReader{
					Reader: &slowReader{ctx.Done(), tt.n, tt.every, 400 * tt.n}, window: defaultTiming.stall, cancel: cancel,
				}
				began := time.Now()
				var err error
				for buf := make([]byte, 1<<20); err == nil; time.Sleep(tt.disk) {
					_, err = w.Read(buf)
				}
				if took := time.Since(began); tt.stalls && took > tt.noticedBy {
					t.Errorf("the stall was detected after %v, want %v", took, tt.noticedBy)
				}
				stalled := errors.As(err, new(*stallError)) || errors.As(context.Cause(ctx), new(*stallError))
				if stalled != tt.stalls || !stalled && err != io.EOF {
					t.Errorf("got %v, cause %v, want a stall: %v", err, context.Cause(ctx), tt.stalls)
				}
			})
		})
	}
}

// TestRateLimitIsNoStall checks that a limit below minRate does not cause a stall.
func TestRateLimitIsNoStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		const size, limit = 100 << 10, 512
		w := &stallReader{Reader: &slowReader{ctx.Done(), 1 << 10, 0, size}, window: defaultTiming.stall, cancel: cancel}
		began := time.Now()
		n, err := io.Copy(io.Discard, RateLimitReader(ctx, w, NewLimiter(limit)))
		if n != size || err != nil {
			t.Errorf("got %d bytes, %v, want all %d", n, err, size)
		}
		if took := time.Since(began).Seconds(); took < size/limit*0.9 || took > size/limit*1.1 {
			t.Errorf("%d bytes took %.0f s at %d bytes per second", size, took, limit)
		}
	})
}

package fetch

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

func TestBackoff(t *testing.T) {
	tests := []struct {
		class   Class
		attempt int
		rnd     float64
		want    time.Duration
		final   bool
	}{
		{Network, 0, 0, 60 * time.Second, false},
		{Network, 1, 0, 120 * time.Second, false},
		{Network, 2, 0, 240 * time.Second, false},
		{Network, 3, 0, 300 * time.Second, false},
		{Network, 1000, 0, 300 * time.Second, false},
		{Network, -1, 0, 60 * time.Second, false},
		{Network, 0, 0.5, 54 * time.Second, false},
		{Dropped, 0, 0, 60 * time.Second, false},
		{Refused, 0, 0, 300 * time.Second, false},
		{Refused, 9, 0, 300 * time.Second, false},
		{NoSpace, 5, 0, 60 * time.Second, false},
		{BadSource, 0, 0, 0, true},
		{BadConfig, 0, 0, 0, true},
	}
	for _, tt := range tests {
		if got, final := Backoff(tt.class, tt.attempt, tt.rnd); got != tt.want || final != tt.final {
			t.Errorf("Backoff(%v, %d, %v) = %v, %v, want %v, %v", tt.class, tt.attempt, tt.rnd, got, final, tt.want, tt.final)
		}
	}
	requested := &Error{Class: Network, RetryAfter: 10 * time.Minute}
	if got, _ := requested.Backoff(0, 0); got != 10*time.Minute {
		t.Errorf("got %v, want the delay that the server requested", got)
	}
	requested.RetryAfter = 1000 * time.Hour
	if got, _ := requested.Backoff(0, 0); got != time.Hour {
		t.Errorf("got %v, want an hour at most", got)
	}
	requested.RetryAfter = time.Second
	if got, _ := requested.Backoff(0, 0); got != time.Minute {
		t.Errorf("got %v, want the delay of the class (one minute)", got)
	}
}

func TestParseRetryAfter(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": 0, "120": 2 * time.Minute, "-5": 0, "soon": 0,
		"Fri, 20 Nov 2026 10:01:30 GMT": 90 * time.Second, "Fri, 20 Nov 2026 09:00:00 GMT": 0,
	} {
		h := http.Header{"Retry-After": {value}, "Date": {"Fri, 20 Nov 2026 10:00:00 GMT"}}
		if got := retryAfter(h); got != want {
			t.Errorf("Retry-After %q: got %v, want %v", value, got, want)
		}
	}
}

func TestClassifyDiskError(t *testing.T) {
	tests := []struct {
		err  error
		want Class // 0: no class
	}{
		{fmt.Errorf("begin: %w", disk.ErrNoSpace), NoSpace},
		{fmt.Errorf("read: %w", &disk.FormatError{Reason: "x"}), BadSource},
		{fmt.Errorf("commit: %w", &disk.ChecksumError{}), BadSource},
		{disk.ErrTooLarge, BadSource},
		{fmt.Errorf("read image: %w", &Error{Class: Dropped, Err: errors.New("x")}), Dropped},
		{errors.New("input/output error"), 0},
		{nil, 0},
	}
	for _, tt := range tests {
		var e *Error
		if errors.As(ClassifyDiskError(tt.err), &e) != (tt.want != 0) || e != nil && e.Class != tt.want {
			t.Errorf("ClassifyDiskError(%v) = %v, want class %v", tt.err, ClassifyDiskError(tt.err), tt.want)
		}
	}
}

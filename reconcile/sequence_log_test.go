package reconcile

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// took is a configuration that was taken.
type took struct {
	at     time.Time
	digest string
	errors int64
}

// takenLog notes what a loop says that it has taken: no view is missed that way.
type takenLog struct {
	mu    sync.Mutex
	taken []took
}

func (l *takenLog) Enabled(context.Context, slog.Level) bool { return true }

func (l *takenLog) WithAttrs([]slog.Attr) slog.Handler { return l }

func (l *takenLog) WithGroup(string) slog.Handler { return l }

func (l *takenLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "configuration taken" {
		return nil
	}
	t := took{at: r.Time}
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "digest":
			t.digest = a.Value.String()
		case "errors":
			t.errors = a.Value.Int64()
		}
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken = append(l.taken, t)
	return nil
}

func (l *takenLog) all() []took {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.taken)
}

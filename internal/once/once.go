// Package once logs a condition when it begins and when it ends, and not each time that it is observed.
package once

import (
	"log/slog"
	"slices"
	"sync"
)

// Condition is something that holds for a while, with the messages about it.
type Condition struct {
	Begins, Ends string // messages
	Of           string // the log attribute that says what has the condition, such as "disk"; "": no attribute
	Why          string // the attribute with the reason, such as "error"
	EachReason   bool   // a change of the reason is logged like a beginning
}

// Log logs conditions. It may be used concurrently.
type Log struct {
	log *slog.Logger

	mu   sync.Mutex
	held map[key]string // the logged reason
}

type key struct {
	condition Condition
	of        string
}

// New returns a Log that writes to log. No condition holds.
func New(log *slog.Logger) *Log { return &Log{log: log, held: map[key]string{}} }

// Set notes whether the thing that the argument of names has a condition. why is the reason; "" means that it does not have
// the condition. more has further log attributes of the beginning.
func (l *Log) Set(c Condition, of, why string, more ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	logged, held := l.held[key{c, of}]
	var attrs []any
	if c.Of != "" {
		attrs = []any{c.Of, of}
	}
	switch {
	case why != "" && (!held || c.EachReason && logged != why):
		l.held[key{c, of}] = why
		l.log.Warn(c.Begins, slices.Concat(attrs, []any{c.Why, why}, more)...)
	case why == "" && held:
		delete(l.held, key{c, of})
		l.log.Info(c.Ends, attrs...)
	}
}

// SetError is Set with the text of err; nil: the condition does not hold.
func (l *Log) SetError(c Condition, of string, err error, more ...any) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	l.Set(c, of, why, more...)
}

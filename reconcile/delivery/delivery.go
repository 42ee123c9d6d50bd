// Package delivery sends messages to a server of the operator (Sender), remembers their outcome (Outcome), and sends the status document
// of this node to the server of settings.report (Reporter). Package notification sends messages to the server of settings.notify.
package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/internal/once"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Outcome is the outcome of the messages that this node sends to one server. It may be used concurrently.
type Outcome struct {
	random  func() float64
	log     *once.Log
	refused once.Condition

	mu       sync.Mutex
	state    status.Delivery
	attempts int // failed attempts since the last success
	counts   Counts
}

// NewOutcome returns an Outcome. what describes its messages in the log. random spreads the attempts of several nodes.
func NewOutcome(what string, log *slog.Logger, random func() float64) *Outcome {
	refused := once.Condition{Begins: what + " not accepted", Ends: what + " accepted again", Of: "server", Why: "error", EachReason: true}
	return &Outcome{random: random, log: once.New(log), refused: refused}
}

// Counts are totals since the start of the process.
type Counts struct{ Accepted, Failed int64 }

// maxProblem limits the text about a failed attempt. It may contain words from the server.
const maxProblem = 300

// To sets the server that gets the messages from now on; "": there is none.
func (d *Outcome) To(server string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state, d.attempts = status.Delivery{Server: server}, 0
}

// Done records the outcome of an attempt, and returns how long to wait after a failed one. It logs a problem when it begins,
// when its text changes and when it ends.
func (d *Outcome) Done(err error) (wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now().Round(0).UTC()
	if err == nil {
		d.log.Set(d.refused, d.state.Server, "")
		d.state, d.attempts = status.Delivery{Server: d.state.Server, LastSuccess: now}, 0
		d.counts.Accepted++
		return 0
	}
	wait = backoffAfter(err, d.attempts, d.random())
	problem := []rune(text.Line(err.Error()))
	if len(problem) > maxProblem {
		problem = append(problem[:maxProblem], '…')
	}
	d.log.Set(d.refused, d.state.Server, string(problem), "next", wait.Round(time.Second).String())
	if d.state.Problem == "" {
		d.state.ProblemSince = now
	}
	d.state.Problem = string(problem)
	d.attempts++
	d.counts.Failed++
	return wait
}

// backoffAfter returns the delay after a failed attempt. Attempts never stop, unlike those of a download: the
// server or the credentials may be corrected.
func backoffAfter(err error, attempts int, rnd float64) time.Duration {
	failure := &fetch.Error{Class: fetch.Network}
	if e, ok := errors.AsType[*fetch.Error](err); ok {
		failure = e
	}
	wait, final := failure.Backoff(attempts, rnd)
	if final {
		wait, _ = fetch.Backoff(fetch.Refused, attempts, rnd)
	}
	return wait
}

// Status returns the outcome for the status document; nil: there is no server.
func (d *Outcome) Status() *status.Delivery {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state.Server == "" {
		return nil
	}
	state := d.state
	return &state
}

// Counts returns the totals.
func (d *Outcome) Counts() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}

// Sender sends a message with the settings of a round. The whole attempt may take the timeout; a stall ends it sooner.
type Sender func(ctx context.Context, timeout time.Duration, s schema.Settings, m fetch.Message) error

// NewSender returns a Sender that uses client.
func NewSender(client fetch.Client) Sender {
	return func(ctx context.Context, timeout time.Duration, s schema.Settings, m fetch.Message) error {
		client := client // a copy, because the setting may change
		client.AllowLoopback = s.AllowLoopbackSources
		ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the request did not end within %v", timeout))
		defer cancel()
		return client.Send(ctx, m)
	}
}

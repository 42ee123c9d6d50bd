package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/notification"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// reporter puts the status document of this node at the address in settings.report. It works beside the rounds, so that no
// server delays them, and keeps nothing for later: each attempt sends the document of its own time.
type reporter struct {
	loop   *Loop
	node   string
	send   notification.Sender
	state  *notification.Delivery
	now    func() Instant
	random func() float64
	viewed chan struct{} // buffer of one: a round has ended

	// For the goroutine of run.
	target schema.Report // zero: none
	sum    [sha256.Size]byte
	sent   time.Time // when the server accepted the document with that sum, by the steady clock; zero: it did not
}

const (
	// reportGap is the least time between two documents, and between two looks for a change.
	reportGap = time.Minute
	// maxReportAge is when a document is sent again although only its times and the free space have changed.
	maxReportAge = time.Hour
)

func newReporter(l *Loop, o LoopOptions) *reporter {
	s := l.reconciler.system
	return &reporter{
		loop: l, node: o.Node, send: notification.NewSender(o.Client), viewed: make(chan struct{}, 1),
		state: notification.NewDelivery("status document", o.Log, s.Random), now: s.Now, random: s.Random,
	}
}

// run reports until ctx ends.
func (r *reporter) run(ctx context.Context) {
	due := time.NewTimer(reportGap)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-due.C:
			if v := r.loop.View(); v != nil {
				r.retarget(v)
			}
		case <-r.viewed:
			if !r.retarget(r.loop.View()) {
				continue
			}
		}
		due.Reset(r.report(ctx, r.loop.View()))
	}
}

// retarget adopts the setting of a view, and reports whether it has changed.
func (r *reporter) retarget(v *status.View) (changed bool) {
	var target schema.Report
	if declared := v.Desired.Config.Settings.Report; v.Loaded && declared != nil {
		target = *declared
	}
	if target == r.target {
		return false
	}
	r.target, r.sent = target, time.Time{}
	server := ""
	if target != (schema.Report{}) {
		server = target.Server()
	}
	r.state.To(server)
	return true
}

// report sends the document of a view if it is due, and returns how long to wait.
func (r *reporter) report(ctx context.Context, v *status.View) (wait time.Duration) {
	if r.target == (schema.Report{}) {
		return reportGap
	}
	s := v.Status(r.loop.Transfers())
	sum, now := s.ContentSum(), r.now().Steady
	// Nodes that started at the same time do not report at the same time for ever.
	gap := reportGap + time.Duration(r.random()*float64(reportGap)/6)
	if !r.sent.IsZero() && sum == r.sum && now.Sub(r.sent) < maxReportAge {
		return gap
	}
	err := r.put(ctx, v.Desired.Config.Settings, s)
	if ctx.Err() != nil {
		return gap
	}
	if err == nil {
		r.sum, r.sent = sum, now
	}
	return max(gap, r.state.Done(err))
}

func (r *reporter) put(ctx context.Context, settings schema.Settings, s status.Status) error {
	document, err := json.Marshal(s)
	if err != nil {
		panic("reconcile: encode a status: " + err.Error()) // its types have no values that JSON lacks
	}
	document = append(text.PrintableJSON(document), '\n')
	if len(document) > status.MaxSavedFile {
		return errors.New("the document has more than " + humanize.IBytes(status.MaxSavedFile) + ", which no command reads")
	}
	return r.send(ctx, settings, fetch.Message{
		URL: r.target.URLOf(r.node), Credentials: r.target.Credentials,
		Method: http.MethodPut, ContentType: "application/json", Body: document,
	})
}

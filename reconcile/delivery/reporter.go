package delivery

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Rounds gives a Reporter the rounds and the running jobs of a node. The functions may be called concurrently.
type Rounds struct {
	View      func() *status.View    // the last round; nil before the first one
	NextRound func() <-chan struct{} // closed when View returns a later round; call it before View
	Transfers func() map[ident.CopyRef]job.Transfer
}

// Reporter puts the status document of this node at the address in settings.report. It works beside the rounds, so that no
// server delays them. It keeps no document for later: each attempt sends the current one.
type Reporter struct {
	Outcome *Outcome

	rounds Rounds
	node   string
	send   Sender
	random func() float64

	// For the goroutine of Run.
	target schema.Report // zero: none
	sum    [sha256.Size]byte
	sent   time.Time // when the server accepted the document with the sum; zero: it accepted none
}

const (
	// reportGap is the least time between two documents, and between two looks for a change.
	reportGap = time.Minute
	// maxReportAge is after what time a document is sent again, although only its times and the free space have changed.
	maxReportAge = time.Hour
	// reportTimeout is how long a document may take.
	reportTimeout = 5 * time.Minute
)

// NewReporter returns a Reporter for the rounds of a node.
func NewReporter(rounds Rounds, node string, send Sender, log *slog.Logger) *Reporter {
	return &Reporter{rounds: rounds, node: node, send: send, random: rand.Float64, Outcome: NewOutcome("status document", log, rand.Float64)}
}

// Run reports until ctx ends.
func (r *Reporter) Run(ctx context.Context) {
	due := time.After(reportGap)
	for {
		next, v := r.rounds.NextRound(), r.rounds.View()
		if v != nil && r.retarget(v) {
			due = time.After(0)
		}
		select {
		case <-ctx.Done():
			return
		case <-next:
		case <-due:
			due = time.After(r.report(ctx, v))
		}
	}
}

// retarget adopts the setting of a view, and reports whether it has changed.
func (r *Reporter) retarget(v *status.View) (changed bool) {
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
	r.Outcome.To(server)
	return true
}

// report sends the document of a view if it is due, and returns how long to wait.
func (r *Reporter) report(ctx context.Context, v *status.View) (wait time.Duration) {
	if r.target == (schema.Report{}) {
		return reportGap
	}
	s := v.Status(r.rounds.Transfers())
	sum, now := s.ContentSum(), time.Now()
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
	return max(gap, r.Outcome.Done(err))
}

func (r *Reporter) put(ctx context.Context, settings schema.Settings, s status.Status) error {
	document, err := json.Marshal(s)
	if err != nil {
		panic("delivery: encode a status: " + err.Error()) // its types have no values that JSON lacks
	}
	document = append(text.PrintableJSON(document), '\n')
	if len(document) > status.MaxSavedFile {
		return errors.New("the document is larger than " + humanize.IBytes(status.MaxSavedFile) + ", the limit of the commands that read it")
	}
	return r.send(ctx, reportTimeout, settings, fetch.Message{
		URL: r.target.URLOf(r.node), Credentials: r.target.Credentials,
		Method: http.MethodPut, ContentType: "application/json", Body: document,
	})
}

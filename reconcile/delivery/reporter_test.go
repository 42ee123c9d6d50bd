package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/clusterview"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// reporting is a reporter in a bubble of package synctest, with a server that answers with fail.
type reporting struct {
	*Reporter
	last  atomic.Pointer[status.View]
	next  atomic.Pointer[chan struct{}]
	log   bytes.Buffer
	fail  error
	hang  bool // until the context ends
	times []time.Duration
	sent  []fetch.Message
	began time.Time
}

func startReporting(t *testing.T, ctx context.Context) *reporting {
	p := &reporting{began: time.Now()}
	log := slog.New(slog.NewTextHandler(&p.log, nil))
	next := make(chan struct{})
	p.next.Store(&next)
	none := func() map[ident.CopyRef]job.Transfer { return nil }
	rounds := Rounds{View: p.last.Load, NextRound: func() <-chan struct{} { return *p.next.Load() }, Transfers: none}
	p.Reporter = NewReporter(rounds, "node01", nil, log)
	p.random = func() float64 { return 0 }
	p.Outcome = NewOutcome("status document", log, p.random)
	p.send = func(ctx context.Context, _ time.Duration, _ schema.Settings, m fetch.Message) error {
		p.times, p.sent = append(p.times, time.Since(p.began)), append(p.sent, m)
		if p.hang {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return p.fail
	}
	go p.Run(ctx)
	return p
}

// view ends a round with this view, and waits until the reporter waits.
func (p *reporting) view(v status.View, change ...func(*status.View)) {
	next := v
	next.Loaded = true
	for _, f := range change {
		f(&next)
	}
	p.last.Store(&next)
	after := make(chan struct{})
	close(*p.next.Swap(&after))
	synctest.Wait()
}

// wantTimes asserts when documents were sent, and forgets them.
func (p *reporting) wantTimes(t *testing.T, want ...time.Duration) {
	t.Helper()
	synctest.Wait()
	if !reflect.DeepEqual(p.times, want) {
		t.Errorf("documents were sent after %v, want %v", p.times, want)
	}
	p.times = nil
}

func reportTo(url string) func(*status.View) {
	return func(v *status.View) {
		v.Desired.Config.Settings.Report = &schema.Report{URL: url, Credentials: "reports"}
	}
}

// later is a round in which only the time and the free space have changed. Some nodes still do not respond.
func later(v *status.View) {
	v.Observed.Now = v.Observed.Now.Add(time.Second)
	disks := map[ident.DiskRef]model.Disk{}
	for ref, d := range v.Observed.Disks {
		d.Space.Free -= 4096
		disks[ref] = d
	}
	v.Observed.Disks = disks
}

// failed is a round with a failed copy.
func failed(v *status.View) {
	for id := range v.Observed.Disks[ident.DiskRef{Node: "node01", Disk: "disk1"}].Copies {
		v.Observed.Failures = map[ident.CopyRef]model.Failure{{Disk: ident.DiskRef{Node: "node01", Disk: "disk1"}, ID: id}: {Attempts: 1, Message: "broken"}}
	}
}

func TestReportsWhatChangedAtMostOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		p, v := startReporting(t, ctx), clusterview.ThreeNodes()
		v.Observed.Peers["node03"] = model.Peer{Queried: true, Problem: "no route", UnreachableSince: v.Observed.Now.Add(-time.Minute)}
		node1 := reportTo("https://status.example.com/{node}.json?key=secret")
		p.view(v) // without the setting
		time.Sleep(10 * time.Minute)
		p.wantTimes(t)
		p.view(v, node1)
		p.wantTimes(t, 10*time.Minute) // the setting is new
		m := p.sent[0]
		if m.URL != "https://status.example.com/node01.json?key=secret" || m.Credentials != "reports" || m.Method != http.MethodPut || m.ContentType != "application/json" {
			t.Errorf("the message is %+v", m)
		}
		if d := p.Outcome.Status(); d.Server != "https://status.example.com" || d.LastSuccess.IsZero() || d.Problem != "" {
			t.Errorf("the status is %+v", d)
		}
		p.view(v, node1, later)
		time.Sleep(30 * time.Minute)
		p.wantTimes(t)
		p.view(v, node1, failed)
		time.Sleep(5 * time.Second)
		p.wantTimes(t)
		time.Sleep(time.Minute)
		p.wantTimes(t, 41*time.Minute)
		time.Sleep(3 * time.Hour)
		p.wantTimes(t, 101*time.Minute, 161*time.Minute, 221*time.Minute) // nothing changed: once an hour
		p.view(v, reportTo("https://other.example.com/{node}.json"), failed)
		time.Sleep(61*time.Minute + time.Second)
		if len(p.times) != 2 || p.sent[len(p.sent)-1].URL != "https://other.example.com/node01.json" {
			t.Errorf("the new server got documents after %v", p.times)
		}
		p.times = nil
		p.view(v)
		time.Sleep(3 * time.Hour)
		p.wantTimes(t)
		if p.Outcome.Status() != nil || p.Outcome.Counts() != (Counts{Accepted: 7}) {
			t.Errorf("the status is %+v, the counts are %+v", p.Outcome.Status(), p.Outcome.Counts())
		}
	})
}

func TestReportIsRetriedWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		p, v := startReporting(t, ctx), clusterview.ThreeNodes()
		p.fail = &fetch.Error{Class: fetch.Network, Err: errors.New("the server responds with 503\x1b[31m " + strings.Repeat("x", 1000))}
		set := reportTo("s3://reports@eu-west-1/{node}.json")
		p.view(v, set)
		time.Sleep(8 * time.Minute)
		p.wantTimes(t, 0, time.Minute, 3*time.Minute, 7*time.Minute)
		d := p.Outcome.Status()
		if d.Server != "s3://reports" || d.ProblemSince != p.began.UTC() || strings.Contains(d.Problem, "\x1b") || len([]rune(d.Problem)) != 300+1 {
			t.Errorf("the status is %+v", d)
		}
		time.Sleep(7 * time.Minute) // 15m
		p.wantTimes(t, 12*time.Minute)
		if n := strings.Count(p.log.String(), "not accepted"); n != 1 {
			t.Errorf("the log has the problem %d times:\n%s", n, p.log.String())
		}
		p.fail = &fetch.Error{Class: fetch.BadConfig, Err: errors.New("the folder does not exist")} // a person may correct it
		time.Sleep(8 * time.Minute)                                                                 // 23m
		p.wantTimes(t, 17*time.Minute, 22*time.Minute)
		if n := strings.Count(p.log.String(), "not accepted"); n != 2 {
			t.Errorf("the log has %d problems:\n%s", n, p.log.String())
		}
		p.fail = nil
		time.Sleep(10 * time.Minute)
		p.wantTimes(t, 27*time.Minute)
		if d := p.Outcome.Status(); d.Problem != "" || !d.ProblemSince.IsZero() || p.Outcome.Counts() != (Counts{Accepted: 1, Failed: 7}) {
			t.Errorf("the status is %+v, the counts are %+v", d, p.Outcome.Counts())
		}
		if !strings.Contains(p.log.String(), "accepted again") {
			t.Errorf("the log does not have the end of the problem:\n%s", p.log.String())
		}
	})
}

// A server that never responds ends neither the rounds nor the process.
func TestReportToADeadServerEndsWithTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		p, v := startReporting(t, ctx), clusterview.ThreeNodes()
		p.hang = true
		for range 3 { // rounds go on
			p.view(v, reportTo("https://status.example.com/{node}.json"), later)
		}
		stop()
		synctest.Wait() // the bubble fails if run does not end
		if p.Outcome.Counts() != (Counts{}) {
			t.Errorf("the end of the process counts as a failure: %+v", p.Outcome.Counts())
		}
	})
}

// The reported document is one that --state reads.
func TestReportIsASavedStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		p, v := startReporting(t, ctx), clusterview.ThreeNodes()
		p.view(v, reportTo("https://status.example.com/{node}.json"))
		file := filepath.Join(t.TempDir(), "node01.json")
		if err := os.WriteFile(file, p.sent[0].Body, 0o600); err != nil {
			t.Fatal(err)
		}
		var saved status.SavedCluster
		if err := saved.AddFile(file); err != nil {
			t.Fatal(err)
		}
		var got, want any
		if err := json.Unmarshal(p.sent[0].Body, &got); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(v.Status(nil))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) || !saved.Knows(v.Desired.Node) {
			t.Errorf("the document is\n%s\nwant\n%s", p.sent[0].Body, text)
		}
	})
}

package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// ended is a Reconciler in which an action has just ended so.
func ended(a Action, err error) *Reconciler {
	r := New(fetch.Client{}, slog.New(slog.DiscardHandler), true)
	end(r, a, err)
	return r
}

func end(r *Reconciler, a Action, err error) {
	r.running[a.Key()] = &running{job: job{action: a, image: named(a.Image)}, stop: func() {}}
	r.transfers.add(a.Key(), Transfer{Action: a, Progress: &fetch.Progress{}})
	r.Finish(outcome{key: a.Key(), err: err})
}

// The clock on the wall was a year ahead when something failed. What is set back then is not
// put off for a year.
func TestBackOffIsOfTheSteadyClock(t *testing.T) {
	_, image, refs := duo(1)
	a := newAction(Download, Key{refs[0], image.ID}, "", 0)
	right := time.Now().AddDate(-1, 0, 0).UTC()
	recalled := a
	recalled.recall = recall{digest: digestOf(disk.SHA512, "a"), until: time.Now().Add(5 * time.Minute).UTC()}
	for what, r := range map[string]*Reconciler{
		"a failure": ended(a, context.DeadlineExceeded),
		"a recall":  ended(recalled, &disk.ChecksumError{}),
	} {
		kept := r.tries[a.Key()].Try
		if kept.Until == kept.Until.Round(0) || kept.Since == kept.Since.Round(0) {
			t.Errorf("%s: it is kept by the wall clock: %+v", what, kept)
		}
		seen := kept.seen(time.Now(), right)
		if wait := seen.Until.Sub(right); wait > 6*time.Minute || wait < 0 {
			t.Errorf("%s: the next attempt is in %v", what, wait)
		}
		if since := right.Sub(seen.Since); since < 0 || since > time.Minute {
			t.Errorf("%s: it failed %v ago", what, since)
		}
	}
}

// A server that is busy may ask to come back later, but not at once for ever, and not in a
// year.
func TestServersAskWithinReason(t *testing.T) {
	a := Action{Kind: Download}
	for asked, want := range map[time.Duration]time.Duration{
		time.Second:          5 * time.Minute,
		10 * time.Minute:     10 * time.Minute,
		365 * 24 * time.Hour: time.Hour,
	} {
		var last Try
		for range 9 {
			last = last.Next(a, &fetch.Error{Class: fetch.Network, RetryAfter: asked, Err: errors.New("503")}, goldenNow, 0)
		}
		if got := last.Until.Sub(goldenNow); got != want {
			t.Errorf("asked to wait %v: after 9 attempts it waits %v, want %v", asked, got, want)
		}
	}
}

// A copy in use was to be repaired while only its origin could be reached, which has other
// bytes by now. Then a node comes back that has the right ones.
func TestRepairIsTriedAgain(t *testing.T) {
	c, image, refs := duo(2)
	o := bare(c)
	o.Disks[refs[0]].Copies[image.ID] = readyCopy(image, image.Checksum)
	failed := failedCopy(image, image.Checksum)
	failed.Using = "a volume uses it"
	o.Disks[refs[1]].Copies[image.ID] = failed
	a := newAction(Repair, Key{refs[1], image.ID}, "", 0)
	o.Tries[a.Key()] = Try{}.next(a, &fetch.Error{Class: fetch.Source, Err: errOther}, goldenNow)
	o.Now = o.Now.Add(time.Hour)
	d, o := of(refs[1].Node, c, o)
	anybodyActs(t, d.Plan(o))
}

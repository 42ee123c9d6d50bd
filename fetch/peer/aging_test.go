package peer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// A failure that goes on under the same ETag does not grow older for who watches.
func TestTryAgesBehind304(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		h := v.add(t.Context(), "b")
		begun := time.Now()
		state := func() State {
			return State{Node: "b", Config: "d", Disks: []Disk{{Name: "disk1", UUID: "u", Copies: []Copy{{
				Name: "parrot", UUID: "0000000a", State: disk.Pending,
				Try: &Try{Action: "download", Message: "no", Attempts: 3, Link: true, Since: -time.Since(begun).Seconds() - 180, Again: 240},
			}}}}}
		}
		h.board.Publish(state())
		w := NewWatch(v.client)
		defer w.Close()
		w.Follow(t.Context(), map[string]string{"b": "http://b:1"})
		for range 360 { // six hours of rounds, each minute
			time.Sleep(time.Minute)
			h.board.Publish(state())
		}
		a := w.Answers()["b"]
		try := a.State.Disks[0].Copies[0].Try
		since := a.Told.Add(time.Duration(try.Since * float64(time.Second))) // as reconcile reads it
		t.Logf("it has failed since %v; the watcher, at its last answer %v ago, believes %v", time.Since(begun)+180*time.Second, time.Since(a.Last), time.Since(since))
		if time.Since(since) < 6*time.Hour {
			t.Error("who watches believes that the failure is young for ever")
		}
	})
}

package peer

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

func TestClientReceivesThePublishedState(t *testing.T) {
	n := startNode(t, "node1")
	want := stateWith("node1", 20)
	at := time.Unix(1_700_000_000, 0).UTC()
	changeCopy(want, imageID(3), func(c *model.Copy) {
		c.Failure = &model.Failure{Op: model.Sync, Message: "no route", Attempts: 2, Since: at, RetryAt: at.Add(time.Minute), Fault: model.FaultNetwork}
	})
	n.cache.Publish(want)
	got, etag, err := newClient(t).State(t.Context(), n.address(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) || etag == "" {
		t.Errorf("got %+v with ETag %q\nwant %+v", got, etag, want)
	}
}

func TestStateIsUnavailableBeforePublish(t *testing.T) {
	n := startNode(t, "node1")
	_, _, err := newClient(t).State(t.Context(), n.address(), "", 0)
	if err == nil || !strings.Contains(err.Error(), "not read yet") {
		t.Errorf("got %v", err)
	}
}

func TestClientRejectsStateOfAnotherNode(t *testing.T) {
	n := startNode(t, "node1")
	n.cache.Publish(stateWith("node1", 1))
	c, at := newClient(t), Address{Node: "node2", URL: n.URL}
	want := n.URL + " is node node1, not node2: correct the address of node2"
	if _, _, err := c.State(t.Context(), at, "", 0); err == nil || err.Error() != want {
		t.Errorf("state: got %v, want %s", err, want)
	}
	if _, err := c.Copies(t.Context(), at, "parrot", ""); err == nil || err.Error() != want {
		t.Errorf("copies: got %v, want %s", err, want)
	}
}

// TestLongPollEndsAfterTheWait: the timeouts of the http.Server are shorter than the wait, so the
// handler must extend them.
func TestLongPollEndsAfterTheWait(t *testing.T) {
	t.Parallel()
	n := startNode(t, "node1")
	n.cache.Publish(stateWith("node1", 1))
	c := newClient(t)
	_, etag, err := c.State(t.Context(), n.address(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	wait := n.Config.ReadTimeout + n.Config.WriteTimeout
	start := time.Now()
	_, again, err := c.State(t.Context(), n.address(), etag, wait)
	if !errors.Is(err, ErrUnchanged) || again != etag || time.Since(start) < wait {
		t.Errorf("got %v with ETag %q after %v, want %v after %v", err, again, time.Since(start), ErrUnchanged, wait)
	}
}

func TestLongPollEndsWhenTheStateChanges(t *testing.T) {
	n := startNode(t, "node1")
	s := stateWith("node1", 1)
	n.cache.Publish(s)
	c := newClient(t)
	_, etag, err := c.State(t.Context(), n.address(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	var got model.Node
	go func() {
		var err error
		got, _, err = c.State(t.Context(), n.address(), etag, time.Minute)
		done <- err
	}()
	for n.server.longPolls.Load() == 0 {
		_ = fetch.Sleep(t.Context(), time.Millisecond)
	}
	s = clone(s)
	d := s.Disks["disk1"]
	d.Free = 17 // volatile, so it must not end the long poll
	s.Disks["disk1"] = d
	n.cache.Publish(s)
	s.ConfigDigest = "decade"
	start := time.Now()
	n.cache.Publish(s)
	if err := <-done; err != nil || got.ConfigDigest != "decade" || got.Disks["disk1"].Free != 17 {
		t.Errorf("got %v, %+v", err, got)
	}
	if took := time.Since(start); took >= time.Minute { // the long poll ends then
		t.Errorf("the response came after %v", took)
	}
}

func TestCopiesObservesTheDiskAfterTheRequest(t *testing.T) {
	n := startNode(t, "node1")
	id := ident.ID{Name: "parrot", UUID: "0a1b2c3d"}
	c := newClient(t)
	if s, err := c.Copies(t.Context(), n.address(), "parrot", ""); err != nil || len(s.Disks["disk1"].Copies) != 0 {
		t.Fatalf("got %+v, %v", s, err)
	}
	n.put(t, id, randomBytes(1<<20))
	s, err := c.Copies(t.Context(), n.address(), "parrot", "")
	if err != nil || len(s.Disks["disk1"].Copies) != 1 || s.Disks["disk1"].Copies[id].State != model.Ready {
		t.Errorf("got %+v, %v", s, err)
	}
}

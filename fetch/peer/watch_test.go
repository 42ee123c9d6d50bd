package peer

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestWatchKnowsAChangeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		h := v.add(t.Context(), "node1")
		s := State{Node: "node1", Config: "one"}
		h.board.Publish(s)
		w := v.watch(t, "node1")
		<-w.Changed()
		if a := w.Answers()["node1"]; !a.Asked || a.Problem != "" || a.State.Config != "one" {
			t.Fatalf("got %+v", a)
		}
		time.Sleep(10 * time.Second)
		published := time.Now()
		s.Config = "two"
		h.board.Publish(s)
		<-w.Changed()
		a := w.Answers()["node1"]
		if took := time.Since(published); took != 0 || a.State.Config != "two" {
			t.Errorf("got %+v after %v", a, took)
		}
		if !a.Last.Before(published) || a.Since.Before(published) {
			t.Errorf("published at %v: last %v, since %v", published, a.Last, a.Since)
		}
	})
}

func TestWatchIsNearlySilentWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		h := v.add(t.Context(), "node1")
		h.board.Publish(State{Node: "node1"})
		w := v.watch(t, "node1")
		<-w.Changed()
		time.Sleep(10 * time.Minute)
		if asked := h.asked.Load(); asked > 22 {
			t.Errorf("%d questions in 10 minutes", asked)
		}
		if pokes(w) != 0 {
			t.Error("it says that something changed")
		}
		if a := w.Answers()["node1"]; time.Since(a.Last) > 61*time.Second || time.Since(a.Since) > 31*time.Second {
			t.Errorf("last %v ago, since %v ago", time.Since(a.Last), time.Since(a.Since))
		}
		if v.dials != 1 {
			t.Errorf("%d connections", v.dials)
		}
	})
}

func TestWatchTakesManyChangesAsFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		h := v.add(t.Context(), "node1")
		w := v.watch(t, "node1")
		for i := range 2000 {
			h.board.Publish(State{Node: "node1", Config: fmt.Sprint(i)})
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		if asked := h.asked.Load(); asked > 23 {
			t.Errorf("%d questions in 2 seconds", asked)
		}
		if a := w.Answers()["node1"]; a.State.Config != "1999" {
			t.Errorf("got %+v", a)
		}
	})
}

func TestWatchAsksASilentNodeLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		begun := time.Now()
		w := v.watch(t, "node1")
		<-w.Changed()
		time.Sleep(time.Minute)
		if pokes(w) != 0 {
			t.Error("the same problem is taken for another one")
		}
		if v.dials < 12 || v.dials > 22 {
			t.Errorf("asked %d times in a minute", v.dials)
		}
		a := w.Answers()["node1"]
		if !a.Asked || a.Problem != "ask http://node1:8000: dial: connection refused" || !a.Last.IsZero() || !a.Since.Equal(begun) {
			t.Errorf("followed at %v, got %+v", begun, a)
		}
		v.add(t.Context(), "node1").board.Publish(State{Node: "node1"})
		came := time.Now()
		<-w.Changed()
		if a := w.Answers()["node1"]; a.Problem != "" || time.Since(came) > 7*time.Second {
			t.Errorf("after %v got %+v", time.Since(came), a)
		}
	})
}

// A node that comes back with the state it had is asked without a wait, so that it is
// not silent for the length of a long poll.
func TestWatchKnowsANodeThatIsBackUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		h := v.add(t.Context(), "node1")
		h.board.Publish(State{Node: "node1", Config: "one"})
		w := v.watch(t, "node1")
		<-w.Changed()
		time.Sleep(20 * time.Second) // a question is open, and the node is not silent
		broke := time.Now()
		h.down.Store(true)
		h.server.Close()
		<-w.Changed()
		a := w.Answers()["node1"]
		if a.Problem == "" || a.State.Config != "one" || !a.Since.Equal(broke) {
			t.Fatalf("broke at %v, got %+v", broke, a)
		}
		for range 3 { // whatever else the problem was, it settles
			time.Sleep(10 * time.Second)
			pokes(w)
		}
		v.add(t.Context(), "node1").board.Publish(State{Node: "node1", Config: "one"})
		came := time.Now()
		<-w.Changed()
		if a := w.Answers()["node1"]; a.Problem != "" || time.Since(came) > 7*time.Second {
			t.Errorf("after %v got %+v", time.Since(came), a)
		}
	})
}

func TestWatchFollowsOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		for _, name := range []string{"node1", "node2"} {
			v.add(t.Context(), name).board.Publish(State{Node: name})
		}
		w := v.watch(t, "node1")
		synctest.Wait()
		pokes(w)
		w.Follow(t.Context(), map[string]string{"node2": "http://node2:8000", "node3": ""})
		if pokes(w) != 1 {
			t.Error("nothing changed")
		}
		answers := w.Answers()
		if len(answers) != 2 || answers["node2"].State.Node != "node2" {
			t.Errorf("got %+v", answers)
		}
		if a := answers["node3"]; !a.Asked || a.Problem != "no address is declared for it" {
			t.Errorf("got %+v", a)
		}
		asked := v.nodes["node1"].asked.Load()
		time.Sleep(10 * time.Minute)
		if again := v.nodes["node1"].asked.Load(); again != asked {
			t.Errorf("a node that is not followed any more was asked %d times", again-asked)
		}
	})
}

func TestWatchAsksAnewAtAnotherAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		v.add(t.Context(), "node1").board.Publish(State{Node: "node1"})
		v.add(t.Context(), "node2").board.Publish(State{Node: "node2"})
		w := v.watch(t, "node1")
		synctest.Wait()
		w.Follow(t.Context(), map[string]string{"node1": "http://node2:8000"})
		synctest.Wait()
		a := w.Answers()["node1"]
		if !strings.HasSuffix(a.Problem, "answers as node node2, not node1") || !a.Last.IsZero() {
			t.Errorf("got %+v", a)
		}
	})
}

func TestWatchEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		v.add(t.Context(), "node1").board.Publish(State{Node: "node1"})
		ctx, cancel := context.WithCancel(t.Context())
		w := NewWatch(v.client)
		w.Follow(ctx, map[string]string{"node1": "http://node1:8000", "node2": "http://node2:8000"})
		synctest.Wait()
		cancel()
		w.running.Wait() // a deadlock unless they end
		w.Close()
		w.Follow(t.Context(), map[string]string{"node1": "http://node1:8000"})
		w.running.Wait()
	})
}

func TestServerThatShutsDownEndsTheWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		ctx, cancel := context.WithCancel(t.Context())
		h := v.add(ctx, "node1")
		h.board.Publish(State{Node: "node1"})
		w := v.watch(t, "node1")
		<-w.Changed()
		time.Sleep(time.Second)
		begun := time.Now()
		h.down.Store(true)
		cancel()
		if err := h.server.Shutdown(t.Context()); err != nil || time.Since(begun) > time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		synctest.Wait()
		if a := w.Answers()["node1"]; !strings.HasSuffix(a.Problem, "this node shuts down") {
			t.Errorf("got %+v", a)
		}
	})
}

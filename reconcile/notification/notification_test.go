package notification

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/clusterview"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

var start = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func TestObserve(t *testing.T) {
	ready := func(name string) status.ImageStatus {
		return status.ImageStatus{Name: name, UUID: "0000000a", Declared: true, Desired: 1, Ready: 1}
	}
	with := func(change func(*status.ImageStatus)) func(*status.Status) {
		return func(s *status.Status) { change(&s.Images[0]) }
	}
	over := &plan.Suspension{Reason: "tests", Over: true}
	for _, tt := range []struct {
		name   string
		change func(*status.Status)
		want   string
	}{
		{"ready", func(*status.Status) {}, "[]"},
		{"not ready", with(func(i *status.ImageStatus) { i.Ready = 0 }), "[parrot not-ready]"},
		{"a named disk lacks it", with(func(i *status.ImageStatus) { i.NamedWithout = []string{"n2/d1"} }), "[parrot not-ready]"},
		{"not declared", with(func(i *status.ImageStatus) { i.Ready, i.Declared = 0, false }), "[]"},
		{"blocked as a whole", with(func(i *status.ImageStatus) { i.Code = plan.CodeNoMatchingDisk }), "[parrot blocked]"},
		{"waits", with(func(i *status.ImageStatus) { i.Code = plan.CodeFirstCopy }), "[]"},
		{"blocked on another node", with(func(i *status.ImageStatus) {
			i.Copies = []status.CopyStatus{{Node: "n2", State: model.Ready, Copy: model.Copy{Reason: model.Reason{Code: plan.CodeConflict}}}}
		}), "[parrot blocked]"},
		{"fails here", with(func(i *status.ImageStatus) {
			i.Copies = []status.CopyStatus{{Node: "n1", State: model.InProgress, Copy: model.Copy{Failure: &model.Failure{Attempts: 2}}}}
		}), "[parrot failed]"},
		{"failed before another disk got the copy", with(func(i *status.ImageStatus) {
			for _, node := range []string{"n1", "n2"} {
				i.Copies = append(i.Copies, status.CopyStatus{Node: node, State: model.Pending, Code: plan.CodeCleanupInterval,
					Copy: model.Copy{Failure: &model.Failure{Attempts: 2}, Reason: model.Reason{Code: plan.CodeCleanupInterval}}})
			}
		}), "[]"},
		{"a failed backup of a ready copy", with(func(i *status.ImageStatus) {
			i.Copies = []status.CopyStatus{{Node: "n1", State: model.Ready, Copy: model.Copy{Failure: &model.Failure{Attempts: 2}}}}
		}), "[]"},
		{"damaged", with(func(i *status.ImageStatus) {
			i.Copies = []status.CopyStatus{{Node: "n2", State: model.Failed, Observed: &status.Observed{State: model.Failed}}}
		}), "[parrot damaged]"},
		{"repaired a moment ago", with(func(i *status.ImageStatus) {
			i.Copies = []status.CopyStatus{{Node: "n2", State: model.Ready, Copy: model.Copy{DamagedAt: start.Add(-DamageShown + time.Second)}}}
		}), "[parrot damaged]"},
		{"repaired long ago", with(func(i *status.ImageStatus) {
			i.Copies = []status.CopyStatus{{Node: "n2", State: model.Ready, Copy: model.Copy{DamagedAt: start.Add(-DamageShown)}}}
		}), "[]"},
		{"prune limit", func(s *status.Status) {
			s.Images = append(s.Images, status.ImageStatus{Name: "old", Copies: []status.CopyStatus{{Node: "n2", Copy: model.Copy{Reason: model.Reason{Code: plan.CodePruneLimit}}}}})
		}, "[ prune-limit]"},
		{"own suspension over", with(func(i *status.ImageStatus) { i.Suspended = over }), "[parrot suspension-over]"},
		{"suspended", with(func(i *status.ImageStatus) { i.Suspended = &plan.Suspension{Reason: "x"} }), "[]"},
		{"all suspensions over", func(s *status.Status) { s.Config.Suspended, s.Images[0].Suspended = over, over }, "[ suspension-over]"},
	} {
		s := status.Status{Node: "n1", Time: start, Images: []status.ImageStatus{ready("parrot")}}
		tt.change(&s)
		on := []string{}
		for c := range Observe(s).on {
			on = append(on, c.Image+" "+string(c.Kind))
		}
		slices.Sort(on)
		if fmt.Sprint(on) != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, on, tt.want)
		}
	}
}

// What a node that does not respond had is neither over nor new.
func TestUnknownEndsNothing(t *testing.T) {
	c := Condition{Failed, "parrot"}
	tracker, on := Tracker{}, Observation{on: map[Condition]string{c: "x"}}
	first := func(Condition, bool) Turn { return Turn{Sends: true} }
	at := start
	pass := func(o Observation, d time.Duration) (due []Event) {
		for end := at.Add(d); at.Before(end); at = at.Add(15 * time.Second) {
			tracker.Update(o, at, at)
			due = append(due, tracker.Due(at, first, time.Hour)...)
			tracker.Sent(due, at)
		}
		return due
	}
	if due := pass(on, 6*time.Minute); len(due) != 1 || due[0].Over {
		t.Fatalf("due is %v", due)
	}
	if due := pass(Observation{partial: map[string]bool{"parrot": true}}, 24*time.Hour); len(due) > 0 {
		t.Errorf("a node that does not respond ended %v", due)
	}
	if due := pass(Observation{unknown: true}, 24*time.Hour); len(due) > 0 {
		t.Errorf("an unknown configuration ended %v", due)
	}
	if due := pass(Observation{}, 6*time.Minute); len(due) != 1 || !due[0].Over || !due[0].Since.Equal(start) {
		t.Errorf("due is %v", due)
	}
	if pass(Observation{}, 2*time.Hour); len(tracker.episodes) > 0 {
		t.Errorf("what was sent is kept: %v", tracker.episodes)
	}
}

// Exactly one node is first for each condition, each node for about as many, and without it another one takes over.
func TestRank(t *testing.T) {
	nodes := []string{"node1", "node2", "node3", "node4", "node5"}
	firsts := map[string]int{}
	for i := range 1000 {
		c := Condition{Failed, fmt.Sprint("image", i)}
		byRank := map[int]string{}
		for _, node := range nodes {
			byRank[Rank(c, node, nodes)] = node
		}
		if len(byRank) != len(nodes) {
			t.Fatalf("the ranks of %v are %v", c, byRank)
		}
		firsts[byRank[0]]++
		rest := slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == byRank[0] })
		if Rank(c, byRank[1], rest) != 0 {
			t.Errorf("without the first node, %s is not first for %v", byRank[1], c)
		}
	}
	for _, node := range nodes {
		if firsts[node] < 150 || firsts[node] > 250 {
			t.Errorf("%s is first for %d of 1000 conditions", node, firsts[node])
		}
	}
}

const hostile = "\x1b]0;x\x07\u202e\n<script>\xff" + `"}],[{`

// Texts from peers and upstreams are printable, and the messages are bounded.
func TestMessagesAreBoundedAndPrintable(t *testing.T) {
	s := status.Status{Node: "n1", Time: start}
	for i := range 1000 {
		image := status.ImageStatus{Name: fmt.Sprint("image", i), Declared: true, Desired: 1}
		for range 10 {
			image.Copies = append(image.Copies, status.CopyStatus{
				Node: "n2", Message: hostile, Observed: &status.Observed{State: model.Failed, Message: hostile},
				Copy: model.Copy{Failure: &model.Failure{Attempts: 1, Message: hostile + strings.Repeat("x", 10000)}, Reason: model.Reason{Code: plan.CodeConflict, Text: hostile}},
			})
		}
		s.Images = append(s.Images, image)
	}
	var tracker Tracker
	for _, at := range []time.Time{start, start.Add(Hold)} {
		tracker.Update(Observe(s), at, at)
	}
	events := tracker.Due(start.Add(Hold+time.Minute), func(Condition, bool) Turn { return Turn{Sends: true} }, time.Hour)
	if len(events) != 4000 || len(tracker.Record()) != 4000 {
		t.Fatalf("%d events, %d episodes in the record", len(events), len(tracker.Record()))
	}
	x := Context{Cluster: "edge-7", Now: start.Add(time.Hour), Expires: time.Hour, Address: "http://10.0.0.1:8000"}
	for format, messages := range map[string][]Message{"alertmanager": x.Alerts(events), "cloudevents": x.CloudEvents(events)} {
		n := 0
		for _, m := range messages {
			n += len(m.Events)
			if len(m.Body) > 512<<10 || !utf8.Valid(m.Body) || !json.Valid(m.Body) || bytes.ContainsFunc(m.Body, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Fatalf("%s: a body of %d bytes is not printable JSON: %.1000q", format, len(m.Body), m.Body)
			}
		}
		if n != len(events) {
			t.Errorf("%s: the messages have %d of %d events", format, n, len(events))
		}
	}
}

// The forms are an interface of other programs.
func TestForms(t *testing.T) {
	e := Event{Condition{Failed, "parrot"}, start, false, "n1/d1: no route to host"}
	ended := Event{Condition{NotReady, "parrot"}, start, true, "0 of 1 desired copies are ready"}
	x := Context{Cluster: "edge-7", Now: start.Add(10 * time.Minute), Expires: 20 * time.Minute, Address: "http://10.0.0.1:8000"}
	const alerts = `[{"labels":{"alertname":"BackingImageFailed","cluster":"edge-7","image":"parrot","job":"backing-image-manager","severity":"warning"},` +
		`"annotations":{"description":"n1/d1: no route to host","summary":"image parrot: a copy fails"},"startsAt":"2026-12-01T12:00:00Z","endsAt":"2026-12-01T12:30:00Z","generatorURL":"http://10.0.0.1:8000"},` +
		`{"labels":{"alertname":"BackingImageNotReady","cluster":"edge-7","image":"parrot","job":"backing-image-manager","severity":"warning"},` +
		`"annotations":{"description":"before: 0 of 1 desired copies are ready","summary":"image parrot: ready"},"startsAt":"2026-12-01T12:00:00Z","endsAt":"2026-12-01T12:10:00Z","generatorURL":"http://10.0.0.1:8000"}]`
	if m := x.Alerts([]Event{e, ended}); len(m) != 1 || string(m[0].Body) != alerts {
		t.Errorf("the alerts are\n%s\nwant\n%s", m[0].Body, alerts)
	}
	m := x.CloudEvents([]Event{e, ended, {Condition{PruneLimit, ""}, start, false, "x"}})
	var c map[string]any
	if err := json.Unmarshal(m[1].Body, &c); err != nil || m[1].ContentType != "application/cloudevents+json" {
		t.Fatal(m[1].ContentType, err)
	}
	id := c["id"].(string)
	want := `{"specversion":"1.0","id":"` + id + `","source":"/backing-image-manager/edge-7","type":"backing-image-manager.not-ready.resolved","subject":"parrot","time":"2026-12-01T12:10:00Z",` +
		`"datacontenttype":"application/json","data":{"kind":"not-ready","image":"parrot","cluster":"edge-7","resolved":true,"since":"2026-12-01T12:00:00Z","summary":"image parrot: ready","text":"before: 0 of 1 desired copies are ready"}}`
	if string(m[1].Body) != want || len(id) != 32 {
		t.Errorf("the event is\n%s\nwant\n%s", m[1].Body, want)
	}
	if strings.Contains(string(m[2].Body), "subject") {
		t.Errorf("an event about no image has a subject: %s", m[2].Body)
	}
	ids := map[string]bool{}
	for _, other := range []Event{e, ended, {e.Condition, start, true, ""}, {e.Condition, start.Add(2 * Hold), false, ""}, {Condition{Failed, "macaw"}, start, false, ""}} {
		ids[x.id(other)] = true
	}
	if len(ids) != 5 || x.id(e) != x.id(Event{e.Condition, start.Add(15 * time.Second), false, "another text"}) {
		t.Errorf("the ids are %v", ids)
	}
}

// The records of the disks of a node may differ. What any of them has counts, in each order.
func TestRestoreCombinesRecords(t *testing.T) {
	old := Saved{Kind: Failed, Image: "parrot", Since: start.Add(-time.Hour), Begin: true}
	ended := Saved{Kind: Failed, Image: "parrot", Since: old.Since, Begin: true, Over: true, End: true}
	later := Saved{Kind: Failed, Image: "parrot", Since: start.Add(-time.Minute), After: old.Since}
	for _, tt := range []struct{ first, second, want Saved }{{old, ended, ended}, {ended, old, ended}, {old, later, later}, {later, old, later}} {
		var tracker Tracker
		tracker.Restore(SavedList{tt.first}, start, start)
		tracker.Restore(SavedList{tt.second}, start, start)
		if got := tracker.Record(); len(got) != 1 || got[0] != tt.want {
			t.Errorf("%+v and %+v: got %+v, want %+v", tt.first, tt.second, got, tt.want)
		}
	}
}

// A small document with millions of episodes costs no memory for them.
func TestManyEpisodesAreNotDecoded(t *testing.T) {
	var l SavedList
	if err := json.Unmarshal([]byte("["+strings.Repeat("{},", 1_000_000)+"{}]"), &l); err != nil || len(l) != maxPublished {
		t.Errorf("%d episodes, %v", len(l), err)
	}
}

// A record may come from anybody who can write to the disk, and what a node publishes from a compromised one.
func FuzzRestore(f *testing.F) {
	f.Add([]byte(`[{"kind":"failed","image":"parrot","since":"2026-12-01T12:00:00Z","begin":true},{"kind":"blocked","since":"2026-12-01T12:00:00Z","begin":true,"over":true,"end":true}]`))
	f.Add([]byte(`[{"kind":"x"},{"kind":"failed","image":"../x","since":"2026-12-01T12:00:00Z"},{"kind":"blocked","since":"9999-12-31T23:59:59-23:59"}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var saved SavedList
		if json.Unmarshal(data, &saved) != nil {
			return
		}
		var tracker Tracker
		tracker.Restore(saved, start, start)
		again, err := json.Marshal(tracker.Record())
		if err != nil {
			t.Fatal(err)
		}
		tracker.Update(Observe(clusterStatus()), start, start)
		for _, m := range (Context{Now: start}).Alerts(tracker.Due(start, func(Condition, bool) Turn { return Turn{Sends: true} }, time.Hour)) {
			if !json.Valid(m.Body) {
				t.Errorf("%s", m.Body)
			}
		}
		ask := Tracker{}
		ask.Update(Observe(clusterStatus()), start, start)
		ask.Update(Observe(clusterStatus()), start, start.Add(Hold))
		before := len(ask.Record())
		ask.Join(saved, func(image string) bool { return image == "parrot" }, start, start)
		if more := len(ask.Record()) - before; more > 2*len(kinds) {
			t.Errorf("another node made %d episodes", more)
		}
		before = len(ask.Record())
		ask.Learn(ask.Questions(), saved, start, start)
		if published, err := json.Marshal(ask.Published()); err != nil || len(ask.Record()) != before {
			t.Errorf("another node made %d episodes from %d: %s, %v", len(ask.Record()), before, published, err)
		}
		var twice Tracker
		saved = nil
		if err := json.Unmarshal(again, &saved); err != nil {
			t.Fatal(err)
		}
		twice.Restore(saved, start, start)
		if b, _ := json.Marshal(twice.Record()); !bytes.Equal(b, again) {
			t.Errorf("%s, want %s", b, again)
		}
	})
}

func clusterStatus() status.Status {
	v := clusterview.ThreeNodes()
	return v.Status(nil)
}

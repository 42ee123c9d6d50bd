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
		{"a blocked copy", with(func(i *status.ImageStatus) {
			i.Copies = []status.CopyStatus{{Node: "n1", State: model.Ready, Code: plan.CodeConflict}}
		}), "[parrot blocked n1]"},
		{"copies of another node", with(func(i *status.ImageStatus) {
			i.Copies = []status.CopyStatus{{Node: "n2", State: model.Failed, Observed: &status.Observed{State: model.Failed},
				Copy: model.Copy{Reason: model.Reason{Code: plan.CodeConflict}, Failure: &model.Failure{Attempts: 2}, DamagedAt: start}}}
		}), "[]"},
		{"fails here", with(func(i *status.ImageStatus) {
			i.Copies = []status.CopyStatus{{Node: "n1", State: model.InProgress, Copy: model.Copy{Failure: &model.Failure{Attempts: 2}}}}
		}), "[parrot failed n1]"},
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
			i.Copies = []status.CopyStatus{{Node: "n1", State: model.Failed, Observed: &status.Observed{State: model.Failed}}}
		}), "[parrot damaged n1]"},
		{"repaired a moment ago", with(func(i *status.ImageStatus) {
			i.Copies = []status.CopyStatus{{Node: "n1", State: model.Ready, Copy: model.Copy{DamagedAt: start.Add(-DamageShown + time.Second)}}}
		}), "[parrot damaged n1]"},
		{"repaired long ago", with(func(i *status.ImageStatus) {
			i.Copies = []status.CopyStatus{{Node: "n1", State: model.Ready, Copy: model.Copy{DamagedAt: start.Add(-DamageShown)}}}
		}), "[]"},
		{"prune limit", func(s *status.Status) {
			s.Images = append(s.Images, status.ImageStatus{Name: "old", Copies: []status.CopyStatus{{Node: "n2", Copy: model.Copy{Reason: model.Reason{Code: plan.CodePruneLimit}}}}})
		}, "[ prune-limit]"},
		{"prune limit here", func(s *status.Status) {
			s.Images = append(s.Images, status.ImageStatus{Name: "old", Copies: []status.CopyStatus{{Node: "n1", Code: plan.CodePruneLimit}}})
		}, "[ prune-limit]"},
		{"own suspension over", with(func(i *status.ImageStatus) { i.Suspended = over }), "[parrot suspension-over]"},
		{"suspended", with(func(i *status.ImageStatus) { i.Suspended = &plan.Suspension{Reason: "x"} }), "[]"},
		{"all suspensions over", func(s *status.Status) { s.Config.Suspended, s.Images[0].Suspended = over, over }, "[ suspension-over]"},
	} {
		s := status.Status{Node: "n1", Time: start, Images: []status.ImageStatus{ready("parrot")}}
		tt.change(&s)
		on := []string{}
		for c := range observe(s).on {
			on = append(on, strings.TrimSuffix(c.Image+" "+string(c.Kind)+" "+c.Node, " "))
		}
		slices.Sort(on)
		if fmt.Sprint(on) != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, on, tt.want)
		}
	}
}

// What is not known, because the configuration is not, is neither over nor new.
func TestUnknownEndsNothing(t *testing.T) {
	c := Condition{Kind: NotReady, Image: "parrot"}
	tracked, on := episodes{}, observation{on: map[Condition]string{c: "x"}}
	at := start
	pass := func(o observation, d time.Duration) (due []event) {
		for end := at.Add(d); at.Before(end); at = at.Add(15 * time.Second) {
			tracked.update(o, at, always)
			next := tracked.due(at, always)
			tracked.accepted(next, at)
			due = append(due, next...)
		}
		return due
	}
	if due := pass(on, 6*time.Minute); len(due) != 1 || due[0].over() {
		t.Fatalf("due is %v", due)
	}
	if due := pass(observation{unknown: true}, 24*time.Hour); len(due) > 0 {
		t.Errorf("an unknown configuration ended %v", due)
	}
	if due := pass(observation{}, 6*time.Minute); len(due) != 1 || !due[0].over() || !due[0].Since.Equal(start) {
		t.Errorf("due is %v", due)
	}
	if len(tracked.current) > 0 || len(tracked.ended) > 0 {
		t.Errorf("what was sent is kept: %v, %v", tracked.current, tracked.ended)
	}
}

func always(Condition) bool { return true }

// Beginnings come from other nodes, which may be compromised: each that counts is a new one, near that of this node.
func TestPublishedBeginningIsBounded(t *testing.T) {
	for _, tt := range []struct{ published, want time.Duration }{
		{-3 * time.Second, -3 * time.Second}, {-Hold + time.Second, -Hold + time.Second},
		{-Hold, 0}, {-24 * time.Hour, 0}, {time.Minute, 0}, {-1 << 62, 0}, {1 << 62, 0},
	} {
		var tracked episodes
		o := observation{on: map[Condition]string{{Kind: NotReady, Image: "parrot"}: "x", {Kind: Failed, Image: "parrot", Node: "n1"}: "x"}}
		published := []model.Condition{
			{Kind: string(NotReady), Image: "parrot", Since: start.Add(tt.published)}, {Kind: string(Failed), Image: "parrot", Since: start.Add(-time.Second)},
			{Kind: string(Failed), Image: "macaw", Since: start}, {},
		}
		tracked.adopt(published)
		tracked.update(o, start, always)
		tracked.adopt(published)
		tracked.update(o, start.Add(Hold), always)
		tracked.adopt([]model.Condition{{Kind: string(NotReady), Image: "parrot", Since: start.Add(-time.Minute)}}) // too late
		due := tracked.due(start.Add(Hold), always)
		if len(due) != 2 || !due[0].Since.Equal(start) || !due[1].Since.Equal(start.Add(tt.want)) {
			t.Errorf("%v: %+v", tt.published, due)
		}
	}
}

// Exactly one node is first for each condition, each node for about as many, and without it another one takes over.
func TestRank(t *testing.T) {
	nodes := []string{"node1", "node2", "node3", "node4", "node5"}
	firsts := map[string]int{}
	for i := range 1000 {
		c := Condition{Kind: NotReady, Image: fmt.Sprint("image", i)}
		byRank := map[int]string{}
		for _, node := range nodes {
			byRank[rank(c, node, nodes)] = node
		}
		if len(byRank) != len(nodes) {
			t.Fatalf("the ranks of %v are %v", c, byRank)
		}
		firsts[byRank[0]]++
		rest := slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == byRank[0] })
		if rank(c, byRank[1], rest) != 0 {
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
				Node: "n1", Code: plan.CodeConflict, Message: hostile, Copy: model.Copy{Failure: &model.Failure{Attempts: 1, Message: hostile + strings.Repeat("x", 10000)}},
				Observed: &status.Observed{State: model.Failed, Message: hostile},
			})
		}
		s.Images = append(s.Images, image)
	}
	var tracked episodes
	for _, at := range []time.Time{start, start.Add(Hold)} {
		tracked.update(observe(s), at, always)
	}
	events := tracked.due(start.Add(Hold+time.Minute), always)
	if len(events) != 4000 || len(tracked.published()) != 1000 {
		t.Fatalf("%d events, %d are published", len(events), len(tracked.published()))
	}
	x := alertContext{cluster: "edge-7", now: start.Add(time.Hour), address: "http://10.0.0.1:8000"}
	for format, messages := range map[string][]message{"alertmanager": alerts(events, x), "cloudevents": cloudEvents(events, "edge-7")} {
		n := 0
		for _, m := range messages {
			n += len(m.events)
			if len(m.body) > 512<<10 || !utf8.Valid(m.body) || !json.Valid(m.body) || bytes.ContainsFunc(m.body, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Fatalf("%s: a body of %d bytes is not printable JSON: %.1000q", format, len(m.body), m.body)
			}
		}
		if n != len(events) {
			t.Errorf("%s: the messages have %d of %d events", format, n, len(events))
		}
	}
}

// The forms are an interface of other programs.
func TestForms(t *testing.T) {
	e := event{Condition{Failed, "parrot", "n1"}, start, time.Time{}, "n1/d1: no route to host"}
	ended := event{Condition{NotReady, "parrot", ""}, start, start.Add(9 * time.Minute), "0 of 1 desired copies are ready"}
	x := alertContext{cluster: "edge-7", now: start.Add(10 * time.Minute), address: "http://10.0.0.1:8000"}
	const want = `[{"labels":{"alertname":"BackingImageFailed","cluster":"edge-7","image":"parrot","job":"backing-image-manager","node":"n1","severity":"warning"},` +
		`"annotations":{"description":"n1/d1: no route to host","summary":"image parrot on node n1: a copy fails"},"startsAt":"2026-12-01T12:00:00Z","endsAt":"2026-12-01T12:25:00Z","generatorURL":"http://10.0.0.1:8000"},` +
		`{"labels":{"alertname":"BackingImageNotReady","cluster":"edge-7","image":"parrot","job":"backing-image-manager","severity":"warning"},` +
		`"annotations":{"description":"before: 0 of 1 desired copies are ready","summary":"image parrot: ready"},"startsAt":"2026-12-01T12:00:00Z","endsAt":"2026-12-01T12:10:00Z","generatorURL":"http://10.0.0.1:8000"}]`
	if m := alerts([]event{e, ended}, x); len(m) != 1 || string(m[0].body) != want {
		t.Errorf("the alerts are\n%s\nwant\n%s", m[0].body, want)
	}
	wantEvents(t, e, ended)
}

func wantEvents(t *testing.T, e, ended event) {
	m := cloudEvents([]event{e, ended, {Condition{Kind: PruneLimit}, start, time.Time{}, "x"}}, "edge-7")
	var c map[string]any
	if err := json.Unmarshal(m[1].body, &c); err != nil || m[1].contentType != "application/cloudevents+json" {
		t.Fatal(m[1].contentType, err)
	}
	id := c["id"].(string)
	want := `{"specversion":"1.0","id":"` + id + `","source":"/backing-image-manager/edge-7","type":"backing-image-manager.not-ready.resolved","subject":"parrot","time":"2026-12-01T12:09:00Z",` +
		`"datacontenttype":"application/json","data":{"kind":"not-ready","image":"parrot","cluster":"edge-7","resolved":true,"since":"2026-12-01T12:00:00Z","summary":"image parrot: ready","text":"before: 0 of 1 desired copies are ready"}}`
	if string(m[1].body) != want || len(id) != 32 {
		t.Errorf("the event is\n%s\nwant\n%s", m[1].body, want)
	}
	if strings.Contains(string(m[2].body), "subject") {
		t.Errorf("an event about no image has a subject: %s", m[2].body)
	}
	if !strings.Contains(string(m[0].body), `"subject":"parrot/n1"`) || !strings.Contains(string(m[0].body), `"node":"n1"`) {
		t.Errorf("an event about a copy does not have its node: %s", m[0].body)
	}
	ids := map[string]bool{}
	over, later, other, elsewhere := e, e, e, e
	over.Ended, later.Since, other.Image, elsewhere.Node = start, start.Add(time.Second), "macaw", "n2"
	for _, event := range []event{e, ended, over, later, other, elsewhere} {
		ids[event.id("edge-7")] = true
	}
	same := e
	same.Text = "another text"
	if len(ids) != 6 || e.id("edge-7") != same.id("edge-7") || e.id("edge-7") == e.id("edge-8") {
		t.Errorf("the ids are %v", ids)
	}
}

package status

import (
	"reflect"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// fullStatus returns a new document with one of everything.
func fullStatus() Status {
	return Status{
		Node: "node1", Time: testNow,
		Peers: []PeerStatus{{Node: "node2", Peer: model.Peer{Problem: "no route", LastResponse: testNow, UnreachableSince: testNow}}},
		Disks: []DiskStatus{{Node: "node1", Name: "disk1", Disk: model.Disk{Space: model.Space{Free: 1, Total: 2}}}, {Node: "node2", Name: "disk1", Unreachable: "node node2 has not responded since 2026-12-01T11:59:48Z: no data for 12s"}},
		Images: []ImageStatus{{Name: "parrot", Declared: true, Copies: []CopyStatus{{
			Node: "node1", Disk: "disk1", State: model.InProgress, Progress: 10, Done: 100, Copy: model.Copy{PartBytes: 100, Failure: &model.Failure{Attempts: 1, RetryAt: testNow}},
		}}}},
		Plan: plan.Plan{Actions: []plan.Action{{Op: model.Wait, Until: testNow}}},
	}
}

func TestContentSumChangesOnlyWithTheState(t *testing.T) {
	later := testNow.Add(time.Hour)
	was := fullStatus().ContentSum()
	for name, change := range map[string]func(*Status){
		"time":          func(s *Status) { s.Time = later },
		"last response": func(s *Status) { s.Peers[0].LastResponse, s.Peers[0].UnreachableSince = later, later },
		"duration": func(s *Status) {
			s.Disks[1].Unreachable = "node node2 has not responded since 2026-12-01T11:59:48Z: no data for 1h2m3s"
		},
		"free space":    func(s *Status) { s.Disks[0].Free = 2 },
		"percent":       func(s *Status) { s.Images[0].Copies[0].Progress = 11 },
		"bytes":         func(s *Status) { s.Images[0].Copies[0].Done, s.Images[0].Copies[0].PartBytes = 101, 101 },
		"readers":       func(s *Status) { s.Images[0].Copies[0].Sends = 3 },
		"last use":      func(s *Status) { s.Images[0].Copies[0].LastUsed = later },
		"end of a wait": func(s *Status) { s.Plan.Actions[0].Until, s.Images[0].Copies[0].Until = later, later },
	} {
		s := fullStatus()
		if change(&s); s.ContentSum() != was {
			t.Errorf("the sum changed with: %s", name)
		}
	}
	for name, change := range map[string]func(*Status){
		"state":           func(s *Status) { s.Images[0].Copies[0].State = model.Ready },
		"attempts":        func(s *Status) { s.Images[0].Copies[0].Failure.Attempts = 2 },
		"message":         func(s *Status) { s.Disks[1].Unreachable = "" },
		"problem":         func(s *Status) { s.Disks[0].Problem = "no disk here" },
		"configuration":   func(s *Status) { s.Config.Digest = "d" },
		"response":        func(s *Status) { s.Peers[0].Responds = true },
		"image":           func(s *Status) { s.Images[0].Declared = false },
		"planned action":  func(s *Status) { s.Plan.Actions[0].Code = plan.CodeInUse },
		"report":          func(s *Status) { s.Report = &Delivery{Problem: "no route"} },
		"planned actions": func(s *Status) { s.Plan.Actions = nil },
	} {
		s := fullStatus()
		if change(&s); s.ContentSum() == was {
			t.Errorf("the sum did not change with: %s", name)
		}
	}
	s := fullStatus()
	s.ContentSum()
	if !reflect.DeepEqual(s, fullStatus()) {
		t.Errorf("ContentSum changed the document to %+v", s)
	}
}

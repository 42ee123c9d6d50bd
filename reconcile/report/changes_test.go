package report

import (
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

func watchedStatus() status.Status {
	return status.Status{
		Node: "node1", Time: time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC),
		Config: status.ConfigStatus{Digest: "0123456789abcdef", Allowed: "everything"},
		Peers:  []status.PeerStatus{{Node: "node2", Responds: true, Peer: model.Peer{Queried: true}, Skew: status.SkewSame}},
		Disks:  []status.DiskStatus{{Node: "node1", Name: "disk1", Observed: true}},
		Images: []status.ImageStatus{{Name: "parrot", UUID: "0000000a", Declared: true, Desired: 2, Ready: 1, Copies: []status.CopyStatus{
			{Node: "node1", Disk: "disk1", State: model.Ready, Observed: &status.Observed{State: model.Ready}},
			{Node: "node2", Disk: "disk1", State: model.Pending, Message: "has waited for 1m2s", Observed: &status.Observed{State: model.Ready}},
			{Node: "node3", Disk: "disk1", State: model.Pending, Copy: model.Copy{Rejection: "no space"}},
		}}},
	}
}

func TestStatusChangesAreLines(t *testing.T) {
	const at = "2026-12-01T12:00:00Z "
	for _, tt := range []struct {
		name   string
		change func(*status.Status)
		want   []string
	}{
		{"time, progress and durations", func(s *status.Status) {
			s.Images[0].Copies[1].Message, s.Images[0].Copies[1].Progress, s.Disks[0].Free = "has waited for 1m3s", 3, 5
		}, nil},
		{"a peer that does not respond", func(s *status.Status) { s.Peers[0].Responds, s.Peers[0].Problem = false, "no route" }, []string{"peer node2: does not respond: no route"}},
		{"another configuration", func(s *status.Status) { s.Peers[0].Skew, s.Config.Skew = status.SkewOther, "differs" }, []string{"peer node2: responds, configuration other"}},
		{"errors", func(s *status.Status) { s.Config.Digest, s.Config.Errors = "", []string{"a.yaml:1:1: wrong\x1b"} }, []string{"configuration: 1 error (everything); error: a.yaml:1:1: wrong\ufffd"}},
		{"a ready copy", func(s *status.Status) {
			s.Images[0].Ready, s.Images[0].Copies[1].State, s.Images[0].Copies[1].Message = 2, model.Ready, "surplus"
		}, []string{"image parrot-0000000a: 2/2 ready", "copy parrot-0000000a on node2/disk1: ready"}},
		{"a failed copy", func(s *status.Status) {
			s.Images[0].Copies[1].State, s.Images[0].Copies[1].Message, s.Images[0].Copies[1].Code = model.Failed, "checksum mismatch", plan.CodeRejected
		}, []string{"copy parrot-0000000a on node2/disk1: failed: checksum mismatch"}},
		{"an image that is removed", func(s *status.Status) { s.Images, s.Disks[0].Problem = nil, "no disk here" }, []string{
			"disk node1/disk1: no disk here", "image parrot-0000000a: removed", "copy parrot-0000000a on node1/disk1: removed", "copy parrot-0000000a on node2/disk1: removed",
		}},
	} {
		now := watchedStatus()
		tt.change(&now)
		checkChanges(t, tt.name, watchedStatus(), now, at, tt.want)
	}
	checkChanges(t, "at first", status.Status{}, watchedStatus(), at, []string{
		"configuration: valid, digest 0123456789ab", "image parrot-0000000a: 1/2 ready", "copy parrot-0000000a on node2/disk1: pending: has waited for 1m2s",
	})
}

func checkChanges(t *testing.T, name string, was, now status.Status, at string, want []string) {
	t.Helper()
	var got, lines strings.Builder
	if err := WriteStatusChanges(&got, was, now); err != nil {
		t.Fatal(err)
	}
	for _, line := range want {
		lines.WriteString(at + line + "\n")
	}
	if got.String() != lines.String() {
		t.Errorf("%s:\n%swant\n%s", name, &got, &lines)
	}
}

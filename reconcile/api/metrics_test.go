package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/internal/testx/clusterview"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// sent collects the values that a function sends.
type sent func(sender)

func (sent) Describe(chan<- *prometheus.Desc) {}

func (f sent) Collect(out chan<- prometheus.Metric) { f(sender(out)) }

// values are metrics as "name{label} value", sorted.
func values(t *testing.T, f sent) []string {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(f)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("the metrics break the naming rules: %v (error %v)", problems, err)
	}
	var lines []string
	for _, family := range families {
		if !slices.ContainsFunc(metrics, func(m metric) bool { return m.name == family.GetName() }) {
			t.Errorf("%s is sent, but is not in the list metrics and so not in docs/metrics.md", family.GetName())
		}
		for _, m := range family.GetMetric() {
			line := strings.TrimPrefix(family.GetName(), "backing_image_manager_")
			for _, l := range m.GetLabel() {
				line += "{" + l.GetValue() + "}"
			}
			lines = append(lines, fmt.Sprint(line, " ", m.GetGauge().GetValue()))
		}
	}
	slices.Sort(lines)
	return lines
}

func reason(code model.Code) model.Reason { return model.Reason{Code: code} }

// planOf returns a plan with these actions.
func planOf(actions ...plan.Action) plan.Plan {
	p := plan.Plan{Actions: actions, Summary: plan.Summary{Counts: map[model.Op]int{}}}
	for _, a := range actions {
		p.Summary.Counts[a.Op]++
	}
	return p
}

func TestMetricsCountCopiesPeersActionsAndDisks(t *testing.T) {
	v := clusterview.ThreeNodes()
	v.Plan = plan.NewRound(v.Desired, v.Observed).Plan()
	s := v.Status(nil)
	for _, tt := range []struct {
		name string
		send sent
		want []string
	}{
		{"copies", func(s1 sender) { s1.desired(s.Images) }, []string{
			"desired_copies 9", "missing_copies{macaw} 2", "missing_copies{parrot} 3", "ready_copies 4",
			"remaining_copies{macaw} 1", "remaining_copies{parrot} 3",
		}},
		{"copies of this node", func(s1 sender) { s1.images(s.Node, s.Images) }, []string{
			"copies{failed} 0", "copies{in-progress} 0", "copies{pending} 0", "copies{ready} 2", "copies{starting} 0", "copies{unknown} 0",
			"images_declared 2", "images_ready 0", "unproven_copies 0",
		}},
		{"peers", func(s1 sender) { s1.peers(clusterview.Now.Add(time.Second), s.Peers) }, []string{
			"config_skew_peers 1",
			"peer_last_response_age_seconds{node02} 4", "peer_last_response_age_seconds{node03} 13",
			"peer_reachable{node02} 1", "peer_reachable{node03} 0",
		}},
		{"actions of this node", func(s1 sender) {
			s1.plan(planOf(plan.Action{Op: model.Sync, Reason: reason(plan.CodeNoCopy)}, plan.Action{Op: model.Wait, Reason: reason(plan.CodeInUse)},
				plan.Action{Op: model.Wait, Reason: reason(plan.CodeInUse)}, plan.Action{Op: model.Blocked, Reason: reason(plan.CodeInUse)},
				plan.Action{Op: model.Blocked, Reason: reason(plan.CodeNoSpace)}))
		}, []string{
			"planned_actions{blocked} 2", "planned_actions{sync} 1", "planned_actions{wait} 2",
			"waiting_actions{in-use}{blocked} 1", "waiting_actions{in-use}{wait} 2", "waiting_actions{no-space}{blocked} 1",
		}},
		{"disks of this node", func(s1 sender) { s1.disks(s.Node, s.Disks) }, []string{
			"disk_free_bytes{disk1} 5.36870912e+10", "disk_free_bytes{disk2} 5.36870912e+10",
			"disk_reserved_bytes{disk1} 1.073741824e+10", "disk_reserved_bytes{disk2} 1.073741824e+10",
			"disk_size_bytes{disk1} 1.073741824e+11", "disk_size_bytes{disk2} 1.073741824e+11",
			"disk_usable{disk1} 1", "disk_usable{disk2} 1",
		}},
	} {
		if got := values(t, tt.send); !slices.Equal(got, tt.want) {
			t.Errorf("%s:\n%s\nwant\n%s", tt.name, strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
		}
	}
}

func TestSignedCopiesAreCountedByKey(t *testing.T) {
	copyOf := func(node, signer string, state model.State) status.CopyStatus {
		return status.CopyStatus{Node: node, State: state, Copy: model.Copy{Signature: model.Signature{Scheme: "openpgp", Signer: signer}}}
	}
	images := []status.ImageStatus{{Name: "a", Copies: []status.CopyStatus{copyOf("node1", "AA", model.Ready), copyOf("node1", "AA", model.Failed), copyOf("node2", "AA", model.Ready)}},
		{Name: "b", Copies: []status.CopyStatus{copyOf("node1", "AA", model.Ready), copyOf("node1", "BB", model.Ready), {Node: "node1", State: model.Ready}}}}
	got := values(t, func(s sender) { s.images("node1", images) })
	got = slices.DeleteFunc(got, func(line string) bool { return !strings.HasPrefix(line, "signed_copies") })
	if want := []string{"signed_copies{openpgp}{AA} 2", "signed_copies{openpgp}{BB} 1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCopiesOfAtMost100ImagesAreReportedThoseWithTheFewestReadyCopies(t *testing.T) {
	var images []status.ImageStatus
	for n := range 3 * maxMissing {
		images = append(images, status.ImageStatus{Name: fmt.Sprintf("image%03d", n), Declared: true, Desired: 3, Ready: 1 + n%3})
	}
	images = append(images, status.ImageStatus{Name: "a", Declared: true, Desired: 3, Ready: 2}, status.ImageStatus{Name: "z", Declared: true, Desired: 1})
	got := values(t, func(s sender) { s.desired(images) })
	if len(got) != 2*maxMissing+2 || !slices.Contains(got, "ready_copies 602") || !slices.Contains(got, "desired_copies 904") {
		t.Errorf("%d values: %v", len(got), got)
	}
	for line, want := range map[string]bool{
		"missing_copies{z} 1": true, "remaining_copies{z} 0": true, "missing_copies{a} 1": false, "remaining_copies{image000} 1": true, "remaining_copies{image297} 1": false,
	} {
		if slices.Contains(got, line) != want {
			t.Errorf("contains %s: %t, want %t", line, !want, want)
		}
	}
}

func TestLastDamageOfADiskIsThatOfItsCopies(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	images := []status.ImageStatus{
		{Name: "a", Copies: []status.CopyStatus{
			{Node: "node1", Disk: "disk1", State: model.Ready, Copy: model.Copy{DamagedAt: at(300)}}, {Node: "node1", Disk: "disk2", State: model.Ready}, {Node: "node2", Disk: "disk1", Copy: model.Copy{DamagedAt: at(900)}},
		}},
		{Name: "b", Copies: []status.CopyStatus{{Node: "node1", Disk: "disk1", State: model.Failed, Copy: model.Copy{DamagedAt: at(200)}}}},
	}
	got := values(t, func(s sender) { s.images("node1", images) })
	got = slices.DeleteFunc(got, func(line string) bool { return !strings.HasPrefix(line, "disk_last_damage") })
	if want := []string{"disk_last_damage_timestamp_seconds{disk1} 300"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestMetricsHaveTheExpiryOfTheCertificate(t *testing.T) {
	loop := startLoop(t, t.TempDir(), t.TempDir())
	for name, tt := range map[string]struct {
		files auth.TLSFiles
		want  bool
	}{"no TLS": {}, "TLS": {writeCertificates(t), true}} {
		families, err := newRegistry(loop, newAuthorizer(t, "", tt.files)).Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range families {
			if f.GetName() != certificate.name {
				continue
			}
			found = true
			at := time.Unix(int64(f.GetMetric()[0].GetGauge().GetValue()), 0)
			if left := time.Until(at); left < 58*time.Minute || left > time.Hour {
				t.Errorf("%s: the certificate expires in %v, want an hour", name, left)
			}
		}
		if found != tt.want {
			t.Errorf("%s: the metrics have the expiry: %v, want %v", name, found, tt.want)
		}
	}
}

func TestLabelsOfMetricsArePrintable(t *testing.T) {
	r := prometheus.NewRegistry()
	r.MustRegister(oneMetric{})
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := families[0].GetMetric()[0].GetLabel()[0].GetValue(), "x\ufffd]0;y\ufffd\ufffd; z"; got != want {
		t.Errorf("the label is %q, want %q", got, want)
	}
}

// oneMetric collects a metric with a label that a terminal could obey.
type oneMetric struct{}

func (oneMetric) Describe(out chan<- *prometheus.Desc) { out <- missingCopies.desc }

func (oneMetric) Collect(out chan<- prometheus.Metric) {
	sender(out).value(missingCopies, 1, "x\x1b]0;y\u202e\u009b\nz")
}

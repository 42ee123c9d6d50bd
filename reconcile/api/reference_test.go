package api

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var update = flag.Bool("update", false, "write docs/metrics.md")

// TestMetricsReferenceIsCurrent compares docs/metrics.md with the metrics. With -update it
// writes the file.
func TestMetricsReferenceIsCurrent(t *testing.T) {
	const file = "../../docs/metrics.md"
	want := metricsReference()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil || string(got) != want {
		t.Errorf("%s differs from the metrics (error %v): go test ./reconcile/api -run TestMetricsReferenceIsCurrent -update", file, err)
	}
}

func metricsReference() string {
	var b strings.Builder
	b.WriteString("# Metrics\n\nThis file is generated from the metrics: `go test ./reconcile/api -run TestMetricsReferenceIsCurrent -update` writes it.\n\n")
	b.WriteString("A daemon serves its metrics at `/metrics` in the Prometheus text format. The caller needs the role peer ([security](security.md)). The metrics of Go (`go_*`) and of the process (`process_*`) are there, too. Gauges about copies, the configuration and peers have the values of the last reconcile round; counters and running actions are current.\n\n")
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	sorted := slices.SortedFunc(slices.Values(metrics), func(a, b metric) int { return strings.Compare(a.name, b.name) })
	for _, m := range sorted {
		kind := map[prometheus.ValueType]string{prometheus.GaugeValue: "gauge", prometheus.CounterValue: "counter"}[m.kind]
		labels := make([]string, len(m.labels))
		for i, l := range m.labels {
			labels[i] = "`" + l + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.name, kind, strings.Join(labels, ", "), m.help)
	}
	b.WriteString(strings.ReplaceAll(metricsNotes, `"`, "`"))
	return b.String()
}

const metricsNotes = `
A gauge about something that does not exist has no value, such as "signed_copies" for a key without a copy,
"waiting_actions" for a code that no action has, or "delivery_failing" without the setting. The names below are without
the prefix "backing_image_manager_".

- "missing_copies" and "remaining_copies": at most 100 images have a value: those with the fewest ready copies.
- "peer_last_response_age_seconds": an idle peer is queried every 30 s. For a peer that does not respond now, the time
  is since the start of the last query to which it responded.
- "proofs_total": before a deletion, other copies send a chunk as the proof that they have their bytes. "wrong": another
  node sent other bytes. "missing": it sent none, or a copy of this node is damaged. A copy that sent wrong bytes is in
  "unproven_copies".
- "disk_last_damage_timestamp_seconds": a repair does not change it, and it is forgotten with the copy.
- "certificate_expiration_timestamp_seconds": the daemon uses the certificate for its callers and for its peers. If the
  authority that signed it expires sooner, it is that time. After the files are replaced, it is that of the new
  certificate. Without TLS there is no value.
`

// TestRoutesAreDocumented compares the table of docs/http-api.md with the routes, in both directions.
func TestRoutesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/http-api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n| route |")
	table, _, _ = strings.Cut(table, "\n## ")
	names := strings.NewReplacer("NAME", "{name}", "UUID", "{uuid}", "ID", "{id}", "FILE", "{file}")
	var documented, served []string
	for _, m := range regexp.MustCompile("`(/[^`]*)`").FindAllStringSubmatch(table, -1) {
		path := names.Replace(m[1])
		if path == "/" {
			path = "/{$}" // only this path, and not those below it
		}
		documented = append(documented, path)
	}
	loop := startLoop(t, t.TempDir(), t.TempDir())
	for _, r := range newServer(loop, localAuthorizer(t), Options{MaxRoundAge: time.Minute}).routes() {
		served = append(served, r.path)
	}
	slices.Sort(documented)
	slices.Sort(served)
	if !slices.Equal(documented, served) {
		t.Errorf("docs/http-api.md has the routes\n%s\nand the daemon\n%s", documented, served)
	}
}

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
	return b.String()
}

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

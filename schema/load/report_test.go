package load

import (
	"testing"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// A running manager goes on with the last address that every node can use.
func TestWrongReportFallsBackToTheLastValidOne(t *testing.T) {
	const one, two = "nodes: {node1: {}}\n", "nodes: {node1: {}, node2: {}}\n"
	l := NewLoader()
	for i, tt := range []struct {
		text, want string
		valid      bool
	}{
		{one + `settings: {report: {url: "https://a.example/own.json"}}`, "https://a.example/own.json", true},
		{two + `settings: {report: {url: "https://a.example/own.json"}}`, "", false}, // it is not valid for two nodes
		{two + `settings: {report: {url: "https://a.example/{node}.json"}}`, "https://a.example/{node}.json", true},
		{two + `settings: {report: {url: "https://a.example/status.json"}}`, "https://a.example/{node}.json", false},
		{two + `settings: {report: {url: "http://127.0.0.1/{node}.json"}}`, "https://a.example/{node}.json", false},
		{two + `settings: {report: {url: "ftp://a.example/{node}.json"}}`, "https://a.example/{node}.json", false},
		{two + `settings: {report: {url: "http://127.0.0.1/{node}.json"}, allowLoopbackSources: true}`, "http://127.0.0.1/{node}.json", true},
		{two + `settings: {report: {url: "http://127.0.0.1/{node}.json"}}`, "", false},
		{two, "", true},
	} {
		r := l.Load(t.Context(), snapshot(map[string]configdir.File{"c.yaml": {Path: "c.yaml", Data: []byte(tt.text)}}))
		got := ""
		if report := r.Config.Settings.Report; report != nil {
			got = report.URL
		}
		if got != tt.want || (len(r.Errors) == 0) != tt.valid || (r.Digest != "") != tt.valid {
			t.Errorf("state %d: the report is %q, want %q; errors %v, valid %v", i, got, tt.want, r.Errors, tt.valid)
		}
	}
}

package schema

import (
	"net/url"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Report is where each node puts its status document.
type Report struct {
	URL         string `json:"url"`                   // with nodePlaceholder
	Credentials string `json:"credentials,omitempty"` // name of a folder below --secrets-dir; "": none
}

// nodePlaceholder stands for the name of the node in the address of a report.
const nodePlaceholder = "{node}"

// URLOf returns the address for the document of a node. It may contain secrets. The name of a node needs no escape.
func (r Report) URLOf(node string) string { return strings.ReplaceAll(r.URL, nodePlaceholder, node) }

// Server returns the scheme and host of the address, or the bucket, without secrets.
func (r Report) Server() string { return server(r.URL) }

// server returns the scheme and host of an address that was checked, or its bucket.
func server(address string) string {
	text, forced := strings.CutPrefix(address, "s3::")
	u, err := url.Parse(strings.ReplaceAll(text, nodePlaceholder, ""))
	switch {
	case err != nil:
		return ""
	case u.Scheme == "s3" && u.User != nil: // s3://bucket@region
		return "s3://" + u.User.Username()
	case forced:
		return "s3::" + u.Scheme + "://" + u.Host
	}
	return u.Scheme + "://" + u.Host
}

// namesNode reports whether each node has its own address.
func (r Report) namesNode() bool { return strings.Contains(r.URL, nodePlaceholder) }

func (f fields) reportTo() *Report {
	declared, ok := f.in("report")
	if !ok {
		return nil
	}
	r := &Report{URL: declared.trimmed("url"), Credentials: declared.text("credentials")}
	const marker = "0node0"
	at := declared.of("url")
	switch u := at.destination(r.URLOf(marker), "http", "https", "s3"); {
	case u == nil:
	case strings.Count(u.Path, marker) != strings.Count(r.URLOf(marker), marker):
		at.report("has {node} outside of its path", "write it into the path only")
	case strings.ContainsAny(u.Path, "{}"):
		at.report("has a brace in its path that does not belong to {node}", "the only placeholder is {node}")
	}
	return r
}

// Notify is where changes of state are sent.
type Notify struct {
	URL         string       `json:"url"`
	Format      NotifyFormat `json:"format"`
	Credentials string       `json:"credentials,omitempty"` // name of a folder below --secrets-dir; "": none
	Cluster     string       `json:"cluster,omitempty"`     // name of this cluster in the messages; "": none
}

// NotifyFormat is the form of messages, spelled as in the configuration.
type NotifyFormat string

// The formats.
const (
	NotifyAlertmanager NotifyFormat = "alertmanager"
	NotifyCloudEvents  NotifyFormat = "cloudevents"
)

// Server returns the scheme and host of the address, without secrets.
func (n Notify) Server() string { return server(n.URL) }

func (f fields) notify() *Notify {
	declared, ok := f.in("notify")
	if !ok {
		return nil
	}
	n := &Notify{
		URL: declared.trimmed("url"), Format: NotifyFormat(declared.text("format")),
		Credentials: declared.text("credentials"), Cluster: declared.text("cluster"),
	}
	at := declared.of("url")
	u := at.destination(n.URL, "http", "https")
	if u != nil && n.Format == NotifyAlertmanager && !strings.HasSuffix(u.Path, "/api/v2/alerts") {
		at.report("is not the address of alerts of an Alertmanager", "end it with /api/v2/alerts")
	}
	return n
}

// checkDestination checks one of the settings report and notify against the other settings and the nodes: two nodes must not
// write one document. It reports whether another definition of it is in force now, or none.
func (m *merger) checkDestination(l *Loader, setting string) (changed bool) {
	k := key{settingsSection, setting}
	reject := func(d *definition) *document.Problem {
		switch r := d.checked.settings; {
		case len(d.checked.loopback) > 0 && !m.settings.AllowLoopbackSources:
			p := d.place(d.checked.loopback[0])
			return &p
		case r != nil && r.Report != nil && !r.Report.namesNode() && len(m.all(nodesSection)) > 1:
			p := d.placeNative(document.Problem{Path: document.Path{"report", "url"},
				Message: "does not contain {node}, so that the nodes would overwrite each other's document", Hint: "write it into the path, like /{node}.json"})
			return &p
		}
		return nil
	}
	d := m.current[k]
	if d == nil {
		return false
	}
	p := reject(d)
	if p == nil {
		return false
	}
	if m.stale(d) { // the last valid definition is not valid any more beside the other ones
		delete(m.current, k)
		return true
	}
	m.reject(k, *p)
	switch last := l.last.definitions[k]; {
	case last == nil:
		m.placesUnknown = true
	case reject(last) == nil:
		m.current[k] = last.movedTo(m.declared[k][0])
	}
	return true
}

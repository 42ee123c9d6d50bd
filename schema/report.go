package schema

import (
	"net/url"
	"slices"
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

func (d *decoder) reportTo(raw *rawReport) *Report {
	if raw == nil {
		return nil
	}
	at := document.Path{"report", "url"}
	r := &Report{URL: strings.TrimSpace(raw.URL), Credentials: raw.Credentials}
	const marker = "0node0"
	u := d.destination(r.URLOf(marker), at, "http", "https", "s3")
	switch {
	case u == nil:
	case strings.Count(u.Path, marker) != strings.Count(r.URLOf(marker), marker):
		d.report(at, "has {node} outside of its path", "write it into the path only")
	case strings.ContainsAny(u.Path, "{}"):
		d.report(at, "has a brace in its path that does not belong to {node}", "the only placeholder is {node}")
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

func (d *decoder) notify(raw *rawNotify) *Notify {
	if raw == nil {
		return nil
	}
	n := &Notify{URL: strings.TrimSpace(raw.URL), Format: NotifyFormat(raw.Format), Credentials: raw.Credentials, Cluster: raw.Cluster}
	at := document.Path{"notify", "url"}
	u := d.destination(n.URL, at, "http", "https")
	if u != nil && n.Format == NotifyAlertmanager && !strings.HasSuffix(u.Path, "/api/v2/alerts") {
		d.report(at, "is not the address of alerts of an Alertmanager", "end it with /api/v2/alerts")
	}
	return n
}

// destination checks an address to which this program sends documents, and returns it if it is one. No message contains
// the address: it may contain a password or a token.
func (d *decoder) destination(text string, at document.Path, schemes ...string) *url.URL {
	rest, forced := strings.CutPrefix(text, "s3::")
	forced = forced && slices.Contains(schemes, "s3")
	if forced {
		text = rest
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme == "":
		d.report(at, "is not an address", "write the whole address, like https://example.com/path")
	case !slices.Contains(schemes, u.Scheme) || forced && u.Scheme == "s3":
		d.report(at, "has a scheme that is not supported", "use "+strings.Join(schemes, ", "))
	case u.Host == "":
		d.report(at, "has no host", "write the whole address, like https://example.com/path")
	case u.User != nil && (u.Scheme != "s3" || hasPassword(u.User)): // s3://bucket@region is Longhorn's form
		d.report(at, "contains a user", "put user and password into a folder below --secrets-dir, and set credentials to its name")
	case u.Fragment != "":
		d.report(at, "has a fragment", "remove the part from # on: it is never sent")
	case strings.HasSuffix(u.Path, "/") && slices.Contains(schemes, "s3"):
		d.report(at, "does not name a file", "end it with a name, like /{node}.json")
	case !d.host(u, at, "invalid URL") || (forced || u.Scheme == "s3") && !d.object(u, at):
	default:
		return u
	}
	return nil
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

package schema

import (
	"net/url"
	"strings"
)

// Report is where each node puts its status document.
type Report struct {
	URL         string `json:"url"`                   // usually with nodePlaceholder
	Credentials string `json:"credentials,omitempty"` // name of a folder below --secrets-dir; "": none
}

// nodePlaceholder stands for the name of the node in the address of a report.
const nodePlaceholder = "{node}"

// URLOf returns the address for the document of a node. It may contain secrets. The name of a node needs no escape.
func (r Report) URLOf(node string) string { return strings.ReplaceAll(r.URL, nodePlaceholder, node) }

// Server returns the scheme and host of the address, or the bucket, without secrets.
func (r Report) Server() string { return server(r.URL) }

// server returns the scheme and host, or the bucket, of a valid address.
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

// NamesNode reports whether each node has its own address.
func (r Report) NamesNode() bool { return strings.Contains(r.URL, nodePlaceholder) }

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

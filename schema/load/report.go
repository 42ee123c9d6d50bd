package load

import (
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

func (f fields) reportTo() *schema.Report {
	declared, ok := f.in("report")
	if !ok {
		return nil
	}
	r := &schema.Report{URL: declared.trimmed("url"), Credentials: declared.text("credentials")}
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

func (f fields) notify() *schema.Notify {
	declared, ok := f.in("notify")
	if !ok {
		return nil
	}
	n := &schema.Notify{
		URL: declared.trimmed("url"), Format: schema.NotifyFormat(declared.text("format")),
		Credentials: declared.text("credentials"), Cluster: declared.text("cluster"),
	}
	at := declared.of("url")
	u := at.destination(n.URL, "http", "https")
	if u != nil && n.Format == schema.NotifyAlertmanager && !strings.HasSuffix(u.Path, "/api/v2/alerts") {
		at.report("is not the address of alerts of an Alertmanager", "end it with /api/v2/alerts")
	}
	return n
}

// checkDestination checks the setting report or notify against the other settings and the nodes. For example, two nodes must
// not write the same document. It reports whether it replaced or removed the definition that is in force for the setting.
func (m *merger) checkDestination(l *Loader, setting string) (changed bool) {
	k := key{settingsSection, setting}
	reject := func(d *definition) *document.Problem {
		switch r := d.checked.settings; {
		case len(d.checked.loopback) > 0 && !m.settings.AllowLoopbackSources:
			p := d.place(d.checked.loopback[0])
			return &p
		case r != nil && r.Report != nil && !r.Report.NamesNode() && len(m.all(nodesSection)) > 1:
			p := d.placeNative(document.Problem{Path: document.Path{"report", "url"},
				Message: "does not contain {node}: the nodes would overwrite each other's document", Hint: "write it into the path, like /{node}.json"})
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
	if m.stale(d) { // the last valid definition does not fit the other settings and the nodes any more
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

package web

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"time"

	"github.com/klauspost/compress/gzhttp"

	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

//go:embed assets templates
var files embed.FS

// parseTemplates returns the templates of a page below a prefix.
func parseTemplates(prefix string) *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{
		"size":      report.Size,
		"stateOf":   stateOf,
		"why":       why,
		"checksums": checksums,
		"signers":   signers,
		"count":     report.Count,
		"text":      func(v any) string { return text.Line(fmt.Sprint(v)) },
		"when":      when,
		"path":      url.PathEscape,
		"prefix":    func() string { return prefix },
	}).ParseFS(files, "templates/*.html"))
}

// when formats a time for people; the script shows it in the time zone of the reader.
func when(t time.Time) template.HTML {
	if t.IsZero() {
		return ""
	}
	utc := t.UTC()
	return template.HTML(fmt.Sprintf(`<time datetime="%s">%s</time>`, utc.Format(time.RFC3339), utc.Format("2006-01-02 15:04:05 UTC")))
}

// Options are what a Site needs from the daemon.
type Options struct {
	// View returns the last round, nil before the first one. Status also returns its document. NextRound returns a channel
	// that is closed when View returns a later round.
	View      func() *status.View
	Status    func() (*status.View, status.Status)
	NextRound func() <-chan struct{}
	// Auth decides who may read. IsDeclared reports whether a host name belongs to a declared node.
	Auth       *auth.Authorizer
	IsDeclared func(host string) bool
	// Prefix is the path below which readers see the page, such as "/images"; "": the root.
	Prefix string
	// Dir is the config directory, for people.
	Dir string
}

// Site serves the page. It is safe for concurrent use.
type Site struct {
	options   Options
	templates *template.Template
	snapshots snapshots
	assets    map[string]string // address of each file
}

// New returns the Site of a daemon.
func New(o Options) *Site {
	return &Site{options: o, templates: parseTemplates(o.Prefix), snapshots: snapshots{status: o.Status}, assets: assetLinks(o.Prefix)}
}

// request is which part of a view a reader wants, and the role of the reader.
type request struct {
	query
	values url.Values
	name   string // of an image, from the path
	role   auth.Role
	dir    string // the config directory
}

// view is one view of the page.
type view struct {
	pattern  string
	name     string // in the navigation; "": the view has the name of its image
	template string
	// model returns what the template shows, and the HTTP status.
	model func(*snapshot, request) (any, int)
}

var views = []view{
	{"/{$}", "Images", "cluster", newCluster},
	{"/images/{name}", "", "image", newImage},
	{"/disks", "Nodes and disks", "disks", newDisks},
	{"/plan", "Plan", "plan", newPlan},
	{"/configuration", "Configuration", "configuration", newConfiguration},
	{"/lines", "Lines to commit", "lines", newLines},
}

// Route is one path of the page.
type Route struct {
	Pattern string
	Methods []string // nil: the handler checks the method, and accepts a body
	Handler http.HandlerFunc
}

// Routes returns the routes of the page. They authorize their readers themselves, because a reader without
// credentials gets a page, too.
func (s *Site) Routes() []Route {
	read := []string{http.MethodGet, http.MethodHead}
	routes := []Route{
		{"/assets/{file}", read, s.asset},
		{"/signin", nil, s.signIn},
		{"/signout", []string{http.MethodPost}, s.signOut},
	}
	for _, v := range views {
		serve := func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, v) }
		routes = append(routes, Route{v.pattern, read, compressed(http.HandlerFunc(serve))})
	}
	return routes
}

// securityPolicy allows only what comes from this daemon.
const securityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

func setSecurity(h http.Header) {
	h.Set("Content-Security-Policy", securityPolicy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// page is what the layout shows around a view.
type page struct {
	Node    string
	Title   string
	Current string // the name of the view in the navigation
	Role    string
	Session string // the request token of the session; "": there is none
	Tag     string // of Main, for the script; "": there is no live view
	Main    template.HTML
	Style   string
	Script  string
	Mark    string
	Refresh string // the address to load at once instead; "": none
}

func (s *Site) page(title string) page {
	return page{Title: title, Style: s.assets["style.css"], Script: s.assets["page.js"], Mark: s.assets["mark.svg"]}
}

// serve sends a page with a view. With the parameter "poll", it waits until the tag of the view differs from the parameter,
// and sends only the view, or 204 if the view did not change.
func (s *Site) serve(w http.ResponseWriter, r *http.Request, v view) {
	setSecurity(w.Header())
	role, err := s.options.Auth.AuthorizePage(r, s.options.IsDeclared)
	if err == nil && role < auth.RolePeer {
		err = httperror.New(http.StatusForbidden, "role %s is required", auth.RolePeer)
	}
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	values := r.URL.Query()
	tag := values.Get("poll")
	if !auth.Admit(r.Context(), tag != "") {
		auth.ErrTooManyConnections.Write(w)
		return
	}
	values.Del("poll")
	of := request{parseQuery(values), values, r.PathValue("name"), role, s.options.Dir}
	key := r.URL.Path + "?" + values.Encode()
	ctx, cancel := context.WithTimeout(r.Context(), maxPoll)
	defer cancel()
	for {
		next := s.options.NextRound()
		now := s.snapshots.current(s.options.View())
		out := starting
		if now != nil {
			if out, err = now.render(s.templates, key, of, v); err != nil {
				panic("web: render a view: " + err.Error()) // a fault of a template: the server logs it
			}
		}
		switch {
		case tag == "":
			p := s.page(cmp.Or(v.name, of.name))
			p.Current, p.Role, p.Tag, p.Main = p.Title, role.String(), out.tag, out.html
			if v := s.options.View(); v != nil {
				p.Node = v.Desired.Node
			}
			if session, ok := s.options.Auth.Session(r); ok {
				p.Session = session.RequestToken
			}
			s.write(w, out.code, p)
			return
		case now != nil && out.tag != tag: // before the first round, an open page keeps what it shows
			w.Header().Set("X-View", out.tag)
			send(w, http.StatusOK, []byte(out.html))
			return
		}
		took, busy := time.Duration(0), false
		if now != nil {
			took, busy = now.took, now.busy
		}
		if WaitForChange(ctx, next, took, busy); ctx.Err() != nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
	}
}

// starting is the view before the first round.
var starting = rendered{
	html: `<section class="note" data-live id="note"><h1>Starting</h1><p>The daemon has not read its disks yet.</p></section>`,
	tag:  "starting", code: http.StatusServiceUnavailable,
}

// write sends a whole page.
func (s *Site) write(w http.ResponseWriter, code int, p page) {
	var b bytes.Buffer
	if err := s.templates.ExecuteTemplate(&b, "layout", p); err != nil {
		panic("web: render the page: " + err.Error())
	}
	send(w, code, b.Bytes())
}

// compressed compresses the response of a handler by gzip, if the response is long enough and the reader accepts gzip.
var compressed = func() func(http.Handler) http.HandlerFunc {
	wrap, err := gzhttp.NewWrapper(gzhttp.EnableZstd(false), gzhttp.MinSize(4<<10))
	if err != nil {
		panic("web: " + err.Error()) // the options are valid
	}
	return wrap
}()

func send(w http.ResponseWriter, code int, content []byte) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(content) // fails if the reader has closed the connection
}

package web

import (
	"bytes"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/klauspost/compress/gzhttp"

	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

// refused is the page for a reader without a role.
type refused struct {
	Message string
	SignIn  bool   // a token would help
	Next    string // the address to show after the sign-in
	Reload  bool   // this page loads Next at once: only then the browser sends the cookie of a session
}

// refuse sends the reason why a reader gets no view. If a token would help, the page asks for one.
func (s *Site) refuse(w http.ResponseWriter, r *http.Request, err error) {
	denied := httperror.New(http.StatusForbidden, "%v", err)
	if e, ok := errors.AsType[*httperror.Error](err); ok {
		denied = e
	}
	w.Header().Set("Connection", "close")
	w.Header().Set(gzhttp.HeaderNoCompression, "true") // strangers cost no compression
	if r.URL.Query().Has("poll") {
		denied.Write(w)
		return
	}
	model := refused{Message: denied.Message}
	if s.options.Auth.CanSignIn() && denied.Status == http.StatusUnauthorized {
		model.SignIn, model.Next = true, s.next(r.URL.RequestURI())
		model.Reload = r.Header.Get("Sec-Fetch-Site") == "cross-site"
		model.Message = "This daemon shows its state to callers with a token only."
	}
	s.writeRefused(w, denied.Status, model)
}

func (s *Site) writeRefused(w http.ResponseWriter, code int, model refused) {
	var main bytes.Buffer
	if err := s.templates.ExecuteTemplate(&main, "refused", model); err != nil {
		panic("web: render a refusal: " + err.Error())
	}
	p := s.page("Not allowed")
	if model.SignIn {
		p.Title = "Sign in"
	}
	if model.Reload {
		p.Refresh = s.options.Prefix + model.Next
	}
	p.Main = template.HTML(main.String()) // escaped by the template
	s.write(w, code, p)
}

// next returns the path and the query in text, without the prefix, if they are those of a view. It returns "/" for anything
// else, because another site can choose text.
func (s *Site) next(text string) string {
	u, err := url.Parse(strings.TrimPrefix(text, s.options.Prefix))
	if err != nil || u.Scheme != "" || u.Host != "" || u.Opaque != "" || u.User != nil || !strings.HasPrefix(u.Path, "/") || u.Path != path.Clean(u.Path) || strings.Contains(u.Path, "\\") {
		return "/"
	}
	switch first, _, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/"); first {
	case "", "images", "disks", "plan", "configuration", "lines":
		return (&url.URL{Path: u.Path, RawQuery: u.Query().Encode()}).String()
	}
	return "/"
}

// maxSignIn limits the size of the form with a token.
const maxSignIn = 8 << 10

// signIn starts a session, and redirects to the view that the reader wanted to see.
func (s *Site) signIn(w http.ResponseWriter, r *http.Request) {
	setSecurity(w.Header())
	w.Header().Set("Connection", "close")
	next := "/"
	switch r.Method {
	case http.MethodGet:
		s.writeRefused(w, http.StatusOK, refused{SignIn: s.options.Auth.CanSignIn(), Next: next, Message: "Sign in with a token of this daemon."})
		return
	case http.MethodPost:
	default:
		w.Header().Set("Allow", "GET, POST")
		httperror.New(http.StatusMethodNotAllowed, "method not allowed: use GET or POST").Write(w)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxSignIn)
	if err := r.ParseForm(); err != nil {
		httperror.New(http.StatusBadRequest, "the form cannot be read").Write(w)
		return
	}
	next = s.next(r.PostForm.Get("next"))
	err := s.options.Auth.SignIn(w, r, strings.TrimSpace(r.PostForm.Get("token")))
	if denied, ok := errors.AsType[*httperror.Error](err); ok {
		s.writeRefused(w, denied.Status, refused{SignIn: s.options.Auth.CanSignIn(), Next: next, Message: denied.Message})
		return
	}
	http.Redirect(w, r, s.options.Prefix+next, http.StatusSeeOther)
}

// signOut ends the session of the reader.
func (s *Site) signOut(w http.ResponseWriter, r *http.Request) {
	setSecurity(w.Header())
	if denied, ok := errors.AsType[*httperror.Error](s.options.Auth.SignOut(w, r)); ok {
		denied.Write(w)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

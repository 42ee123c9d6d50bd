package fetch

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// recorder is a server that keeps the requests that it receives.
type recorder struct {
	*httptest.Server
	got []string // METHOD HOSTLESS-URI CONTENT-TYPE AUTHORIZATION BODY
}

func startRecorder(t *testing.T, answer http.HandlerFunc) *recorder {
	r := &recorder{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err != nil {
			t.Error(err)
		}
		r.got = append(r.got, fmt.Sprint(q.Method, " ", q.RequestURI, " ", q.Header.Get("Content-Type"), " ", q.Header.Get("Authorization"), " ", string(body)))
		answer(w, q)
	}))
	t.Cleanup(r.Close)
	return r
}

func TestSendDelivers(t *testing.T) {
	f := newFixture(t)
	f.writeCredentials("hook", map[string]string{"token": secretMarker})
	s := startRecorder(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for _, method := range []string{http.MethodPut, http.MethodPost} {
		m := Message{URL: s.URL + "/a%20b/x.json?key=" + secretMarker, Credentials: "hook", Method: method, ContentType: "application/json", Body: []byte("{}")}
		if err := f.client.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	const rest = " /a%20b/x.json?key=" + secretMarker + " application/json Bearer " + secretMarker + " {}"
	if want := []string{"PUT" + rest, "POST" + rest}; fmt.Sprint(s.got) != fmt.Sprint(want) {
		t.Errorf("the server got %q, want %q", s.got, want)
	}
}

func TestSendPutsAnObject(t *testing.T) {
	f := newFixture(t)
	s := startRecorder(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("ETag", `"1"`) })
	f.writeCredentials("bucket", map[string]string{"access-key-id": "key", "secret-access-key": secretMarker, "endpoint": s.URL})
	for _, url := range []string{"s3://reports/edge/node1.json", "s3::" + s.URL + "/reports/edge/node1.json", "s3://reports@eu-west-1/edge/node1.json"} {
		s.got = nil
		if err := f.client.Send(t.Context(), Message{URL: url, Credentials: "bucket", Method: http.MethodPut, ContentType: "application/json", Body: []byte("{}")}); err != nil {
			t.Fatal(err)
		}
		if len(s.got) != 1 || !strings.HasPrefix(s.got[0], "PUT /reports/edge/node1.json application/json AWS4-HMAC-SHA256 Credential=key/") || !strings.HasSuffix(s.got[0], " {}") {
			t.Errorf("%s: the server got %q", url, s.got)
		}
	}
	wantError(t, f.client.Send(t.Context(), Message{URL: "s3://reports/x", Credentials: "bucket", Method: http.MethodPost}), BadConfig, "not supported")
	wantError(t, f.client.Send(t.Context(), Message{URL: "s3://reports/", Credentials: "bucket", Method: http.MethodPut}), BadConfig, "object")
	if len(s.got) != 1 {
		t.Errorf("the server got %q", s.got[1:])
	}
}

// No redirect is followed: the other server must get neither the message nor the credentials.
func TestSendDoesNotFollowRedirects(t *testing.T) {
	f := newFixture(t)
	f.writeCredentials("hook", map[string]string{"username": "ann", "password": secretMarker})
	other := startRecorder(t, func(http.ResponseWriter, *http.Request) {})
	for _, code := range []int{301, 302, 303, 307, 308} {
		s := startRecorder(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL+"/?"+secretMarker, code) })
		err := f.client.Send(t.Context(), Message{URL: s.URL + "/x", Credentials: "hook", Method: http.MethodPut})
		wantError(t, err, Refused, fmt.Sprint(code), "not followed")
	}
	if len(other.got) > 0 {
		t.Errorf("the other server got %q", other.got)
	}
}

func TestSendClassifiesFailures(t *testing.T) {
	f := newFixture(t)
	f.writeCredentials("hook", map[string]string{"token": secretMarker})
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "77")
			w.WriteHeader(code)
			fmt.Fprint(w, secretMarker)
		}
	}
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		class  Class
		word   string
	}{
		{"overload", status(503), Network, "503 Service Unavailable"},
		{"too many", status(429), Network, "429"},
		{"forbidden", status(403), Refused, "does not accept the credentials"},
		{"too large", status(413), Refused, "413"},
		{"no response", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, Network, "no response in time"},
		{"broken", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, Dropped, "connection broke"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := startRecorder(t, tt.answer)
			if f.client.timing = defaultTiming; tt.word == "no response in time" {
				f.client.timing.firstByte = 500 * time.Millisecond
			}
			err := f.client.Send(t.Context(), Message{URL: s.URL + "/x?" + secretMarker, Credentials: "hook", Method: http.MethodPost, Body: []byte("{}")})
			wantError(t, err, tt.class, tt.word)
			if e := (*Error)(nil); errors.As(err, &e) && strings.HasPrefix(tt.word, "503") && e.RetryAfter != 77*time.Second {
				t.Errorf("RetryAfter is %v", e.RetryAfter)
			}
			if len(s.got) != 1 {
				t.Errorf("the server got %q", s.got)
			}
		})
	}
}

func TestSendRefusesAddresses(t *testing.T) {
	f := newFixture(t)
	f.writeCredentials("hook", map[string]string{"token": secretMarker})
	for _, tt := range []struct{ url, word string }{
		{"http://status.example.com/x", "unencrypted"},
		{"file:///etc/passwd", "not supported"},
		{"https://u:" + secretMarker + "@a.example/x", "contains a user or password"},
		{"file://", "no path"},
	} {
		wantError(t, f.client.Send(t.Context(), Message{URL: tt.url, Credentials: "hook", Method: http.MethodPut}), BadConfig, tt.word)
	}
	f.client.AllowLoopback = false
	s := startRecorder(t, func(http.ResponseWriter, *http.Request) {})
	wantError(t, f.client.Send(t.Context(), Message{URL: s.URL + "/x", Method: http.MethodPut}), BadConfig, "loopback")
	if len(s.got) > 0 {
		t.Errorf("the server got %q", s.got)
	}
}

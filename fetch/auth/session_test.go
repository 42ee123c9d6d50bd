package auth

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

const (
	peerToken  = "0123456789a-peer"
	adminToken = "0123456789a-admin"
)

// signIn signs in and returns the cookie.
func signIn(t *testing.T, a *Authorizer, token string) *http.Cookie {
	t.Helper()
	w := httptest.NewRecorder()
	if err := a.SignIn(w, httptest.NewRequest("POST", "http://images.example/signin", nil), token); err != nil {
		t.Fatal(err)
	}
	return w.Result().Cookies()[0]
}

// send returns a request with cookies and headers.
func send(method string, cookie *http.Cookie, header ...string) *http.Request {
	r := httptest.NewRequest(method, "http://images.example/", nil)
	r.AddCookie(cookie)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

func statusOf(err error) int {
	if e, ok := errors.AsType[*httperror.Error](err); ok {
		return e.Status
	}
	return 0
}

func TestSessionHasTheRoleOfItsToken(t *testing.T) {
	a := newAuthorizer(t, loadTokenText(t, "peer "+peerToken+"\nadmin "+adminToken), ":8000", false)
	for token, want := range map[string]Role{peerToken: RolePeer, adminToken: RoleAdmin} {
		cookie := signIn(t, a, token)
		if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || cookie.Path != "/" || cookie.Domain != "" {
			t.Errorf("the cookie is %v", cookie)
		}
		if strings.Contains(cookie.Value, token) {
			t.Error("the cookie contains the token")
		}
		s, ok := a.Session(send("GET", cookie))
		if !ok || s.Role != want {
			t.Errorf("got %+v, %v", s, ok)
		}
		for _, tt := range []struct {
			what string
			r    *http.Request
			role Role
		}{
			{"a read", send("GET", cookie), want},
			{"a change without the request token", send("POST", cookie), RoleNone},
			{"a change with a wrong request token", send("POST", cookie, RequestTokenHeader, "x"), RoleNone},
			{"a change", send("POST", cookie, RequestTokenHeader, s.RequestToken), want},
			{"a change by its own page", send("POST", cookie, RequestTokenHeader, s.RequestToken, "Origin", "http://images.example", "Sec-Fetch-Site", "same-origin"), want},
			{"a change by another page", send("POST", cookie, RequestTokenHeader, s.RequestToken, "Origin", "https://evil.example"), RoleNone},
			{"a read by another page", send("GET", cookie, "Sec-Fetch-Site", "cross-site"), RoleNone},
			{"a change by a page of the same site", send("POST", cookie, RequestTokenHeader, s.RequestToken, "Sec-Fetch-Site", "same-site"), RoleNone},
		} {
			if role, err := a.Authorize(tt.r, noHost); role != tt.role {
				t.Errorf("%s has role %v (error %v), want %v", tt.what, role, err, tt.role)
			}
		}
	}
}

func TestForgedAndOldSessionsAreNotValid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthorizer(t, loadTokenText(t, adminToken), ":8000", false)
		cookie := signIn(t, a, adminToken)
		valid := func(value string) bool {
			_, ok := a.Session(send("GET", &http.Cookie{Name: cookie.Name, Value: value}))
			return ok
		}
		raw, _ := base64.RawURLEncoding.DecodeString(cookie.Value)
		for i := range len(raw) * 8 {
			changed := append([]byte{}, raw...)
			changed[i/8] ^= 1 << (i % 8)
			if valid(base64.RawURLEncoding.EncodeToString(changed)) {
				t.Errorf("with bit %d changed, the session is valid", i)
			}
		}
		for _, value := range []string{"", "x", cookie.Value + "A", cookie.Value[:20], adminToken} {
			if valid(value) {
				t.Errorf("%q is valid", value)
			}
		}
		// An attacker may set a cookie before that of the user.
		r := send("GET", &http.Cookie{Name: cookie.Name, Value: base64.RawURLEncoding.EncodeToString(make([]byte, len(raw)))})
		r.AddCookie(cookie)
		if _, ok := a.Session(r); !ok {
			t.Error("a false cookie hides the right one")
		}
		time.Sleep(sessionLifetime - time.Second)
		if !valid(cookie.Value) {
			t.Error("the session ends early")
		}
		time.Sleep(2 * time.Second)
		if valid(cookie.Value) {
			t.Error("the session does not end")
		}
	})
}

// A session never lasts longer than its lifetime, also if the clock was ahead when it began, and was corrected then.
func TestSessionFromAClockThatWasAhead(t *testing.T) {
	a := newAuthorizer(t, loadTokenText(t, adminToken), ":8000", false)
	now := time.Now()
	for ahead, want := range map[time.Duration]bool{0: true, 50 * time.Second: true, 70 * time.Second: false, 1000 * time.Hour: false} {
		var id sessionID
		binary.BigEndian.PutUint64(id[:8], uint64(now.Add(ahead+sessionLifetime).Unix()))
		value := base64.RawURLEncoding.EncodeToString(append(id[:], id.code(roleToken{RoleAdmin, adminToken}, "session")...))
		if _, _, ok := a.session(send("GET", &http.Cookie{Name: sessionCookie, Value: value}), now); ok != want {
			t.Errorf("with a clock that was %v ahead, the session is valid: %v, want %v", ahead, ok, want)
		}
	}
}

// A new sign-in has a new session, whatever the browser had before.
func TestSignInReplacesTheSession(t *testing.T) {
	a := newAuthorizer(t, loadTokenText(t, adminToken), ":8000", false)
	first, second := signIn(t, a, adminToken), signIn(t, a, adminToken)
	if first.Value == second.Value {
		t.Error("two sessions are equal")
	}
}

func TestSignOutEndsTheSession(t *testing.T) {
	a := newAuthorizer(t, loadTokenText(t, adminToken), ":8000", false)
	cookie := signIn(t, a, adminToken)
	s, _ := a.Session(send("GET", cookie))
	if err := a.SignOut(httptest.NewRecorder(), send("POST", cookie)); statusOf(err) != http.StatusForbidden {
		t.Errorf("without the request token: %v", err)
	}
	if err := a.SignOut(httptest.NewRecorder(), send("POST", cookie, RequestTokenHeader, s.RequestToken, "Origin", "https://evil.example")); statusOf(err) != http.StatusForbidden {
		t.Errorf("by another page: %v", err)
	}
	if _, ok := a.Session(send("GET", cookie)); !ok {
		t.Fatal("a refused request ended the session")
	}
	w := httptest.NewRecorder()
	if err := a.SignOut(w, send("POST", cookie, RequestTokenHeader, s.RequestToken)); err != nil {
		t.Fatal(err)
	}
	if got := w.Result().Cookies()[0]; got.MaxAge >= 0 || got.Value != "" {
		t.Errorf("the cookie stays: %v", got)
	}
	if _, ok := a.Session(send("GET", cookie)); ok {
		t.Error("a copy of the cookie is still valid")
	}
}

// A caller with a token of the role peer may sign out as often as it likes: that takes limited memory, brings no ended session
// back, and ends no session of an admin.
func TestSignedOutSessionsTakeLimitedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthorizer(t, loadTokenText(t, "peer "+peerToken+"\nadmin "+adminToken), ":8000", false)
		valid := func(cookie *http.Cookie) bool { _, ok := a.Session(send("GET", cookie)); return ok }
		signOut := func(cookie *http.Cookie) {
			t.Helper()
			s, _ := a.Session(send("GET", cookie))
			if err := a.SignOut(httptest.NewRecorder(), send("POST", cookie, RequestTokenHeader, s.RequestToken)); err != nil {
				t.Fatal(err)
			}
		}
		ended, admin := signIn(t, a, peerToken), signIn(t, a, adminToken)
		signOut(ended)
		for range maxSignedOut {
			signOut(signIn(t, a, peerToken))
		}
		if n := len(a.signedOut.of[RolePeer].all); n > maxSignedOut {
			t.Errorf("%d sessions are stored", n)
		}
		if valid(ended) {
			t.Error("an ended session is valid again")
		}
		if !valid(admin) {
			t.Error("the session of an admin has ended")
		}
		time.Sleep(time.Second)
		if !valid(signIn(t, a, peerToken)) {
			t.Error("a new session is not valid")
		}
	})
}

// Sessions survive a restart, and end when their token is removed.
func TestSessionDependsOnItsToken(t *testing.T) {
	load := func(text string) *Authorizer { return newAuthorizer(t, loadTokenText(t, text), ":8000", false) }
	cookie := signIn(t, load("admin "+adminToken), adminToken)
	if _, ok := load("peer " + peerToken + "\nadmin " + adminToken).Session(send("GET", cookie)); !ok {
		t.Error("the session ends with a restart")
	}
	if s, ok := load("peer " + adminToken).Session(send("GET", cookie)); ok {
		t.Errorf("the session has role %v after its token got another one", s.Role)
	}
	if s, _ := load("peer " + adminToken + "\nadmin " + adminToken).Session(send("GET", cookie)); s.Role != RoleAdmin {
		t.Errorf("the session has role %v, and its token both", s.Role)
	}
	if _, ok := load("admin " + peerToken).Session(send("GET", cookie)); ok {
		t.Error("the session is valid without its token")
	}
}

func TestSecureCookieWithTLS(t *testing.T) {
	a := newAuthorizer(t, loadTokenText(t, adminToken), ":8000", false)
	for name, change := range map[string]func(*http.Request){
		"TLS":   func(r *http.Request) { r.TLS = &tls.ConnectionState{} },
		"proxy": func(r *http.Request) { r.Header.Set("X-Forwarded-Proto", "https") },
	} {
		r := httptest.NewRequest("POST", "/signin", nil)
		r.TLS = nil
		change(r)
		w := httptest.NewRecorder()
		if err := a.SignIn(w, r, adminToken); err != nil {
			t.Fatal(err)
		}
		cookie := w.Result().Cookies()[0]
		if !cookie.Secure || !strings.HasPrefix(cookie.Name, "__Host-") {
			t.Errorf("%s: the cookie is %v", name, cookie)
		}
		// A cookie that was set over plain HTTP does not count.
		r = send("GET", &http.Cookie{Name: sessionCookie, Value: cookie.Value})
		change(r)
		if _, ok := a.Session(r); ok {
			t.Errorf("%s: the name of a cookie without TLS counts", name)
		}
	}
}

func TestWrongTokensAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthorizer(t, loadTokenText(t, adminToken), ":8000", false)
		attempt := func(from, token string) int {
			r := httptest.NewRequest("POST", "/signin", nil)
			r.RemoteAddr = from
			w := httptest.NewRecorder()
			err := a.SignIn(w, r, token)
			if (statusOf(err) == http.StatusTooManyRequests) != (w.Header().Get("Retry-After") != "") {
				t.Errorf("%v with Retry-After %q", err, w.Header().Get("Retry-After"))
			}
			return statusOf(err)
		}
		const attacker, user = "10.0.0.1:5", "10.0.0.2:5"
		began := time.Now()
		for i := range maxGuesses {
			if got := attempt(attacker, "wrong"); got != http.StatusUnauthorized {
				t.Fatalf("attempt %d: %d", i, got)
			}
		}
		if took := time.Since(began); took < maxGuesses*wrongTokenDelay {
			t.Errorf("%d wrong tokens took %v", maxGuesses, took)
		}
		for _, token := range []string{"wrong", adminToken} {
			if got := attempt(attacker, token); got != http.StatusTooManyRequests {
				t.Errorf("after too many attempts: %d", got)
			}
		}
		if got := attempt(user, adminToken); got != 0 {
			t.Errorf("another network: %d", got)
		}
		time.Sleep(guessInterval)
		if got := attempt(attacker, adminToken); got != 0 {
			t.Errorf("after a while: %d", got)
		}
		// Many networks do not take more memory.
		for i := range maxGuessers + 100 {
			a.guesses.add(networkOfAddress(fmt.Sprintf("11.0.%d.%d:1", i/256, i%256)), time.Now())
		}
		if n := len(a.guesses.from); n > maxGuessers+1 {
			t.Errorf("%d networks are stored", n)
		}
	})
}

// Behind a proxy on this machine, the wrong tokens of one caller do not count for the others. No other caller can choose for whom
// its wrong tokens count.
func TestWrongTokensAreLimitedBehindAProxy(t *testing.T) {
	a := newAuthorizer(t, loadTokenText(t, adminToken), ":8000", false)
	for _, tt := range []struct {
		remote    string
		forwarded []string
		want      string
		byProxy   bool
	}{
		{"127.0.0.1:5", nil, "127.0.0.1/32", false},
		{"127.0.0.1:5", []string{"192.0.2.1"}, "192.0.2.1/32", true},
		{"[::1]:5", []string{"2001:db8:1:2:3::4"}, "2001:db8:1:2::/64", true},
		{"127.0.0.1:5", []string{"::ffff:192.0.2.1"}, "192.0.2.1/32", true},
		{"127.0.0.1:5", []string{"198.51.100.1, 192.0.2.1"}, "192.0.2.1/32", true}, // the caller sent the first one
		{"127.0.0.1:5", []string{"198.51.100.1", " 192.0.2.1 "}, "192.0.2.1/32", true},
		{"127.0.0.1:5", []string{"192.0.2.1, unknown"}, "127.0.0.1/32", false},
		{"127.0.0.1:5", []string{""}, "127.0.0.1/32", false},
		{"203.0.113.1:5", []string{"192.0.2.1"}, "203.0.113.1/32", false},
	} {
		r := httptest.NewRequest("POST", "/signin", nil)
		r.RemoteAddr, r.Header["X-Forwarded-For"] = tt.remote, tt.forwarded
		counted, got := a.guessesOf(r)
		if got.String() != tt.want || (counted == &a.forwarded) != tt.byProxy {
			t.Errorf("%s with X-Forwarded-For %q: %s, by a proxy: %v, want %s", tt.remote, tt.forwarded, got, !tt.byProxy, tt.want)
		}
	}
	// A process of this machine sends wrong tokens in the name of a network, and of more networks than are stored. Those who
	// connect directly can sign in.
	const user = "192.0.2.1:5"
	for range maxGuesses {
		a.forwarded.add(networkOfAddress(user), time.Now())
	}
	for i := range maxGuessers + 100 {
		a.forwarded.add(networkOfAddress(fmt.Sprintf("11.0.%d.%d:1", i/256, i%256)), time.Now())
	}
	for range maxGuesses {
		a.forwarded.add(networkOfAddress("11.1.0.0:1"), time.Now())
	}
	for remote, want := range map[string]int{user: 0, "198.51.100.1:5": 0, "127.0.0.1:5": http.StatusTooManyRequests} {
		r := httptest.NewRequest("POST", "/signin", nil)
		r.RemoteAddr = remote
		r.Header.Set("X-Forwarded-For", "192.0.2.1")
		if err := a.SignIn(httptest.NewRecorder(), r, adminToken); statusOf(err) != want {
			t.Errorf("from %s: %v, want %d", remote, err, want)
		}
	}
}

// Behind a proxy with TLS, the pages have another scheme than the daemon.
func TestOriginBehindAProxy(t *testing.T) {
	a := newAuthorizer(t, loadTokenText(t, adminToken), ":8000", false)
	for origin, want := range map[string]int{"https://images.example": 0, "http://images.example": http.StatusForbidden, "https://images.example:8443": http.StatusForbidden, "https://evil.example": http.StatusForbidden} {
		r := httptest.NewRequest("POST", "http://images.example/signin", nil)
		r.Header.Set("X-Forwarded-Proto", "https")
		r.Header.Set("Origin", origin)
		if err := a.SignIn(httptest.NewRecorder(), r, adminToken); statusOf(err) != want {
			t.Errorf("a page of %s: %v", origin, err)
		}
	}
}

// Other services on the host may have set cookies with the name of the session, as many as browsers store for a host.
func TestOtherCookiesDoNotHideTheSession(t *testing.T) {
	a := newAuthorizer(t, loadTokenText(t, adminToken), ":8000", false)
	cookie := signIn(t, a, adminToken)
	other := signIn(t, newAuthorizer(t, loadTokenText(t, "admin "+peerToken), ":8001", false), peerToken)
	for name, value := range map[string]string{"no session": "x", "of another daemon": other.Value} {
		r := httptest.NewRequest("GET", "http://images.example/", nil)
		for range 180 {
			r.AddCookie(&http.Cookie{Name: cookie.Name, Value: value})
		}
		r.AddCookie(cookie)
		if _, ok := a.Session(r); !ok {
			t.Errorf("after other cookies (%s), the session is not found", name)
		}
	}
}

// A session that was signed out stays so, whatever roles its token gets.
func TestRolesDoNotBringSessionsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "tokens")
		write := func(text string) {
			t.Helper()
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(reloadInterval)
		}
		write("peer " + peerToken)
		c, err := Load(slog.New(slog.DiscardHandler), file, TLSFiles{})
		if err != nil {
			t.Fatal(err)
		}
		a := newAuthorizer(t, c, ":8000", false)
		ended, open := signIn(t, a, peerToken), signIn(t, a, peerToken)
		s, _ := a.Session(send("GET", ended))
		if err := a.SignOut(httptest.NewRecorder(), send("POST", ended, RequestTokenHeader, s.RequestToken)); err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			text string
			open Role
		}{
			{"peer " + peerToken, RolePeer}, {"admin " + peerToken, RoleNone}, {"admin " + adminToken, RoleNone},
			{"peer " + peerToken + "\nadmin " + adminToken, RolePeer}, {peerToken, RoleNone},
		} {
			write(tt.text)
			if s, ok := a.Session(send("GET", ended)); ok {
				t.Errorf("with %q, the session that was signed out has role %v", tt.text, s.Role)
			}
			if s, _ := a.Session(send("GET", open)); s.Role != tt.open {
				t.Errorf("with %q, the other session has role %v, want %v", tt.text, s.Role, tt.open)
			}
		}
	})
}

package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"maps"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

// A session is what a browser has in place of a token: a cookie that proves that its owner sent a token. The daemon
// does not store sessions: the cookie has the time at which the session ends, random bytes, and an HMAC of both with a key
// that is derived from the token and its role. So a session survives a restart, and ends when its token is removed or gets
// another role. The daemon stores only signed-out sessions, until they would have ended, or the daemon stops.
//
// A browser sends the cookie with every request, whichever page causes it. So a request that changes state also needs
// RequestToken in the header RequestTokenHeader. Only a page of the same origin can read that token.

const (
	sessionCookie       = "backing-image-manager-session"
	secureSessionCookie = "__Host-" + sessionCookie // browsers accept it over TLS only, and for this host only

	// sessionLifetime is how long a session lasts after it began.
	sessionLifetime = 12 * time.Hour

	// maxClockStep is the most by which the clock may have been set back since a session began. After a larger step,
	// the session would last too long, and does not count.
	maxClockStep = time.Minute

	// RequestTokenHeader is the header with Session.RequestToken.
	RequestTokenHeader = "X-Request-Token"
)

// Session is a session that is valid now.
type Session struct {
	Role Role
	// RequestToken must be in the header RequestTokenHeader of requests other than GET and HEAD.
	RequestToken string
}

// sessionID is the part of a cookie that identifies the session: its end in Unix seconds, and random bytes.
type sessionID [8 + 16]byte

func (id sessionID) ends() time.Time {
	return time.Unix(int64(binary.BigEndian.Uint64(id[:8])), 0)
}

// code returns the HMAC of a session for a purpose. It depends on the role. Otherwise, a signed-out session would be
// valid again when the token gets another role.
func (id sessionID) code(t roleToken, purpose string) []byte {
	key := hmac.New(sha256.New, []byte(t.token))
	key.Write([]byte("backing-image-manager session " + t.role.String()))
	mac := hmac.New(sha256.New, key.Sum(nil))
	mac.Write([]byte(purpose))
	mac.Write(id[:])
	return mac.Sum(nil)
}

// maxSignedOut limits how many signed-out sessions of a role are stored: whoever knows a token can begin and end any number of
// sessions.
const maxSignedOut = 4096

// signedOut has the sessions that their owners signed out, by role. If a role has too many of them, all sessions of the role
// end. It is safe for concurrent use.
type signedOut struct {
	mu sync.Mutex
	of [RoleAdmin + 1]struct {
		all   map[sessionID]bool
		until time.Time // a session counts only if it ends later
	}
}

func (s *signedOut) add(role Role, id sessionID, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := &s.of[role]
	if len(of.all) >= maxSignedOut {
		of.until, of.all = now.Add(sessionLifetime), nil
	}
	if of.all == nil {
		of.all = map[sessionID]bool{}
	}
	of.all[id] = true
}

func (s *signedOut) has(role Role, id sessionID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := &s.of[role]
	return of.all[id] || !id.ends().After(of.until)
}

// isSecure reports whether the browser uses TLS, with the daemon or with a proxy before it. A caller that sends a false
// header only gets another cookie.
func isSecure(r *http.Request) bool {
	return r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https"
}

func cookieName(r *http.Request) string {
	if isSecure(r) {
		return secureSessionCookie
	}
	return sessionCookie
}

// Session returns the session of the sender of a request, and false if it has none. It does not check whether a foreign
// page may have caused the request: Authorize does.
func (a *Authorizer) Session(r *http.Request) (Session, bool) {
	s, _, ok := a.session(r, time.Now())
	return s, ok
}

func (a *Authorizer) session(r *http.Request, now time.Time) (s Session, id sessionID, ok bool) {
	if a.tokens == nil {
		return s, id, false
	}
	// A browser also sends the cookies of other services on the same host. maxHeader of the server limits their number.
	for _, cookie := range r.CookiesNamed(cookieName(r)) {
		raw, err := base64.RawURLEncoding.DecodeString(cookie.Value)
		if err != nil || len(raw) != len(id)+sha256.Size {
			continue
		}
		copy(id[:], raw)
		if ends := id.ends(); !now.Before(ends) || ends.After(now.Add(sessionLifetime+maxClockStep)) {
			continue
		}
		for _, known := range a.tokens.current() {
			if hmac.Equal(raw[len(id):], id.code(known, "session")) {
				s = Session{known.role, base64.RawURLEncoding.EncodeToString(id.code(known, "request"))}
			}
		}
		if s.Role > RoleNone && !a.signedOut.has(s.Role, id) {
			return s, id, true
		}
		s = Session{}
	}
	return s, id, false
}

// hasRequestToken reports whether a request has the token of its session, or needs none because it changes nothing.
func (s Session) hasRequestToken(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodHead || hmac.Equal([]byte(r.Header.Get(RequestTokenHeader)), []byte(s.RequestToken))
}

// CanSignIn reports whether the daemon gives sessions. It needs tokens for that.
func (a *Authorizer) CanSignIn() bool { return a.tokens != nil }

// SignIn sets the cookie of a new session in the response if the token is valid. The error is an *httperror.Error: the token is
// not valid (401), its sender tried too often (429), or a page of another web site caused the request (403). After a wrong token,
// SignIn takes some time.
func (a *Authorizer) SignIn(w http.ResponseWriter, r *http.Request, token string) error {
	if err := checkSite(r); err != nil {
		return err
	}
	if a.tokens == nil {
		return httperror.New(http.StatusForbidden, "this daemon has no tokens, so nobody can sign in")
	}
	guesses, from := a.guessesOf(r)
	if wait := guesses.wait(from, time.Now()); wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(wait/time.Second)+1))
		return httperror.New(http.StatusTooManyRequests, "too many wrong tokens: try again in %v", (wait + time.Second).Round(time.Second))
	}
	role := a.tokens.current().role("Bearer " + token)
	if role == RoleNone {
		guesses.add(from, time.Now())
		select {
		case <-time.After(wrongTokenDelay):
		case <-r.Context().Done():
		}
		return httperror.New(http.StatusUnauthorized, "the token is not valid")
	}
	var id sessionID
	ends := time.Now().Add(sessionLifetime)
	binary.BigEndian.PutUint64(id[:8], uint64(ends.Unix()))
	_, _ = rand.Read(id[8:]) // never fails
	http.SetCookie(w, a.cookie(r, base64.RawURLEncoding.EncodeToString(append(id[:], id.code(roleToken{role, token}, "session")...)), int(sessionLifetime/time.Second)))
	return nil
}

// SignOut ends the session of the sender of a request, and removes its cookie. Like every request that changes state,
// the request needs the token of the session.
func (a *Authorizer) SignOut(w http.ResponseWriter, r *http.Request) error {
	if err := checkSite(r); err != nil {
		return err
	}
	s, id, ok := a.session(r, time.Now())
	if ok && !s.hasRequestToken(r) {
		return errNoRequestToken
	}
	if ok {
		a.signedOut.add(s.Role, id, time.Now())
	}
	http.SetCookie(w, a.cookie(r, "", -1))
	return nil
}

func (a *Authorizer) cookie(r *http.Request, value string, maxAge int) *http.Cookie {
	return &http.Cookie{Name: cookieName(r), Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true, Secure: isSecure(r), SameSite: http.SameSiteStrictMode}
}

var errNoRequestToken = httperror.New(http.StatusForbidden, "the header %s is missing or wrong: load the page again", RequestTokenHeader)

const (
	// wrongTokenDelay is how long the response to a wrong token takes.
	wrongTokenDelay = 300 * time.Millisecond
	// Each network may send some wrong tokens at once, and then one in each interval.
	guessInterval, maxGuesses = 10 * time.Second, 5
	// maxGuessers limits the memory: beyond this number of networks, all other networks share one limit.
	maxGuessers = 4096
)

// guesses limits how many wrong tokens a network may send. It is safe for concurrent use.
type guesses struct {
	mu   sync.Mutex
	from map[netip.Prefix]*rate.Limiter
}

// limiter returns the limiter of a network.
func (g *guesses) limiter(from netip.Prefix, now time.Time) *rate.Limiter {
	if g.from == nil {
		g.from = map[netip.Prefix]*rate.Limiter{}
	}
	if g.from[from] == nil && len(g.from) >= maxGuessers {
		maps.DeleteFunc(g.from, func(_ netip.Prefix, l *rate.Limiter) bool { return l.TokensAt(now) >= maxGuesses })
		if len(g.from) >= maxGuessers {
			from = netip.Prefix{}
		}
	}
	if g.from[from] == nil {
		g.from[from] = rate.NewLimiter(rate.Every(guessInterval), maxGuesses)
	}
	return g.from[from]
}

// wait returns how long a network must wait before it may send a token; 0: no time.
func (g *guesses) wait(from netip.Prefix, now time.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	missing := 1 - g.limiter(from, now).TokensAt(now)
	return max(0, time.Duration(missing*float64(guessInterval)))
}

// guessesOf returns the network for which a wrong token in a request counts, and its counter. A proxy on this machine
// writes the address of its caller to the end of X-Forwarded-For. A local process can send a false header. It gains no
// guesses by that, because wrong tokens in the HTTP API are not limited at all. It can only lock out users of the proxy.
func (a *Authorizer) guessesOf(r *http.Request) (*guesses, netip.Prefix) {
	if forwarded := r.Header.Values("X-Forwarded-For"); len(forwarded) > 0 && isLocalAddress(r.RemoteAddr) {
		last := forwarded[len(forwarded)-1]
		if ip, err := netip.ParseAddr(strings.TrimSpace(last[strings.LastIndex(last, ",")+1:])); err == nil {
			return &a.forwarded, networkOfIP(ip)
		}
	}
	return &a.guesses, networkOfAddress(r.RemoteAddr)
}

// add counts a wrong token.
func (g *guesses) add(from netip.Prefix, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limiter(from, now).AllowN(now, 1)
}

package text

import (
	"cmp"
	"encoding/json"
	"net/url"
	"regexp"
	"strings"
	"unicode"
)

// RedactURL returns an address without user, password, query and fragment, which may be secret. In s3://bucket@region/path,
// the user is a bucket, which stays. If the address is not a URL, it returns "the address", because the position of a secret
// is unknown. Package fetch prints its addresses by address.String instead.
func RedactURL(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "the address"
	}
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	if isBucket(u.Scheme, u.User.String()) {
		shown.User = u.User
	}
	return cmp.Or(shown.String(), "the address")
}

var urlPattern = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>\\]+`)

var stringLiteral = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// RedactJSON redacts the addresses in the strings of encoded JSON. A string without spaces counts as one
// address. In other strings, addresses are redacted as by Redact.
func RedactJSON(encoded []byte) []byte {
	return stringLiteral.ReplaceAllFunc(encoded, func(literal []byte) []byte {
		var s string
		if json.Unmarshal(literal, &s) != nil || !strings.Contains(s, "://") {
			return literal
		}
		if strings.ContainsFunc(s, unicode.IsSpace) {
			s = Redact(s)
		} else {
			s = cutSecrets(s)
		}
		b, err := json.Marshal(s)
		if err != nil {
			panic("text: encode a string: " + err.Error())
		}
		return b
	})
}

// Redact redacts every substring that looks like a URL.
func Redact(text string) string { return urlPattern.ReplaceAllStringFunc(text, cutSecrets) }

// cutSecrets edits the address as text and does not parse it, because a parser rejects some malformed
// addresses that contain a secret.
func cutSecrets(address string) string {
	scheme, rest, _ := strings.Cut(address, "://")
	if i := strings.IndexAny(rest, "?#"); i >= 0 {
		rest = rest[:i]
	}
	host, path := rest, ""
	if i := strings.Index(rest, "/"); i >= 0 {
		host, path = rest[:i], rest[i:]
	}
	if user, region, _ := strings.Cut(host, "@"); !isBucket(scheme, user) || strings.Contains(region, "@") {
		host = host[strings.LastIndex(host, "@")+1:]
	}
	return scheme + "://" + host + path
}

// bucketName matches the names of buckets. It matches no key or password with an upper-case letter or a colon.
var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

// isBucket reports whether the user in an address is the name of a bucket.
func isBucket(scheme, user string) bool { return scheme == "s3" && bucketName.MatchString(user) }

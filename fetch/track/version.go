package track

import (
	"cmp"
	"regexp"
	"strings"
)

// version is a version as a list of parts, the most significant first. nil is unknown.
type version []string

// String returns the version for people.
func (v version) String() string { return strings.Join(v, "-") }

// compare orders versions part by part. If one is the beginning of the other, the longer one is newer.
func (v version) compare(w version) int {
	for i := range min(len(v), len(w)) {
		if c := comparePart(v[i], w[i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(v), len(w))
}

// comparePart compares runs of digits as numbers, and the texts between them as texts: "9.10" is after "9.9", and "r10"
// after "r2".
func comparePart(a, b string) int {
	for a != "" && b != "" {
		x, y := run(a), run(b)
		a, b = a[len(x):], b[len(y):]
		c := strings.Compare(x, y)
		if isDigit(x[0]) && isDigit(y[0]) {
			x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
			c = cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y))
		}
		if c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

// run returns the digits at the beginning of s, or the characters before the first digit.
func run(s string) string {
	n := 1
	for n < len(s) && isDigit(s[n]) == isDigit(s[0]) {
		n++
	}
	return s[:n]
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

const numbers = `([0-9]+(?:[._:-][0-9]+)*)`

// versionIn returns the version in the path of a declared address: what stands where the path of another release has
// its version. The declared address may be that of a mirror, so only the end of its path is compared.
func versionIn(declared, path, versionOfPath string) (string, bool) {
	parts := strings.Split(path, versionOfPath)
	if versionOfPath == "" || len(parts) < 2 {
		return "", false
	}
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	pattern, err := regexp.Compile("(?:^|/)" + strings.Join(parts, numbers) + "$")
	if err != nil { // the path is not UTF-8
		return "", false
	}
	m := pattern.FindStringSubmatch(declared)
	if m == nil {
		return "", false
	}
	for _, other := range m[2:] {
		if other != m[1] {
			return "", false
		}
	}
	return m[1], true
}

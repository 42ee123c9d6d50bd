package track

import (
	"cmp"
	"slices"
	"strings"
)

// version is a version as a list of parts, the most significant first. nil is unknown.
type version []string

// String returns the version for people. A part may be empty.
func (v version) String() string {
	return strings.Join(slices.DeleteFunc(slices.Clone(v), func(part string) bool { return part == "" }), "-")
}

// compare orders versions part by part. If one version is the beginning of the other, the longer version is newer.
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

// versionIn returns the version in the path of a declared address. path is the path of another release, and has
// versionOfPath at the place where the declared path has its version. The declared address may be that of a mirror, so
// only the end of its path is compared. A version consists of numbers with separators.
func versionIn(declared, path, versionOfPath string) (string, bool) {
	if versionOfPath == "" || len(path) > maxName {
		return "", false
	}
	// The version may also be elsewhere in the path by chance, such as 1 in disk1.img. So each place is tried, the last
	// place first. The text after the place is compared unchanged.
	for end, places := len(path), 0; places < maxPlaces; places++ {
		end = strings.LastIndex(path[:end], versionOfPath)
		if end < 0 {
			break
		}
		if v, ok := versionBefore(declared, path[:end], path[end+len(versionOfPath):], versionOfPath); ok {
			return v, true
		}
	}
	return "", false
}

// maxPlaces limits the work of versionIn.
const maxPlaces = 8

// versionBefore returns the version at the end of a declared path: only the text in the argument after follows it. before
// is the text before the version in the path of another release. It may contain the version of that release again.
func versionBefore(declared, before, after, versionOfPath string) (string, bool) {
	beginning, ok := strings.CutSuffix(declared, after)
	if !ok {
		return "", false
	}
	// The text before the version may end with numbers, too. So the longest version that fits counts.
	numbers := beginning[len(strings.TrimRight(beginning, "0123456789"+separators)):]
	if len(numbers) > maxVersion {
		return "", false
	}
	for ; numbers != ""; numbers = numbers[1:] {
		if !isNumbers(numbers) {
			continue
		}
		for _, b := range []string{strings.ReplaceAll(before, versionOfPath, numbers), before} {
			if expected := b + numbers + after; declared == expected || strings.HasSuffix(declared, "/"+expected) {
				return numbers, true
			}
		}
	}
	return "", false
}

// maxVersion limits the length of a version, in bytes.
const maxVersion = 128

// separators stand between the numbers of a version.
const separators = "._:-"

// isNumbers reports whether s consists of numbers with one separator between two of them.
func isNumbers(s string) bool {
	digit := false
	for i := range len(s) {
		if !isDigit(s[i]) && !digit {
			return false
		}
		digit = isDigit(s[i])
	}
	return digit
}

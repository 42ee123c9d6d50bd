package document

import (
	"fmt"
	"strings"
)

// DidYouMean returns a hint for a name that is not among the candidates: the nearest candidate,
// or all of them if there are few. It returns "" if there is nothing to suggest.
func DidYouMean(name string, candidates []string) string {
	if c, ok := Nearest(name, candidates); ok {
		return fmt.Sprintf("did you mean %q?", Printable(c))
	}
	if len(candidates) == 0 || len(candidates) > 20 {
		return ""
	}
	return "there are: " + strings.Join(candidates, ", ")
}

// Nearest returns the candidate that a name was most likely meant to be, and false if no candidate
// is near. Case, dashes and underscores do not count: programs differ in them.
func Nearest(name string, candidates []string) (nearest string, ok bool) {
	least := max(1, len(name)/3) + 1
	normal := normalize(name)
	for _, c := range candidates {
		other := normalize(c)
		if other == normal {
			return c, true
		}
		// The distance is at least the difference of the lengths.
		if max(len(other)-len(normal), len(normal)-len(other)) >= least {
			continue
		}
		if d := editDistance(normal, other); d < least {
			nearest, least, ok = c, d, true
		}
	}
	return nearest, ok
}

// Suggestions are the suggestions of one load. Together they compare at most maxCompared names, because a suggestion among
// many names takes long.
type Suggestions struct{ compared int }

const maxCompared = 200_000 // about half a second

// DidYouMean is like the function DidYouMean. Above the limit, it returns "".
func (s *Suggestions) DidYouMean(name string, candidates []string) string {
	if s.compared += len(candidates); s.compared > maxCompared {
		return ""
	}
	return DidYouMean(name, candidates)
}

// Nearest is like the function Nearest. Above the limit, it returns false.
func (s *Suggestions) Nearest(name string, candidates []string) (nearest string, ok bool) {
	if s.compared += len(candidates); s.compared > maxCompared {
		return "", false
	}
	return Nearest(name, candidates)
}

// Similar reports whether name a is name b with at most two typing errors, or with one error in
// a short name. It is stricter than Nearest: other programs have kinds with similar names.
func Similar(a, b string) bool {
	limit := 2
	if len(b) < 8 {
		limit = 1
	}
	return editDistance(normalize(a), normalize(b)) <= limit
}

var separators = strings.NewReplacer("-", "", "_", "")

func normalize(s string) string { return separators.Replace(strings.ToLower(s)) }

// editDistance counts the letters to insert, drop, replace or swap with their
// neighbour to turn the name a into the name b.
func editDistance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return len(a) + len(b)
	}
	var rows [3][65]int
	before, last, row := rows[0][:len(b)+1], rows[1][:len(b)+1], rows[2][:len(b)+1]
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, row = last, row, before
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}

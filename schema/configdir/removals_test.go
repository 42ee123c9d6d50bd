package configdir

import (
	"strings"
	"testing"
	"time"
)

func TestRemovalConfirmer(t *testing.T) {
	type read struct {
		at        int    // seconds
		declared  string // one letter a name
		confirmed string // of a, b, c and x
	}
	for name, reads := range map[string][]read{
		"never declared":                        {{0, "ab", ""}, {4, "ab", ""}, {5, "ab", "cx"}, {9, "ab", "cx"}},
		"removed":                               {{0, "abcx", ""}, {10, "ab", ""}, {14, "ab", ""}, {15, "ab", "cx"}, {30, "ab", "cx"}},
		"one read is not enough":                {{0, "abcx", ""}, {100, "ab", ""}, {105, "ab", "cx"}},
		"declared again in between":             {{0, "abcx", ""}, {10, "abc", ""}, {13, "abcx", ""}, {16, "abc", ""}, {20, "abc", ""}, {21, "abc", "x"}},
		"declared again after the confirmation": {{0, "ab", ""}, {5, "ab", "cx"}, {6, "abcx", ""}, {20, "abc", ""}, {25, "abc", "x"}},
		"removed one after the other":           {{0, "abcx", ""}, {1, "abc", ""}, {4, "ab", ""}, {6, "ab", "x"}, {9, "ab", "cx"}},
	} {
		t.Run(name, func(t *testing.T) {
			var r RemovalConfirmer
			before := ""
			for _, l := range reads {
				declared := map[string]bool{}
				for _, name := range strings.Split(l.declared, "") {
					declared[name] = true
				}
				reported := r.Observe(time.Unix(int64(l.at), 0), time.Unix(int64(l.at), 0), declared)
				confirmed := ""
				for _, name := range []string{"a", "b", "c", "x"} {
					if r.Confirmed(name) {
						confirmed += name
					}
				}
				if confirmed != l.confirmed {
					t.Errorf("at %d s: got the removals %q confirmed, want %q", l.at, confirmed, l.confirmed)
				}
				if len(confirmed) > len(before) && !reported {
					t.Errorf("at %d s: the read confirmed removals, and did not report that", l.at)
				}
				before = confirmed
			}
		})
	}
	if new(RemovalConfirmer).Confirmed("a") {
		t.Error("the zero RemovalConfirmer confirmed a removal")
	}
}

package examples

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// promqlWords are the words of PromQL that the expressions use, and that are no metrics. Every other word outside
// of matchers and of lists of labels counts as a metric, so that none can be missed.
var promqlWords = []string{
	"and", "or", "unless", "bool", "offset", "sum", "min", "max", "count", "group",
	"rate", "increase", "time", "vector", "max_over_time", "label_replace",
}

// labelLists are the words of PromQL before a list of labels.
var labelLists = []string{"by", "without", "on", "ignoring", "group_left", "group_right"}

var promqlToken = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*\"|'(?:[^'\\\\]|\\\\.)*'|`[^`]*`|[0-9][0-9A-Za-z_.]*|[A-Za-z_:][A-Za-z0-9_:]*|\\s+|[=!<>]=|[=!]~|.")

// selectors returns the vector selectors of an expression, without ranges. promtool must have accepted the expression.
func selectors(expr string) ([]string, error) {
	var tokens []string
	for _, token := range promqlToken.FindAllString(expr, -1) {
		if strings.TrimSpace(token) != "" {
			tokens = append(tokens, token)
		}
	}
	next := func(i int) string {
		if i+1 < len(tokens) {
			return tokens[i+1]
		}
		return ""
	}
	end := func(i int, closing string) (int, error) {
		n := slices.Index(tokens[i:], closing)
		if n < 0 {
			return 0, fmt.Errorf("%s: %q does not end", expr, tokens[i])
		}
		return i + n, nil
	}
	var found []string
	for i := 0; i < len(tokens); i++ {
		var err error
		switch token := tokens[i]; {
		case token == "#":
			return nil, fmt.Errorf("%s: a comment", expr)
		case token == "{":
			return nil, fmt.Errorf("%s: a selector without a name", expr)
		case token == "[":
			i, err = end(i, "]")
		case !regexp.MustCompile(`^[A-Za-z_:]`).MatchString(token), slices.Contains(promqlWords, token):
		case slices.Contains(labelLists, token):
			if next(i) == "(" {
				i, err = end(i, ")")
			}
		case next(i) == "{":
			var last int
			if last, err = end(i, "}"); err == nil {
				found = append(found, strings.Join(tokens[i:last+1], ""))
				i = last
			}
		default:
			found = append(found, token)
		}
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

var negative = regexp.MustCompile(`!(=|~)("(?:[^"\\]|\\.)*")`)

// positive returns the selector with one negative matcher at a time replaced by its opposite. A value that no series
// has would otherwise not be noticed.
func positive(selector string) []string {
	var all []string
	for _, at := range negative.FindAllStringSubmatchIndex(selector, -1) {
		operator := "="
		if selector[at[2]:at[3]] == "~" {
			operator = "=~"
		}
		all = append(all, selector[:at[0]]+operator+selector[at[4]:])
	}
	return all
}

func TestSelectorsOfExpressions(t *testing.T) {
	for _, tt := range []struct {
		expr string
		want []string
	}{
		{`up == 0`, []string{"up"}},
		{`sum by (job, state) (a{b="}", c=~'x'}) / on (job) group_left count(d[5m] offset 1h) > bool 1e3`, []string{`a{b="}",c=~'x'}`, "d"}},
		{`max(rate(x_total[$__rate_interval])) unless time() - y:z < 0x1f`, []string{"x_total", "y:z"}},
		{`sum(by_{l!="sum"}) without (a)`, []string{`by_{l!="sum"}`}},
		{`histogram_quantile(0.9, a)`, []string{"histogram_quantile", "a"}},
	} {
		if got, err := selectors(tt.expr); err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, error %v, want %q", tt.expr, got, err, tt.want)
		}
	}
	for _, expr := range []string{`{__name__="a"}`, `sum({a="b"})`, `a{b="c"`, `a # b`} {
		if got, err := selectors(expr); err == nil {
			t.Errorf("%s: %q without an error", expr, got)
		}
	}
	if got, want := positive(`a{b!="c", d!~"e", f="g"}`), []string{`a{b="c", d!~"e", f="g"}`, `a{b!="c", d=~"e", f="g"}`}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

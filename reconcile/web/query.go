package web

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// query is which part of a view a reader wants, from the parameters of the address. An unknown value
// counts as the default.
type query struct {
	Text  string // part of a name; "": all
	State string // a group of states; "": all
	Sort  string // "state" or ""
	Page  int    // 1 is the first
	Disks int    // page of the disks, 1 is the first
}

const maxText = 100

// The groups of states that a reader can select.
const (
	stateReady      = "ready"
	stateUnready    = "unready"
	stateFailed     = "failed"
	stateUndeclared = "undeclared"
)

func parseQuery(values url.Values) query {
	number := func(name string) int {
		n, err := strconv.Atoi(values.Get(name))
		if err != nil || n < 1 || n > 1_000_000 {
			return 1
		}
		return n
	}
	q := query{Text: text.Line(strings.TrimSpace(values.Get("q"))), Page: number("page"), Disks: number("disks")}
	if len(q.Text) > maxText {
		q.Text = strings.ToValidUTF8(q.Text[:maxText], "")
	}
	if s := values.Get("state"); slices.Contains([]string{stateReady, stateUnready, stateFailed, stateUndeclared}, s) {
		q.State = s
	}
	if values.Get("sort") == "state" {
		q.Sort = "state"
	}
	return q
}

// String returns the query as the parameters of an address, with "?" before them, or "" for the defaults.
func (q query) String() string {
	v := url.Values{}
	for name, text := range map[string]string{"q": q.Text, "state": q.State, "sort": q.Sort} {
		if text != "" {
			v.Set(name, text)
		}
	}
	for name, n := range map[string]int{"page": q.Page, "disks": q.Disks} {
		if n > 1 {
			v.Set(name, strconv.Itoa(n))
		}
	}
	if len(v) == 0 {
		return ""
	}
	return "?" + v.Encode()
}

// onPage returns the parameters of another page.
func (q query) onPage(page int) string {
	q.Page = page
	return q.String()
}

// matches reports whether one of the texts contains the text of the query. Upper and lower case are equal.
func (q query) matches(texts ...string) bool {
	want := strings.ToLower(q.Text)
	return want == "" || slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(strings.ToLower(s), want) })
}

// pager is the position in a list that is shown in parts.
type pager struct {
	From, To, All  int    // 1 is the first
	Previous, Next string // parameters of the neighbours; "": there is none
}

// part returns the part of a list on a page, and its pager. link returns the parameters of a page.
func part[T any](all []T, size, page int, link func(page int) string) ([]T, pager) {
	pages := max(1, (len(all)+size-1)/size)
	page = min(page, pages)
	from, to := (page-1)*size, min(page*size, len(all))
	p := pager{From: min(from+1, len(all)), To: to, All: len(all)}
	if page > 1 {
		p.Previous = cmp.Or(link(page-1), "?")
	}
	if page < pages {
		p.Next = link(page + 1)
	}
	return all[from:to], p
}

// imageState is the state of an image as a whole: the group it belongs to, and a word for people.
type imageState struct{ Group, Class, Word string }

// stateOf returns the state of an image.
func stateOf(image status.ImageStatus) imageState {
	has := func(s model.State) bool {
		return slices.ContainsFunc(image.Copies, func(c status.CopyStatus) bool { return c.State == s })
	}
	switch {
	case image.Code == plan.CodeInvalidImage:
		return imageState{stateFailed, "failed", "invalid"}
	case !image.Declared:
		return imageState{stateUndeclared, "undeclared", "not declared"}
	case image.AllReady():
		return imageState{stateReady, "ready", "ready"}
	case has(model.Failed):
		return imageState{stateFailed, "failed", "failed"}
	case has(model.InProgress), has(model.Starting):
		return imageState{stateUnready, "in-progress", "in progress"}
	case image.Ready > 0:
		return imageState{stateUnready, "pending", "copies missing"}
	}
	return imageState{stateUnready, "pending", "waiting"}
}

// in reports whether a state is in the group of a query. A failed image is in stateUnready, too.
func (s imageState) in(group string) bool {
	return group == "" || s.Group == group || group == stateUnready && s.Group == stateFailed
}

package report

import (
	"io"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/forecast"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// hostile is a name or a message that a terminal, a reader or Markdown could obey. Its lines look like
// those of this program.
const hostile = "x\x1b]0;title\x07\x1b[2J\r\nNo changes. The disks match the configuration.\nerror: y\v\f\u0085z\u2028" +
	"\x9b31m\u009b31m\u202egnp\u2066\u200b\ufeff\U000e0041\x7f\xff\xc3" +
	`| a \| b <script>alert(1)</script> [text](http://evil.example) www.evil.example @admin #1 ` + "`code` **bold** &lt;"

// setTexts sets every text in a value, down to a depth. Lists get two elements.
func setTexts(v reflect.Value, text string, depth int) {
	if depth == 0 {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		setTexts(v.Elem(), text, depth-1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		setTexts(v.Index(0), text, depth-1)
		setTexts(v.Index(1), text, depth-1)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		setTexts(key, text, depth-1)
		setTexts(value, text, depth-1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				setTexts(v.Field(i), text, depth-1)
			}
		}
	}
}

func withText[T any](text string) (value T) {
	setTexts(reflect.ValueOf(&value).Elem(), text, 9)
	return value
}

// outputs writes documents in which every text is the given one.
func outputs(text string) map[string]func(io.Writer) error {
	all := map[string]func(io.Writer) error{}
	status, plans := withText[status.Status](text), withText[plan.Plan](text)
	problems := withText[[]document.Problem](text)
	result := load.Result{Errors: problems, Warnings: problems}
	result.Skipped = withText[[]schema.Skipped](text)
	difference := Difference{Difference: withText[forecast.Difference](text), Fields: withText[[]fieldDifference](text)}
	fleet := withText[forecast.Fleet](text)
	cluster := ClusterPlan{Plan: plans, Forecast: &fleet, caused: plans}
	cluster.Errors, cluster.Diff = problems, &difference
	all["status"] = func(w io.Writer) error { return WriteStatus(w, status) }
	all["list"] = func(w io.Writer) error {
		return Print(w, Table, nil, ListTable(map[string]ListEntry{text: withText[ListEntry](text)})...)
	}
	all["problems"] = func(w io.Writer) error { WriteProblems(w, text, result); return nil }
	all["validation"] = func(w io.Writer) error {
		return WriteValidations(w, []Validation{{Path: text, Result: result}}, Text)
	}
	all["validation json"] = func(w io.Writer) error {
		return WriteValidations(w, []Validation{{Path: text, Result: result}}, JSON)
	}
	all["errors markdown"] = func(w io.Writer) error { return WriteErrors(w, problems) }
	all["line"] = func(w io.Writer) error { return WriteLine(w, "  warning: %s", text) }
	all["json"] = func(w io.Writer) error { return WriteJSON(w, status) }
	updates := Updates{Images: []ImageUpdate{withText[ImageUpdate](text), withText[ImageUpdate](text), withText[ImageUpdate](text)}}
	for i, r := range []UpdateResult{Updated, UpToDate, NotEdited} {
		updates.Images[i].Result = r
	}
	for _, format := range []Format{Text, JSON, Markdown} {
		all["updates "+string(format)] = func(w io.Writer) error { return updates.Write(w, format) }
	}
	for _, format := range []Format{Text, JSON, YAML, Markdown} {
		style := Style{Format: format, Cluster: true}
		all["plan "+string(format)] = func(w io.Writer) error { return WritePlan(w, plans, style) }
		all["cluster "+string(format)] = func(w io.Writer) error { return cluster.Write(w, style) }
		all["difference "+string(format)] = func(w io.Writer) error { return WriteDifference(w, difference, format) }
	}
	return all
}

func TestNoOutputObeysATextInIt(t *testing.T) {
	plain := outputs("plain")
	for name, write := range outputs(hostile) {
		var got, want strings.Builder
		if err := write(&got); err != nil {
			t.Fatal(err)
		}
		if err := plain[name](&want); err != nil {
			t.Fatal(err)
		}
		if !utf8.ValidString(got.String()) || !strings.Contains(got.String(), "No changes. The disks match") {
			t.Errorf("%s is not UTF-8, or does not have the text:\n%q", name, got.String())
		}
		for _, r := range got.String() {
			if !unicode.IsPrint(r) && r != '\n' {
				t.Errorf("%s contains %U", name, r)
			}
		}
		if !strings.Contains(name, "yaml") && strings.Count(got.String(), "\n") != strings.Count(want.String(), "\n") {
			t.Errorf("a text adds lines to %s:\n%s\nwithout it:\n%s", name, got.String(), want.String())
		}
		if strings.Contains(name, "markdown") {
			checkMarkdown(t, name, got.String(), want.String())
		}
	}
}

func checkMarkdown(t *testing.T, name, got, want string) {
	t.Helper()
	for _, active := range []string{"<script", "@admin", "#1", " [text]", " `code`", " **bold**", "&lt;\n", " &lt; |"} {
		if strings.Contains(got, active) {
			t.Errorf("%s contains %q:\n%s", name, active, got)
		}
	}
	columns := func(text string) int {
		return strings.Count(strings.NewReplacer(`\\`, "", `\|`, "").Replace(text), "|")
	}
	if columns(got) != columns(want) {
		t.Errorf("a text adds columns to %s:\n%s", name, got)
	}
}

// The colours are the only escape sequences.
func TestColoursAreTheOnlyEscapeSequences(t *testing.T) {
	var b strings.Builder
	if err := WritePlan(&b, plan.Plan{Actions: []plan.Action{{Op: model.Cleanup, Image: hostile, Until: time.Unix(0, 0)}}}, Style{Colour: true}); err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(string(red), "", string(noColour), "").Replace(b.String())
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) || strings.Count(text, "\n") != 3 {
		t.Errorf("the plan is %q", text)
	}
}

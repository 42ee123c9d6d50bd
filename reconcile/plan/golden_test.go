package plan_test

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

var update = flag.Bool("update", false, "write the plans into testdata")

// TestGoldenPlans compares plans and usage updates with the cases of testdata. README.md there
// describes their format.
func TestGoldenPlans(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases: ", err)
	}
	for i, file := range files {
		if race.Enabled && i%16 != 0 {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			runGolden(t, file)
		})
	}
}

func runGolden(t *testing.T, file string) {
	a, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	d, o := goldenCase(t, a)
	planned := plan.NewRound(d, o).Plan()
	plantest.CheckPlan(t, d, o, planned)
	setSection(a, "plan", goldenPlan(planned, o.Now))
	setSection(a, "usage", goldenUsage(plan.NewRound(d, o).UsageUpdates(), o.Now))
	got := txtar.Format(a)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("go test ./reconcile/plan -update would change this:\n%s", diff.Diff("want", want, "got", got))
	}
}

// goldenCase returns the desired and observed state of a case. It loads config.yaml, then
// changed.yaml with the same loader, as a daemon does after a change, and the state.
func goldenCase(t *testing.T, a *txtar.Archive) (plan.Desired, plan.Observed) {
	t.Helper()
	loader := load.NewLoader()
	var before, r load.Result
	for _, name := range []string{"config.yaml", "changed.yaml"} {
		if data, ok := section(a, name); ok {
			r = loader.Load(t.Context(), configdir.Snapshot{Files: []configdir.File{{Path: "config.yaml", Data: unfoldDigests(data)}}})
		}
		if name == "config.yaml" {
			before = r
		}
	}
	lines, _ := section(a, "state")
	s := parseState(t, string(lines), before, r)
	d, err := plan.NewDesired(r.Loaded, s.node, s.paths(r.Config))
	if err != nil {
		if d.Allowed == schema.Everything {
			t.Fatal(err)
		}
		d.Allowed = schema.ObserveOnly
	}
	if s.directoryUnreadable && d.Allowed == schema.Everything {
		d.Allowed = schema.NoDeletions
	}
	d.Removed, d.Verify, d.Cleanup, d.Uploads = s.removed, s.verify, s.cleanup, s.uploads
	return d, s.o
}

func section(a *txtar.Archive, name string) ([]byte, bool) {
	i := slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == name })
	if i < 0 {
		return nil, false
	}
	return a.Files[i].Data, true
}

func setSection(a *txtar.Archive, name, text string) {
	i := slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == name })
	if i < 0 {
		a.Files = append(a.Files, txtar.File{Name: name})
		i = len(a.Files) - 1
	}
	a.Files[i].Data = foldDigests([]byte(text))
}

// goldenPlan formats a plan: two lines for each action, with times relative to now, and the
// summary.
func goldenPlan(p plan.Plan, now time.Time) string {
	var b strings.Builder
	for _, a := range p.Actions {
		fmt.Fprintf(&b, "%s %s-%s %s/%s %s", a.Op, a.Image, a.UUID, a.Node, cmp.Or(a.Disk, "-"), goldenBytes(a.Bytes))
		if a.From != (ident.CopyRef{}) {
			fmt.Fprintf(&b, " from=%s", a.From)
		}
		if !a.Pinned.Digest.IsZero() {
			fmt.Fprintf(&b, " pinned=%s until=%s", a.Pinned.Digest, relative(a.Pinned.Until, now))
		}
		if !a.Until.IsZero() {
			fmt.Fprintf(&b, " until=%s", relative(a.Until, now))
		}
		fmt.Fprintf(&b, "\n\t%s: %s\n", a.Code, a.Text)
	}
	summary, err := json.Marshal(p.Summary)
	if err != nil {
		panic(err)
	}
	fmt.Fprintf(&b, "empty=%t %s\n", p.Empty(), summary)
	for _, ref := range slices.SortedFunc(maps.Keys(p.Ends), func(a, b ident.CopyRef) int { return cmp.Compare(a.String(), b.String()) }) {
		fmt.Fprintf(&b, "end %s\n\t%s\n", ref, p.Ends[ref])
	}
	return b.String()
}

func goldenBytes(n int64) string {
	if n == plan.UnknownBytes {
		return "?"
	}
	return strings.ReplaceAll(plan.FormatBytes(n), " ", "")
}

func goldenUsage(updates map[ident.CopyRef]model.Usage, now time.Time) string {
	var b strings.Builder
	for _, ref := range slices.SortedFunc(maps.Keys(updates), func(a, b ident.CopyRef) int {
		return cmp.Or(ident.ID.Compare(a.ID, b.ID), ident.DiskRef.Compare(a.Disk, b.Disk))
	}) {
		u := updates[ref]
		fmt.Fprintf(&b, "%s in-use=%t last-used=%s surplus-since=%s", ref, u.InUseRecorded, relative(u.LastUsed, now), relative(u.SurplusSince, now))
		if !u.ReplacedAt.IsZero() {
			fmt.Fprintf(&b, " replaced=%s", relative(u.ReplacedAt, now))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func relative(t, now time.Time) string {
	switch {
	case t.IsZero():
		return "never"
	case t.Equal(now):
		return "now"
	case t.After(now):
		return "+" + t.Sub(now).String()
	}
	return t.Sub(now).String()
}

// digestTexts returns the digests of the contents in plantest.Letters, as golden files write
// them and as a configuration does.
func digestTexts() (folded, plain []string) {
	for _, letter := range plantest.Letters {
		folded = append(folded, "SHA512("+letter+")", "SHA256("+letter+")")
		plain = append(plain, fmt.Sprintf("%x", sha512.Sum512([]byte(letter))), fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(letter))))
	}
	return folded, plain
}

func unfoldDigests(data []byte) []byte {
	folded, plain := digestTexts()
	for i := range folded {
		data = bytes.ReplaceAll(data, []byte(folded[i]), []byte(plain[i]))
	}
	return data
}

func foldDigests(data []byte) []byte {
	folded, plain := digestTexts()
	for i := range folded {
		data = bytes.ReplaceAll(data, []byte(plain[i]), []byte(folded[i]))
	}
	return data
}

// goldenWords matches the parts of a line of a state: words, and key=value, where the value may
// be quoted.
var goldenWords = regexp.MustCompile(`"[^"]*"|[^\s="]+(="[^"]*"|=\S*)?`)

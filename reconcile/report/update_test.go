package report

import (
	"os"
	"strings"
	"testing"
)

func TestUpdates(t *testing.T) {
	digest := func(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }
	old := NewImageVersion("20260518", "https://user:secret@example.com/a-20260518.qcow2?token=secret", digest("1"))
	u := Updates{Images: []ImageUpdate{
		{Image: "newer", Result: Updated, From: old, To: NewImageVersion("20260602", "https://example.com/a-20260602.qcow2", digest("2")),
			Places: []string{"images.yaml:5:12", "images.yaml:6:15"}},
		{Image: "content", Result: Updated, From: NewImageVersion("", "https://example.com/b.qcow2", digest("3")),
			To: NewImageVersion("", "https://example.com/b.qcow2", digest("4")), Incomplete: []string{"7", "6"}, Places: []string{"b.cue:1:2"}},
		{Image: "first", Result: Updated, From: NewImageVersion("", "https://example.com/latest.qcow2", ""), To: NewImageVersion("1", "https://example.com/1.qcow2", digest("5"))},
		{Image: "same", Result: UpToDate, From: old},
		{Image: "incomplete", Result: UpToDate, From: old, Incomplete: []string{"20260602"}},
		{Image: "older", Result: NotEdited, Reason: "older-than-pinned", Message: "older-than-pinned: the newest version is 1 | 2, and 3 is declared", From: old},
	}}
	for format, file := range map[Format]string{Text: "testdata/updates.txt", JSON: "testdata/updates.json", Markdown: "testdata/updates.md"} {
		var b strings.Builder
		if err := u.Write(&b, format); err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil || b.String() != string(want) {
			t.Errorf("%s (%v): got\n%s", file, err, b.String())
		}
		if strings.Contains(b.String(), "secret") {
			t.Errorf("%s has a secret", file)
		}
	}
	u.DryRun, u.Images = true, u.Images[:0]
	if got := u.summary(); got != "Would update 0 images; 0 up to date, 0 refused." {
		t.Error(got)
	}
}

// A refusal is in the comment, however many images are updated.
func TestUpdatesOfManyImagesFitIntoAComment(t *testing.T) {
	var u Updates
	for range 5000 {
		v := NewImageVersion("20260518", "https://example.com/a-20260518.qcow2", "sha256:"+strings.Repeat("1", 64))
		u.Images = append(u.Images, ImageUpdate{Image: "newer", Result: Updated, From: v, To: v})
	}
	u.Images = append(u.Images, ImageUpdate{Image: "refused", Result: NotEdited, Message: "older-than-pinned: x"})
	var b strings.Builder
	if err := u.Write(&b, Markdown); err != nil || b.Len() > 65_536 || !strings.Contains(b.String(), "older-than-pinned") {
		t.Errorf("%d bytes, %v", b.Len(), err)
	}
}

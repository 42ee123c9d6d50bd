package examples

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	usesLine    = regexp.MustCompile(`^(?:- )?uses:\s*(.*)$`)
	usesPinned  = regexp.MustCompile(`^[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	goInstalled = regexp.MustCompile(`\bgo (?:install|run)\s+(\S+)`)
	goPinned    = regexp.MustCompile(`@v\d+\.\d+\.\d+$`)
	imageLine   = regexp.MustCompile(`^(?:- )?(?:image:|FROM|newTag:)\s*(\S+)`)
	// imagePinned is a name with a complete version and perhaps a digest, or such a version alone.
	imagePinned = regexp.MustCompile(`^(?:[\w./-]+:)?v?\d+\.\d+\.\d+[\w.-]*(?:@sha256:[0-9a-f]{64})?$`)
)

// imagesWithoutTag are the empty image, and the name that each kustomization replaces.
var imagesWithoutTag = []string{"scratch", "backing-image-manager"}

// unpinned returns what a line names that can change without a change of the line: an action by tag, a
// program without its version, or an image without one.
func unpinned(line string) string {
	line = strings.TrimSpace(line)
	if m := usesLine.FindStringSubmatch(line); m != nil && !usesPinned.MatchString(m[1]) {
		return m[1]
	}
	if m := imageLine.FindStringSubmatch(line); m != nil && !slices.Contains(imagesWithoutTag, m[1]) && !imagePinned.MatchString(m[1]) {
		return m[1]
	}
	if m := goInstalled.FindStringSubmatch(line); m != nil && !goPinned.MatchString(m[1]) {
		return m[1]
	}
	return ""
}

// Nothing that an example runs may change without a change of the example: what somebody publishes
// tomorrow under an old name would run with the rights of the workflow or of the daemon. A tag with a version
// can be moved, too, so a file with such an image has the command or the field that pins its digest.
func TestExamplesNamePinnedVersions(t *testing.T) {
	files := []string{"../Dockerfile", "../Makefile"}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && filepath.Ext(path) != ".go" {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if what := unpinned(line); what != "" || strings.Contains(line, "@latest") {
				t.Errorf("%s: %q is not pinned in: %s", file, what, line)
			}
			line = strings.TrimSpace(line)
			if m := imageLine.FindStringSubmatch(line); m != nil && !slices.Contains(imagesWithoutTag, m[1]) && !strings.Contains(string(text), "sha256:") {
				t.Errorf("%s does not say how to pin the digest of %s", file, m[1])
			}
			for name, pattern := range map[string]*regexp.Regexp{"uses": usesLine, "image": imageLine, "go": goInstalled} {
				if pattern.MatchString(line) {
					found[name]++
				}
			}
		}
	}
	if found["uses"] < 2 || found["image"] < 5 || found["go"] < 1 {
		t.Errorf("the patterns of this test find only %v", found)
	}
}

func TestUnpinned(t *testing.T) {
	for line, pinned := range map[string]bool{
		"- uses: actions/checkout@v4":                                                     false,
		"uses: actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683":                 false, // nobody can read which version it is
		"- uses: actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2":      true,
		"- uses: actions/checkout@main # 11bd71901bbe5b1630ceea73d27597364c9af683 v4.2.2": false,
		"- run: go install example.com/cmd@latest":                                        false,
		"- run: go install example.com/cmd@main":                                          false,
		"- run: go install example.com/cmd@v1.0.0":                                        true,
		"image: example.com/git-sync:latest":                                              false,
		"image: example.com/git-sync":                                                     false,
		"image: example.com/git-sync:v4.5.1":                                              true,
		"FROM golang:1.26-bookworm AS build":                                              false,
		"FROM golang:1.26.8-bookworm AS build":                                            true,
		"FROM golang:1.26.8@sha256:" + strings.Repeat("0a", 32) + " AS build":             true,
		"newTag: latest":               false,
		"newTag: v1.0.0":               true,
		"image: backing-image-manager": true,
		"FROM scratch":                 true,
	} {
		if got := unpinned(line); (got == "") != pinned {
			t.Errorf("%s: unpinned is %q", line, got)
		}
	}
}

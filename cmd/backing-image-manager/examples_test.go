package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestExamplesAreValid(t *testing.T) {
	dirs, err := filepath.Glob("../../examples/*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("examples %q, error %v", dirs, err)
	}
	for _, dir := range dirs {
		if out, errOut, err := try(t, "validate", "--strict", dir); err != nil {
			t.Errorf("%s: %v\n%s%s", dir, err, out, errOut)
		}
	}
}

var yamlBlock = regexp.MustCompile("(?s)\n```yaml\n(.*?)\n```")

func TestReadmesConfigurationsAreValid(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := yamlBlock.FindAllSubmatch(readme, -1)
	if len(blocks) < 2 {
		t.Fatalf("%d blocks of YAML in the README", len(blocks))
	}
	for _, b := range blocks {
		file := filepath.Join(t.TempDir(), "images.yaml")
		if err := os.WriteFile(file, bytes.ReplaceAll(b[1], []byte("sha512:…"), []byte("sha512:"+strings.Repeat("0a", 64))), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, errOut, err := try(t, "validate", file); err != nil {
			t.Errorf("%v\n%s%s in\n%s", err, out, errOut, b[1])
		}
	}
}

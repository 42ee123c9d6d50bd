package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// The race detector must run the tests of every package that starts a goroutine or has a lock.
func TestSequentialPackagesAreSequential(t *testing.T) {
	for _, p := range sequential {
		files, err := filepath.Glob(filepath.Join("../../..", p, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no files: %v", p, err)
		}
		for _, name := range files {
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s starts a goroutine: remove %s from sequential", set.Position(n.Pos()), p)
				case *ast.ImportSpec:
					path := strings.Trim(n.Path.Value, `"`)
					if path == "sync" || strings.HasPrefix(path, "sync/") || strings.HasPrefix(path, "golang.org/x/sync/") {
						t.Errorf("%s imports %s: remove %s from sequential", set.Position(n.Pos()), path, p)
					}
				}
				return true
			})
		}
	}
}

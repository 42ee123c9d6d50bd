// Package layout checks the sizes and the names of the code: folders, types and functions that one can overlook, and
// JSON with the names of the Go fields. .ci/imports checks which package imports which.
package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const (
	maxFiles   = 25 // of a folder, without tests
	maxMethods = 25 // of a type
	maxLines   = 80 // of a function
)

// larger are the folders and types that are larger than that. They may not grow.
var larger = map[string]int{}

// foreign are the fields of formats that are not ours, by file.
var foreign = map[string]string{
	"disk/luks/header.go":               "LUKS2",
	"disk/luks/keyslot.go":              "LUKS2",
	"fetch/track/coreos.go":             "streams of Fedora CoreOS",
	"fetch/track/simplestreams.go":      "simplestreams",
	"schema/manifest/handle.go":         "parameters of Longhorn's StorageClass",
	"reconcile/notification/message.go": "CloudEvents",
}

// source is one product file.
type source struct {
	path string // below the root of the repository
	file *ast.File
}

var files = token.NewFileSet()

// sources parses the product files: those that are neither tests nor test support.
func sources(t *testing.T) (all []source) {
	t.Helper()
	root := filepath.Join("..", "..", "..")
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == filepath.Join("internal", "testx") || entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".") && name != "."):
			return filepath.SkipDir
		case entry.IsDir(), !strings.HasSuffix(name, ".go"), strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		all = append(all, source{filepath.ToSlash(name), file})
		return err
	})
	if err != nil || len(all) < 100 {
		t.Fatalf("%d files, error %v", len(all), err)
	}
	return all
}

func TestFoldersAndTypesAreSmall(t *testing.T) {
	counts, limits := map[string]int{}, map[string]int{}
	for _, s := range sources(t) {
		folder := filepath.ToSlash(filepath.Dir(s.path))
		counts[folder]++
		limits[folder] = maxFiles
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := files.Position(f.End()).Line - files.Position(f.Pos()).Line + 1; n > maxLines {
				t.Errorf("%s: %s has %d lines, at most %d are allowed", files.Position(f.Pos()), f.Name.Name, n, maxLines)
			}
			if f.Recv != nil {
				name := folder + "." + receiver(f.Recv.List[0].Type)
				counts[name]++
				limits[name] = maxMethods
			}
		}
	}
	for name, n := range counts {
		if limit := max(limits[name], larger[name]); n > limit {
			t.Errorf("%s has %d files or methods, at most %d are allowed", name, n, limit)
		}
	}
	for name, n := range larger {
		if counts[name] < n {
			t.Errorf("%s has only %d files or methods now: lower the exception, or remove it", name, counts[name])
		}
	}
}

// receiver returns the name of the type of a method.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

func TestJSONNamesAreFieldNames(t *testing.T) {
	fields, used := 0, map[string]bool{}
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			f, ok := n.(*ast.Field)
			if !ok || f.Tag == nil || len(f.Names) == 0 {
				return true
			}
			name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
			if name == "" || name == "-" {
				return true
			}
			fields++
			switch field := f.Names[0].Name; {
			case strings.EqualFold(name, field) && name[0] >= 'a':
			case foreign[s.path] != "":
				used[s.path] = true
			default:
				t.Errorf("%s: the field %s is %q in JSON", files.Position(f.Pos()), field, name)
			}
			return true
		})
	}
	if fields < 300 {
		t.Errorf("only %d fields have a name in JSON", fields)
	}
	for path, format := range foreign {
		if !used[path] {
			t.Errorf("%s has no field of %s any more", path, format)
		}
	}
}

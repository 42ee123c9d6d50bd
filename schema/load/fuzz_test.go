package load

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// FuzzLoad loads any bytes as YAML and as JSON. A child process parses .cue files.
func FuzzLoad(f *testing.F) {
	archives, err := filepath.Glob("testdata/load/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	manifests, err := filepath.Glob("testdata/manifest/*.txtar")
	if err != nil || len(manifests) == 0 {
		f.Fatalf("%d archives of manifests, error %v", len(manifests), err)
	}
	archives = append(archives, manifests...)
	every := 4 // TestLoad and TestManifestsEqualTheNativeForm load all archives
	switch {
	case flag.Lookup("test.fuzz").Value.String() != "":
		every = 1
	case race.Enabled:
		every = 40
	}
	for i, name := range archives {
		if i%every != 0 {
			continue
		}
		a, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range a.Files {
			f.Add(file.Data, strings.HasSuffix(file.Name, ".json"))
		}
	}
	neighbours, err := filepath.Glob("testdata/*/*.yaml")
	if err != nil || len(neighbours) == 0 {
		f.Fatalf("%d manifests of neighbours, error %v", len(neighbours), err)
	}
	for i, name := range neighbours {
		if i%every != 0 {
			continue
		}
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, false)
	}
	everything, err := os.ReadFile("testdata/everything.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(everything, false)
	f.Fuzz(func(t *testing.T, data []byte, isJSON bool) {
		path := "a.yaml"
		if isJSON {
			path = "a.json"
		}
		s := configdir.Snapshot{Files: []configdir.File{{Path: path, Data: data}}}
		l := NewLoader()
		r := l.Load(t.Context(), s)
		checkResult(t, r)
		if again, fresh := describe(l.Load(t.Context(), s)), describe(r); r.Allowed == schema.Everything && again != fresh {
			t.Errorf("loaded again:\n%s\nfirst time:\n%s", again, fresh)
		}
		if other := NewLoader().Load(t.Context(), s); describe(other) != describe(r) || other.Digest != r.Digest {
			t.Errorf("another loader:\n%s\nthis one:\n%s", describe(other), describe(r))
		}
	})
}

// checkResult checks the invariants of every result.
func checkResult(t *testing.T, r Result) {
	valid := len(r.Errors) == 0
	if valid != (r.Allowed == schema.Everything) || valid != (r.Digest != "") {
		t.Errorf("%d errors, allowed %s, digest %q", len(r.Errors), r.Allowed, r.Digest)
	}
	for _, p := range append(r.Errors, r.Warnings...) {
		if strings.ContainsAny(p.String(), "\n\x00") || p.Message == "" {
			t.Errorf("a problem is not one line: %q", p.String())
		}
	}
	origins := r.Origins()
	if want := len(r.Config.Images) + len(r.Config.Nodes); len(origins) < want {
		t.Errorf("%d origins of %d images and nodes", len(origins), want)
	}
	for _, o := range origins {
		for _, v := range append(o.Values, ValueOrigin{Position: o.Position}) {
			if v.File == "" || v.Line == 0 {
				t.Errorf("%s %s: %q is declared at %s", o.Section, o.Name, v.Path, v.Position)
			}
		}
	}
	for name, m := range r.Config.Images {
		if id, err := ident.ParseID(m.ID.String()); err != nil || id != m.ID || id.Name != name {
			t.Errorf("image %q has the folder %q", name, m.ID)
		}
		m.Source.Kind() // panics if there is none
		if m.Copies < 1 {
			t.Errorf("image %q has %d copies", name, m.Copies)
		}
	}
}

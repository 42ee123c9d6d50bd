package load

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/hostile"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// TestHostileFilesCostLittle loads small files that could take much time or memory. Each must
// result in a few short problems; otherwise the test times out.
func TestHostileFilesCostLittle(t *testing.T) {
	race.Skip(t)
	const size, links = 1 << 20, 3000
	aliases := "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c <= 'j'; c++ {
		aliases += strings.ReplaceAll("N: &N [*P, *P, *P, *P, *P, *P, *P, *P, *P, *P]\n", "N", string(c))
		aliases = strings.ReplaceAll(aliases, "P", string(c-1))
	}
	var chain, keys strings.Builder
	chain.WriteString("images:\n  i0: {source: {upload: {}}}\n")
	for i := range links {
		s := strings.Repeat("x", 1+i%30)
		chain.WriteString("  c" + strconv.Itoa(i+1) + ": {source: {clone: {backingImage: c" + strconv.Itoa((i+1)%links+1) + "}}}\n")
		keys.WriteString(s + strconv.Itoa(i) + ": {}\n")
	}
	for name, f := range map[string]configdir.File{
		"aliases":    {Path: "a.yaml", Data: []byte(aliases)},
		"brackets":   {Path: "a.yaml", Data: []byte(strings.Repeat("[", size))},
		"braces":     {Path: "a.yaml", Data: []byte(strings.Repeat("{", size))},
		"dashes":     {Path: "a.yaml", Data: []byte(strings.Repeat("- ", size))},
		"questions":  {Path: "a.yaml", Data: []byte(strings.Repeat("? ", size))},
		"json":       {Path: "a.json", Data: []byte(strings.Repeat("[", size))},
		"json2":      {Path: "a.json", Data: []byte(strings.Repeat(`{"images":`, size/10))},
		"long list":  {Path: "a.yaml", Data: []byte("images: {x1: {source: {upload: {}}, nodeSelector: [" + strings.Repeat("a,", size/2) + "]}}")},
		"many names": {Path: "a.yaml", Data: []byte(keys.String())},
		"unknown":    {Path: "a.yaml", Data: []byte("images:\n  x1:\n" + strings.ReplaceAll("    "+keys.String(), "\n", "\n    "))},
		"cycle":      {Path: "a.yaml", Data: []byte(chain.String())},
		"deep cue":   {Path: "a.cue", Data: []byte("a: " + strings.Repeat("(", size))},
		"deep cue 2": {Path: "a.cue", Data: []byte("images: x1: source: upload: {} & " + strings.Repeat("{a:", size/4))},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewLoader().Load(t.Context(), configdir.Snapshot{Files: []configdir.File{f}})
			checkResult(t, r)
			if len(r.Errors) == 0 || len(r.Config.Images) > 1 {
				t.Errorf("%d images and no error", len(r.Config.Images))
			}
			for _, p := range r.Errors {
				if len(p.String()) > 1000 {
					t.Errorf("a problem has %d bytes: %.200s", len(p.String()), p)
				}
			}
		})
	}
}

// Whatever the files contain, the result keeps its promises, and the second load of the same files
// has the same one. "make hostile" loads large files with the real program.
func TestGeneratedHostileFiles(t *testing.T) {
	race.Skip(t)
	valid := os.DirFS("../../examples")
	for seed := range uint64(hostile.Kinds()) {
		c := hostile.NewConfig(seed, 4<<10, valid)
		if strings.HasPrefix(c.Kind, "cue ") {
			continue // some take all the time that they may
		}
		l, s := NewLoader(), configdir.Snapshot{Files: c.Files}
		r := l.Load(t.Context(), s)
		checkResult(t, r)
		if again := l.Load(t.Context(), s); !r.Unfinished && again.Allowed != r.Allowed {
			t.Errorf("seed %d (%s): allowed %s, and after the second load %s", seed, c.Kind, r.Allowed, again.Allowed)
		}
		if t.Failed() {
			t.Fatalf("seed %d (%s)", seed, c.Kind)
		}
	}
}

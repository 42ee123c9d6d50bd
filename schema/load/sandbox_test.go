package load

import (
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

const good = "images: good: source: upload: {}\n"

// bombs are CUE files whose evaluation never ends.
var bombs = map[string]string{
	"time": `
let n = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
images: {for a in n for b in n for c in n for d in n for e in n for f in n for g in n for h in n if a+b+c+d+e+f+g+h > 100 {"x": source: upload: {}}}
`,
	"memory": `
import "strings"
a: strings.Repeat("x", 1000000)
images: x: source: download: url: strings.Repeat(a, 1000000)
`,
}

func TestExpensiveFileAffectsOnlyItself(t *testing.T) {
	for name, bomb := range bombs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := NewLoader()
			l.stalled = time.Hour // only the processor time of a child decides, whatever else the machine does
			load := func(files ...configdir.File) Result { return l.Load(t.Context(), configdir.Snapshot{Files: files}) }
			before := load(configdir.File{Path: "a.cue", Data: []byte(good)}, configdir.File{Path: "c.cue", Data: []byte(strings.ReplaceAll(good, "good", "too"))})
			if before.Allowed != schema.Everything || len(before.Config.Images) != 2 {
				t.Fatalf("not valid:\n%s", describe(before))
			}
			// The third file changes too, so that it must be evaluated after the bomb.
			got := load(configdir.File{Path: "a.cue", Data: []byte(good)}, configdir.File{Path: "b.cue", Data: []byte(bomb)},
				configdir.File{Path: "c.cue", Data: []byte(strings.ReplaceAll(good, "good", "later"))})
			if len(got.Errors) != 1 || got.Errors[0].File != "b.cue" || !strings.Contains(got.Errors[0].Message, "takes more than") {
				t.Errorf("errors: %v, want one of b.cue with the limit", got.Errors)
			}
			if _, ok := got.Config.Images["later"]; !ok || got.Allowed != schema.NoDeletions {
				t.Errorf("the file after the bomb was not evaluated:\n%s", describe(got))
			}
		})
	}
}

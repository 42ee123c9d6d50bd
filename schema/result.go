package schema

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Allowed says what a manager may do under a configuration.
type Allowed uint8

const (
	// ObserveOnly: look, serve what is there, and do nothing else, because this
	// is the start and the settings, the nodes or a whole file are not known.
	ObserveOnly Allowed = iota
	// NoDeletions: something is broken, so nothing may be deleted.
	NoDeletions
	// Everything: the configuration is wholly valid.
	Everything
)

// String returns the meaning for a message.
func (a Allowed) String() string {
	return [...]string{"observe only", "no deletions", "everything"}[a]
}

// Held is an image whose declaration is broken or out of reach.
type Held struct {
	Name string
	// Stale: the image goes on in Config as it was last declared. Otherwise it is
	// not in Config, and nothing may be done about it.
	Stale bool
	// Why is the first problem that holds it.
	Why document.Problem
}

// Result is what a config directory says.
type Result struct {
	// Config is what holds now: the valid declarations, and for broken ones what
	// was last said. When May is ObserveOnly, it is what could be understood.
	Config Config
	// Errors and Warnings are sorted by place. More warnings come with time: see
	// WarningsAt.
	Errors   []document.Problem
	Warnings []document.Problem
	// Manifests are those that were read, and Skipped those that were not, in the
	// order of the files.
	Manifests []Document
	Skipped   []Skipped
	Held      []Held // sorted by name
	// Digest identifies the configuration, whatever files it is in; "" while
	// anything is broken.
	Digest string
	// Revision is that of the Snapshot.
	Revision string
	May      Allowed

	things []*thing // that Config is made of
	ends   []ending
}

// digest is that of the configuration, and of images that what was skipped may declare:
// who does not know of those would not keep them.
func (c Config) digest(skipped []Skipped) string {
	// Maps are written in the order of their keys, so equal configurations are
	// equal bytes.
	b, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("schema: encode configuration: %v", err))
	}
	names := map[string]bool{}
	for _, s := range skipped {
		if s.Image != "" {
			names[s.Image] = true
		}
	}
	for _, name := range sortedKeys(names) {
		b = append(append(b, '\n'), name...)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// result is what the assembly comes to.
func (a *assembly) result() Result {
	r := Result{Config: a.config(), Errors: a.errors, Manifests: a.manifests, Skipped: a.skipped, Held: a.held(), May: a.may()}
	r.Warnings, r.ends = a.warnings(r.Config), a.ends()
	r.things = slices.Collect(maps.Values(a.holds))
	if len(r.Errors) == 0 {
		r.Digest = r.Config.digest(r.Skipped)
	}
	slices.SortStableFunc(r.Errors, document.Problem.Compare)
	slices.SortStableFunc(r.Warnings, document.Problem.Compare)
	// What is to be said of a class comes from each of its VolumeSnapshots.
	r.Errors, r.Warnings = slices.CompactFunc(r.Errors, document.Problem.Equal), slices.CompactFunc(r.Warnings, document.Problem.Equal)
	return r
}

func (a *assembly) may() Allowed {
	switch {
	case len(a.errors) == 0:
		return Everything
	case !a.running && (a.placesUnknown || a.fileUnknown):
		return ObserveOnly
	}
	return NoDeletions
}

func (a *assembly) config() Config {
	c := Config{Settings: a.settings, Nodes: map[string]Node{}, Images: map[string]Image{}}
	for k, t := range a.holds {
		switch k.section {
		case nodesSection:
			n := *t.verdict.node
			n.Pos = t.pos
			c.Nodes[k.name] = n
		case imagesSection:
			m := *t.verdict.image
			m.Pos = t.pos
			if m.Copies == 0 {
				m.Copies = a.settings.MinNumberOfCopies
			}
			c.Images[k.name] = m
		}
	}
	return c
}

func (a *assembly) held() []Held {
	var held []Held
	for k, why := range a.wrong {
		if k.section == imagesSection {
			held = append(held, Held{Name: k.name, Stale: a.holds[k] != nil, Why: why})
		}
	}
	slices.SortFunc(held, func(x, y Held) int { return strings.Compare(x.Name, y.Name) })
	return held
}

// Origin is where something of a configuration is declared.
type Origin struct {
	document.Position        // of its name
	Section           string // settings, nodes or images
	Name              string
	Kind              string // of the manifest that declares it, "" for the native form
	// Values are all that it declares, in the order of their paths; the rest of
	// the configuration is defaults.
	Values []ValueOrigin
}

// ValueOrigin is where a value is declared.
type ValueOrigin struct {
	document.Position
	Path string // as the native form has it, such as "source.download.url"
	From string // as the manifest has it, such as "spec.sourceParameters.url"; "" for the native form
}

// Origins returns where all of r.Config was declared, sorted by section and name.
// What holds as it was last said has the place that it had then.
func (r Result) Origins() []Origin {
	origins := make([]Origin, 0, len(r.things))
	for _, t := range r.things {
		o := Origin{Position: t.pos, Section: t.section.String(), Name: t.name}
		if t.form != nil {
			o.Kind = t.form.kind
		}
		t.native().Leaves(nil, func(path document.Path, v *document.Value) {
			o.Values = append(o.Values, t.valueOrigin(path, v))
		})
		slices.SortStableFunc(o.Values, func(x, y ValueOrigin) int { return strings.Compare(x.Path, y.Path) })
		origins = append(origins, o)
	}
	slices.SortFunc(origins, func(x, y Origin) int {
		return cmp.Or(strings.Compare(x.Section, y.Section), strings.Compare(x.Name, y.Name))
	})
	return origins
}

func (t *thing) valueOrigin(path document.Path, v *document.Value) ValueOrigin {
	o := ValueOrigin{Position: v.Pos, Path: path.String()}
	if t.form != nil {
		from := t.verdict.translation.origin(path)
		o.From = from.String()
		// The translation is of any manifest that says the same: the place is not in it.
		found, pos := t.value.Find(from, t.pos)
		if found != nil {
			pos = found.Pos
		}
		o.Position = pos
	}
	return o
}

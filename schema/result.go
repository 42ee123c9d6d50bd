package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
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
	Why Problem
}

// Result is what a config directory says.
type Result struct {
	// Config is what holds now: the valid declarations, and for broken ones what
	// was last said. When May is ObserveOnly, it is what could be understood.
	Config Config
	// Errors and Warnings are sorted by place. More warnings come with time: see
	// WarningsAt.
	Errors   []Problem
	Warnings []Problem
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
		b = appendText(b, name)
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
	slices.SortStableFunc(r.Errors, Problem.compare)
	slices.SortStableFunc(r.Warnings, Problem.compare)
	// What is to be said of a class comes from each of its VolumeSnapshots.
	r.Errors, r.Warnings = slices.Compact(r.Errors), slices.Compact(r.Warnings)
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

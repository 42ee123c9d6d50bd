package load

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Result is the result of loading a config directory.
type Result struct {
	schema.Loaded
	// Errors and Warnings are sorted by position. Further warnings depend on the time: see
	// WarningsAt.
	Errors   []document.Problem
	Warnings []document.Problem
	// Manifests are the manifests that were read, in the order of the files.
	Manifests []schema.Manifest
	// Unfinished is true if the time limit of the load ended before all files were evaluated and
	// all definitions were checked. The next Load of the same files continues.
	Unfinished bool

	definitions []*definition // of Config
	expiries    []expiry
	last        *lastValid // what the next load keeps: see Loader.ContinueFrom
}

// digestOf returns the digest of the configuration and of the skipped documents that may declare
// further images. A node without these documents would delete these images, so it must have
// another digest.
func digestOf(c schema.Config, skipped []schema.Skipped) string {
	h := sha256.New()
	if err := json.NewEncoder(h).Encode(c); err != nil { // maps are encoded in the order of their keys
		panic(fmt.Sprintf("load: encode configuration: %v", err))
	}
	// The encoding does not show whether a uuid is declared. A declared uuid decides whether a
	// copy with another checksum may be replaced.
	for _, name := range sortedKeys(c.Images) {
		if c.Images[name].UUIDDeclared {
			io.WriteString(h, "declared "+name+"\n")
		}
	}
	names := map[string]bool{}
	for _, s := range skipped {
		if s.Image != "" {
			names[s.Image] = true
		}
		if s.Malformed {
			names[hex.EncodeToString(s.Sum[:])] = true
		}
	}
	for _, name := range sortedKeys(names) {
		io.WriteString(h, "may declare "+name+"\n")
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (m *merger) result() Result {
	r := Result{Errors: m.errors, Manifests: m.manifests,
		Loaded: schema.Loaded{Config: m.config(), Undecided: schema.Undecided{Skipped: m.skipped, Emptied: m.emptied}, Invalid: m.invalid(), Allowed: m.allowed()}}
	r.Warnings, r.expiries = m.warnings(r.Config), m.expiries()
	r.definitions = slices.Collect(maps.Values(m.current))
	if len(r.Errors) == 0 {
		r.Digest = digestOf(r.Config, r.Skipped)
	}
	slices.SortStableFunc(r.Errors, document.Problem.Compare)
	slices.SortStableFunc(r.Warnings, document.Problem.Compare)
	// Each VolumeSnapshot also has the problems of its class, so the same problem may occur
	// several times.
	r.Errors, r.Warnings = limited(slices.CompactFunc(r.Errors, document.Problem.Equal)), limited(slices.CompactFunc(r.Warnings, document.Problem.Equal))
	return r
}

// limited returns the first maxErrors problems, and one more problem with the number of the others.
func limited(all []document.Problem) []document.Problem {
	if len(all) <= maxErrors {
		return all
	}
	others := document.Problem{Position: all[maxErrors].Position, Message: fmt.Sprintf("and %s further problems from here on", grouped(len(all)-maxErrors)), Hint: "correct those above first"}
	return append(slices.Clone(all[:maxErrors]), others)
}

func (m *merger) allowed() schema.Allowed {
	switch {
	case len(m.errors) == 0:
		return schema.Everything
	case !m.active && (m.placesUnknown || m.fileUnknown):
		return schema.ObserveOnly
	}
	return schema.NoDeletions
}

func (m *merger) config() schema.Config {
	c := schema.Config{Settings: m.settings, Nodes: map[string]schema.Node{}, Images: map[string]schema.Image{}}
	for k, d := range m.current {
		switch k.section {
		case nodesSection:
			n := *d.checked.node
			n.Pos = d.pos
			c.Nodes[k.name] = n
		case imagesSection:
			image := *d.checked.image
			image.Pos, image.Declaration = d.pos, d.declaration
			image.Title = cmp.Or(image.Title, m.titles[k])
			if image.Copies == 0 {
				image.Copies = m.settings.MinNumberOfCopies
			}
			image.FollowReplicas = m.settings.FollowReplicas
			if declared := d.checked.followReplicas; declared != nil {
				image.FollowReplicas = *declared
			}
			c.Images[k.name] = image
		}
	}
	return c
}

func (m *merger) invalid() []schema.InvalidImage {
	var invalid []schema.InvalidImage
	for k, reason := range m.broken {
		if k.section == imagesSection {
			invalid = append(invalid, schema.InvalidImage{Name: k.name, Stale: m.current[k] != nil, Reason: reason})
		}
	}
	slices.SortFunc(invalid, func(a, b schema.InvalidImage) int { return strings.Compare(a.Name, b.Name) })
	return invalid
}

// expiry is the end of a suspension, and the warning that applies from then on.
type expiry struct {
	at      time.Time
	warning document.Problem
}

// WarningsAt returns the warnings at a time: Warnings, and one for each suspension that has
// ended and is still declared.
func (r Result) WarningsAt(now time.Time) []document.Problem {
	all := slices.Clone(r.Warnings)
	for _, e := range r.expiries {
		if !now.Before(e.at) {
			all = append(all, e.warning)
		}
	}
	slices.SortStableFunc(all, document.Problem.Compare)
	return all
}

func (m *merger) expiries() []expiry {
	var all []expiry
	for _, d := range slices.Concat(m.all(settingsSection), m.all(imagesSection)) {
		if s := d.suspension(); s != nil && !s.Until.IsZero() && !m.stale(d) {
			p := document.Problem{Path: document.Path{"suspend", "until"}, Hint: "remove it, or set another time",
				Message: fmt.Sprintf("has passed (%s): it suspends nothing", s.Until.Format(time.RFC3339))}
			all = append(all, expiry{s.Until, d.place(p)})
		}
	}
	return all
}

func (d *definition) suspension() *schema.Suspension {
	switch {
	case d.checked.image != nil:
		return d.checked.image.Suspend
	case d.checked.settings != nil:
		return d.checked.settings.Suspend
	}
	return nil
}

// Origin is the document that declares an image, a node or a setting.
type Origin struct {
	document.Position        // of its name
	Section           string // settings, nodes or images
	Name              string
	Kind              string // of the manifest; "" for the native form
	// Values are all values that the document declares, in the order of their paths. All
	// other values of the configuration are defaults.
	Values []ValueOrigin
}

// ValueOrigin is the position of a declared value.
type ValueOrigin struct {
	document.Position
	// Path is the path in the native form, such as "source.download.url".
	Path string `json:"-"`
	// From is the path in the manifest, such as "spec.sourceParameters.url". It is empty for
	// the native form.
	From string `json:"from,omitempty"`
	// Text is the value as it is written, without quotes. It may contain secrets.
	Text string `json:"-"`
}

// Origins returns the documents that declare r.Config, sorted by section and name. If a
// definition is broken, the last valid one is in the configuration, with its old position.
func (r Result) Origins() []Origin {
	origins := make([]Origin, 0, len(r.definitions))
	for _, d := range r.definitions {
		o := Origin{Position: d.pos, Section: d.section.String(), Name: d.name}
		if d.kind != nil {
			o.Kind = d.kind.Name
		}
		d.native().Leaves(nil, func(path document.Path, v *document.Value) {
			o.Values = append(o.Values, d.valueOrigin(path, v))
		})
		slices.SortStableFunc(o.Values, func(a, b ValueOrigin) int { return strings.Compare(a.Path, b.Path) })
		origins = append(origins, o)
	}
	slices.SortFunc(origins, func(a, b Origin) int {
		return cmp.Or(strings.Compare(a.Section, b.Section), strings.Compare(a.Name, b.Name))
	})
	return origins
}

func (d *definition) valueOrigin(path document.Path, v *document.Value) ValueOrigin {
	o := ValueOrigin{Position: v.Pos, Path: path.String(), Text: v.Text}
	if d.kind != nil {
		from := d.checked.conversion.Source(path)
		o.From = from.String()
		// The conversion may be that of an equal manifest in another place. So the position
		// comes from d.value.
		found, pos := d.value.Find(from, d.pos)
		if found != nil {
			pos = found.Pos
		}
		o.Position = pos
	}
	return o
}

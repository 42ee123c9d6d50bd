package edit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// Values are the new values of a downloaded image.
type Values struct {
	URL      string
	Index    string // empty if the image has none
	Checksum ident.Digest
	// ChecksumURL and SignatureURL are those of Download and of Verify; empty if the image has none.
	ChecksumURL, SignatureURL string
}

// Refusal says why the values of an image cannot be edited, where, and what to write instead.
type Refusal struct {
	document.Problem
}

func (e *Refusal) Error() string { return e.Problem.String() }

// Edited is the result of Edit.
type Edited struct {
	// Files are the files with new content, sorted by path.
	Files []configdir.File
	// Places has the positions of the changed values of each image.
	Places map[string][]document.Position
	// Refused are the images whose values stay as they are.
	Refused map[string]*Refusal
}

// Edit returns the files of a config directory with new values of images. The argument before is the result of loading
// snapshot s. Edit changes no file. An error means that ctx ended.
func Edit(ctx context.Context, s configdir.Snapshot, before load.Result, wanted map[string]Values) (Edited, error) {
	e := editor{snapshot: s, before: before, wanted: wanted, loader: load.NewLoader(), changes: map[string][]change{}, refused: map[string]*Refusal{}}
	e.findChanges()
	files, err := e.prove(ctx)
	if err != nil {
		return Edited{}, err
	}
	places := map[string][]document.Position{}
	for name, changes := range e.changes {
		for _, c := range changes {
			places[name] = append(places[name], c.Position)
		}
	}
	return Edited{files, places, e.refused}, nil
}

type editor struct {
	snapshot configdir.Snapshot
	before   load.Result
	wanted   map[string]Values
	loader   *load.Loader
	changes  map[string][]change // of the images that can be edited
	refused  map[string]*Refusal
}

// findChanges finds the changes of each image.
func (e *editor) findChanges() {
	origins := map[string]load.Origin{}
	for _, o := range e.before.Origins() {
		if o.Section == "images" {
			origins[o.Name] = o
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.wanted)) {
		if err := e.findImage(name, origins[name]); err != nil {
			e.refuse(name, err)
		}
	}
}

// value is a value of an image that may change.
type value struct{ path, old, new string }

// addresses returns the addresses of an image.
func addresses(m schema.Image, want Values) []value {
	d := m.Source.Download
	all := []value{{"source.download.url", d.URL, want.URL}, {"source.download.index", d.Index, want.Index},
		{"source.download.checksumURL", d.ChecksumURL, want.ChecksumURL}}
	if v := m.Verify; v != nil {
		all = append(all, value{"verify." + string(v.Scheme) + ".signatureURL", v.SignatureURL, want.SignatureURL})
	}
	return all
}

// findImage finds the changes of an image. A value that is missing or that is not written as plain text is an error.
func (e *editor) findImage(name string, o load.Origin) error {
	m, want := e.before.Config.Images[name], e.wanted[name]
	var changes []change
	for _, v := range append(addresses(m, want), value{"checksum", m.Checksum.String(), want.Checksum.String()}) {
		i := slices.IndexFunc(o.Values, func(origin load.ValueOrigin) bool { return origin.Path == v.path })
		missing := i < 0 || strings.HasPrefix(o.Values[i].From, "status.")
		switch required := v.path == "checksum" || v.path == "source.download.url"; {
		case missing && (required || v.old != v.new):
			return &Refusal{document.Problem{Position: o.Position, Path: document.Path{v.path}, Message: "is missing"}}
		case v.old == v.new:
			continue
		}
		c, err := e.find(o.Values[i], styled(o.Values[i].Text, v.new))
		if err != nil {
			return &Refusal{document.Problem{Position: o.Values[i].Position, Message: err.Error()}}
		}
		changes = append(changes, c)
	}
	e.changes[name] = changes
	return nil
}

// styled returns a new text in the style of the old text. A SHA-512 has no prefix if the old checksum has none, as in Longhorn.
func styled(old, text string) string {
	if len(text) == 128 && strings.HasPrefix(strings.TrimSpace(old), "sha") {
		return ident.SHA512.String() + ":" + text
	}
	return text
}

// refuse gives up the changes of an image.
func (e *editor) refuse(name string, err error) {
	delete(e.changes, name)
	m, want := e.before.Config.Images[name], e.wanted[name]
	p := document.Problem{Position: m.Pos, Message: err.Error()}
	if placed, ok := errors.AsType[*Refusal](err); ok {
		p = placed.Problem
	}
	p.Path, p.Message = append(document.Path{"images", name}, p.Path...), "cannot be edited: "+p.Message
	var lines []string
	for _, a := range addresses(m, want) {
		if a.old != a.new {
			public, _, _ := strings.Cut(a.new, "?") // the query of an address may be a secret
			lines = append(lines, fmt.Sprintf("%s: %q", a.path[strings.LastIndexByte(a.path, '.')+1:], public))
		}
	}
	p.Hint = "write " + strings.Join(append(lines, fmt.Sprintf("checksum: %q", styled("sha", want.Checksum.String()))), ", ")
	e.refused[name] = &Refusal{p}
}

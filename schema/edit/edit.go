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
)

// Values are the new values of a downloaded image.
type Values struct {
	URL      string
	Index    string // empty if the image has none
	Checksum ident.Digest
	// ChecksumURL and SignatureURL are those of Download and of Verify; empty if the image has none.
	ChecksumURL, SignatureURL string
}

// Refusal says why the values of an image cannot be edited, and what to write instead.
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

// Edit returns the files of a config directory with new values of images. before is the result of loading s. It changes
// no file. An error means that ctx ended.
func Edit(ctx context.Context, s configdir.Snapshot, before schema.Result, wanted map[string]Values) (Edited, error) {
	e := editor{snapshot: s, before: before, wanted: wanted, changes: map[string][]Change{},
		result: Edited{Places: map[string][]document.Position{}, Refused: map[string]*Refusal{}}}
	e.findChanges()
	if err := e.prove(ctx); err != nil {
		return Edited{}, err
	}
	for name, changes := range e.changes {
		for _, c := range changes {
			e.result.Places[name] = append(e.result.Places[name], c.Position)
		}
	}
	return e.result, nil
}

type editor struct {
	snapshot configdir.Snapshot
	before   schema.Result
	wanted   map[string]Values
	changes  map[string][]Change // of the images that can be edited
	result   Edited
}

// findChanges finds the changes of each image.
func (e *editor) findChanges() {
	origins := map[string]schema.Origin{}
	for _, o := range e.before.Origins() {
		if o.Section == "images" {
			origins[o.Name] = o
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.wanted)) {
		changes, err := changesOf(e.before.Config.Images[name], origins[name], e.wanted[name])
		if err != nil {
			e.refuse(name, err)
			continue
		}
		e.changes[name] = changes
	}
}

// placedError is an error about one value.
type placedError struct {
	schema.ValueOrigin
	err error
}

func (e *placedError) Error() string { return e.err.Error() }

// changesOf returns the changes of an image, and an error if a value is missing.
func changesOf(m schema.Image, o schema.Origin, want Values) ([]Change, error) {
	var changes []Change
	set := func(path, old, text string) error {
		i := slices.IndexFunc(o.Values, func(v schema.ValueOrigin) bool { return v.Path == path })
		if i < 0 || strings.HasPrefix(o.Values[i].From, "status.") {
			return &placedError{schema.ValueOrigin{Position: o.Position, Path: path}, errors.New("is missing")}
		}
		if v := o.Values[i]; old != text {
			changes = append(changes, Change{Position: v.Position, Old: v.Text, New: styled(v.Text, text)})
		}
		return nil
	}
	var err error
	for _, a := range addresses(m, want) {
		if a.old != a.new || a.path == "source.download.url" {
			err = errors.Join(err, set(a.path, a.old, a.new))
		}
	}
	if err := errors.Join(err, set("checksum", m.Checksum.String(), want.Checksum.String())); err != nil {
		return nil, err
	}
	return changes, nil
}

// addressChange is the change of an address.
type addressChange struct{ path, old, new string }

// addresses returns the addresses of an image that may change.
func addresses(m schema.Image, want Values) []addressChange {
	d := m.Source.Download
	all := []addressChange{{"source.download.url", d.URL, want.URL}, {"source.download.index", d.Index, want.Index},
		{"source.download.checksumURL", d.ChecksumURL, want.ChecksumURL}}
	if v := m.Verify; v != nil {
		all = append(all, addressChange{"verify." + string(v.Scheme) + ".signatureURL", v.SignatureURL, want.SignatureURL})
	}
	return all
}

// styled returns a new text in the style of the old one: a SHA-512 may have no prefix, as in Longhorn.
func styled(old, text string) string {
	if len(text) == 128 && strings.HasPrefix(strings.TrimSpace(old), "sha") {
		return ident.SHA512.String() + ":" + text
	}
	return text
}

// apply returns the new content of the files that the changes of some images concern.
func (e *editor) apply(names []string) ([]configdir.File, error) {
	byFile := map[string][]Change{}
	for _, name := range names {
		for _, c := range e.changes[name] {
			byFile[c.File] = append(byFile[c.File], c)
		}
	}
	var files []configdir.File
	for _, name := range slices.Sorted(maps.Keys(byFile)) {
		i := slices.IndexFunc(e.snapshot.Files, func(f configdir.File) bool { return f.Path == name })
		if i < 0 {
			return nil, errNotHere
		}
		data, err := Replace(name, e.snapshot.Files[i].Data, byFile[name])
		if _, placed := errors.AsType[*placedError](err); err != nil && !placed {
			err = &placedError{schema.ValueOrigin{Position: byFile[name][0].Position}, err}
		}
		if err != nil {
			return nil, err
		}
		files = append(files, configdir.File{Path: name, Data: data})
	}
	return files, nil
}

// refuse gives up the changes of an image.
func (e *editor) refuse(name string, err error) {
	delete(e.changes, name)
	m, want := e.before.Config.Images[name], e.wanted[name]
	p := document.Problem{Position: m.Pos, Path: document.Path{"images", name}, Message: "cannot be edited: " + err.Error()}
	if placed, ok := errors.AsType[*placedError](err); ok {
		p.Position = placed.Position
		if placed.Path != "" {
			p.Path = append(p.Path, placed.Path)
		}
	}
	var lines []string
	for _, a := range addresses(m, want) {
		if a.old != a.new {
			public, _, _ := strings.Cut(a.new, "?") // the query of a list may be a secret
			lines = append(lines, fmt.Sprintf("%s: %q", a.path[strings.LastIndexByte(a.path, '.')+1:], public))
		}
	}
	p.Hint = "write " + strings.Join(append(lines, fmt.Sprintf("checksum: %q", styled("sha", want.Checksum.String()))), ", ")
	e.result.Refused[name] = &Refusal{p}
}

package report

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"

	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// validationDocument is the document of validate -o json. It is a stable interface. Its parts are
// the types of schema, with the paths of the files as the user gave them.
type validationDocument struct {
	Valid          bool                   `json:"valid"` // no errors; there may be warnings
	Configurations []configurationSection `json:"configurations"`
}

type configurationSection struct {
	Path     string             `json:"path"`
	Digest   string             `json:"digest"` // "" means that there are errors
	Revision string             `json:"revision,omitempty"`
	Errors   []document.Problem `json:"errors"`
	Warnings []document.Problem `json:"warnings"`
	// Manifests are the Kubernetes documents that were converted. Skipped are the other documents.
	Manifests []schema.Manifest `json:"manifests"`
	Skipped   []schema.Skipped  `json:"skipped"`
	// Config is the configuration with all defaults.
	Config redacted `json:"config"`
	// Origins are the positions of the declarations, by section (settings, nodes, images) and
	// name.
	Origins map[string]map[string]originSection `json:"origins"`
}

type originSection struct {
	document.Position
	// Kind is the kind of the manifest. "" means the native form.
	Kind string `json:"kind,omitempty"`
	// Values has the position of each declared field by its native path. A field that is
	// missing here has its default.
	Values map[string]load.ValueOrigin `json:"values"`
}

// WriteValidations writes the results as one JSON document, or as text: the problems of the configurations, the skipped
// documents, and a summary for each.
func WriteValidations(w io.Writer, all []Validation, format Format) error {
	return write(w, format, documentOf(all), func() *lines { return validationText(all) }, nil)
}

func documentOf(all []Validation) validationDocument {
	d := validationDocument{Valid: true, Configurations: []configurationSection{}}
	for _, v := range all {
		d.Valid = d.Valid && len(v.Errors) == 0
		d.Configurations = append(d.Configurations, v.section())
	}
	return d
}

func (v Validation) section() configurationSection {
	c := configurationSection{
		Path: v.Path, Digest: v.Digest, Revision: v.Revision, Config: redacted{v.Config},
		Errors: []document.Problem{}, Warnings: []document.Problem{}, Manifests: []schema.Manifest{}, Skipped: []schema.Skipped{},
		Origins: map[string]map[string]originSection{"settings": {}, "nodes": {}, "images": {}},
	}
	for _, p := range v.Errors {
		c.Errors = append(c.Errors, below(v.Path, p))
	}
	for _, p := range v.Warnings {
		c.Warnings = append(c.Warnings, below(v.Path, p))
	}
	for _, m := range v.Manifests {
		m.File = v.file(m.File)
		c.Manifests = append(c.Manifests, m)
	}
	for _, s := range v.Skipped {
		s.File = v.file(s.File)
		c.Skipped = append(c.Skipped, s)
	}
	for _, o := range v.Origins() {
		o.File = v.file(o.File)
		values := map[string]load.ValueOrigin{}
		for _, value := range o.Values {
			value.File = v.file(value.File)
			values[value.Path] = value
		}
		c.Origins[o.Section][o.Name] = originSection{o.Position, o.Kind, values}
	}
	return c
}

// file returns the path by which the user can open a file of the configuration.
func (v Validation) file(name string) string { return filepath.Join(v.Path, name) }

// redacted encodes a configuration, or a part of it, without the secrets in its addresses.
type redacted struct{ value any }

func (r redacted) MarshalJSON() ([]byte, error) {
	b, err := json.Marshal(r.value)
	return text.RedactJSON(b), err
}

// Validation is the result of validate for one configuration.
type Validation struct {
	Path string // of the folder with its files
	load.Result
}

// summary returns one line with the numbers of declarations and problems.
func (v Validation) summary() string {
	settings := 0
	for _, o := range v.Origins() {
		if o.Section == "settings" {
			settings++
		}
	}
	text := fmt.Sprintf("%s: %s, %s, %s", v.Path, Count(len(v.Config.Images), "image"), Count(len(v.Config.Nodes), "node"), Count(settings, "setting"))
	if n := len(v.Manifests); n > 0 {
		text += fmt.Sprintf("; %s read", Count(n, "manifest"))
	}
	if n := len(v.Skipped); n > 0 {
		text += fmt.Sprintf("; %s skipped", Count(n, "document"))
	}
	if n := len(v.Errors); n > 0 {
		text += "; " + Count(n, "error")
	}
	if n := len(v.Warnings); n > 0 {
		text += "; " + Count(n, "warning")
	}
	if len(v.Errors)+len(v.Warnings) == 0 {
		text += "; valid"
	}
	return text
}

func validationText(all []Validation) *lines {
	b := &lines{}
	for _, v := range all {
		b.problems(v.Path, v.Result)
	}
	for _, v := range all {
		for _, s := range v.Skipped {
			s.File = v.file(s.File)
			b.linef("%s: skipped: %s %s %q %s", s.Position, s.APIVersion, s.Kind, s.Name, s.Why)
		}
	}
	for _, v := range all {
		b.linef("%s", v.summary())
	}
	return b
}

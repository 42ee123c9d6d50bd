package report

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"

	"github.com/seed-26586806/backing-image-manager/fetch/redact"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/manifest"
)

// validatedView is the document of validate -o json. It is a stable interface.
type validatedView struct {
	Valid          bool                `json:"valid"` // no errors; there may be warnings
	Configurations []configurationView `json:"configurations"`
}

type configurationView struct {
	Path     string        `json:"path"`
	Digest   string        `json:"digest"` // "" if there are errors
	Revision string        `json:"revision,omitempty"`
	Errors   []problemView `json:"errors"`
	Warnings []problemView `json:"warnings"`
	// Manifests are the Kubernetes documents that were converted, and Skipped the others.
	Manifests []manifestView `json:"manifests"`
	Skipped   []skippedView  `json:"skipped"`
	// Config is the configuration with all defaults.
	Config redacted `json:"config"`
	// Origins are the positions of the declarations, by section (settings, nodes, images) and
	// name.
	Origins map[string]map[string]originView `json:"origins"`
}

type originView struct {
	placeView
	// Kind is the kind of the manifest, "" for the native form.
	Kind string `json:"kind,omitempty"`
	// Values are the positions of fields by their native paths. Other fields have defaults.
	Values map[string]valueOriginView `json:"values"`
}

type valueOriginView struct {
	placeView
	// From is the path in the manifest.
	From string `json:"from,omitempty"`
}

type placeView struct {
	File   string `json:"file"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
}

type problemView struct {
	placeView
	Path    string    `json:"path,omitempty"`
	Message string    `json:"message"`
	Also    placeView `json:"also,omitzero"` // the second position of a conflict
	Hint    string    `json:"hint,omitempty"`
}

type manifestView struct {
	placeView
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
}

type skippedView struct {
	manifestView
	Why   string `json:"why"`
	Image string `json:"mayDeclare,omitempty"` // the image that the document may declare
}

// WriteValidationsJSON writes the results as one JSON document.
func WriteValidationsJSON(w io.Writer, all []Validation) error {
	return WriteJSON(w, newValidatedView(all))
}

func newValidatedView(all []Validation) validatedView {
	v := validatedView{Valid: true, Configurations: []configurationView{}}
	for _, one := range all {
		v.Valid = v.Valid && len(one.Errors) == 0
		c := configurationView{
			Path: one.Path, Digest: one.Digest, Revision: one.Revision, Config: redacted{one.Config},
			Errors: viewProblems(one.Path, one.Errors), Warnings: viewProblems(one.Path, one.Warnings),
			Manifests: []manifestView{}, Skipped: []skippedView{}, Origins: viewOrigins(one.Path, one.Origins()),
		}
		for _, m := range one.Manifests {
			c.Manifests = append(c.Manifests, viewManifest(one.Path, m))
		}
		for _, s := range one.Skipped {
			c.Skipped = append(c.Skipped, skippedView{viewManifest(one.Path, s.Document), s.Why, s.Image})
		}
		v.Configurations = append(v.Configurations, c)
	}
	return v
}

func viewPlace(dir string, p document.Position) placeView {
	return placeView{filepath.Join(dir, p.File), p.Line, p.Column}
}

func viewManifest(dir string, d manifest.Document) manifestView {
	return manifestView{viewPlace(dir, d.Position), d.APIVersion, d.Kind, d.Name}
}

func viewOrigins(dir string, origins []schema.Origin) map[string]map[string]originView {
	views := map[string]map[string]originView{"settings": {}, "nodes": {}, "images": {}}
	for _, o := range origins {
		values := map[string]valueOriginView{}
		for _, v := range o.Values {
			values[v.Path] = valueOriginView{viewPlace(dir, v.Position), v.From}
		}
		views[o.Section][o.Name] = originView{viewPlace(dir, o.Position), o.Kind, values}
	}
	return views
}

func viewProblems(dir string, problems []document.Problem) []problemView {
	views := []problemView{}
	for _, p := range problems {
		view := problemView{placeView: viewPlace(dir, p.Position), Path: p.Path.String(), Message: p.Message, Hint: p.Hint}
		if p.Also != (document.Position{}) {
			view.Also = viewPlace(dir, p.Also)
		}
		views = append(views, view)
	}
	return views
}

// redacted encodes a configuration, or a part of it, without the secrets in its addresses.
type redacted struct{ value any }

func (r redacted) MarshalJSON() ([]byte, error) {
	b, err := json.Marshal(r.value)
	return redact.JSON(b), err
}

// Validation is the result of validate for one configuration.
type Validation struct {
	Path string // of the folder with its files
	schema.Result
	ChangedSettings int // number of settings without their default
}

// summary returns one line with the numbers of declarations and problems.
func (v Validation) summary() string {
	text := fmt.Sprintf("%s: %s, %s, %s", v.Path, Count(len(v.Config.Images), "image"),
		Count(len(v.Config.Nodes), "node"), Count(v.ChangedSettings, "setting"))
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

// WriteValidations writes the problems of configurations, the skipped documents, and a summary
// for each.
func WriteValidations(w io.Writer, all []Validation) error {
	for _, v := range all {
		WriteProblems(w, v.Path, v.Result)
	}
	for _, v := range all {
		for _, s := range v.Skipped {
			s.File = filepath.Join(v.Path, s.File)
			fmt.Fprintf(w, "%s: skipped: %s %s %q %s\n", s.Position, s.APIVersion, s.Kind, s.Name, s.Why)
		}
	}
	for _, v := range all {
		if _, err := fmt.Fprintln(w, v.summary()); err != nil {
			return err
		}
	}
	return nil
}

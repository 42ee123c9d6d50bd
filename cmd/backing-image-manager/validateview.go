package main

import (
	"path/filepath"

	"github.com/seed-26586806/backing-image-manager/schema"
)

// validatedView is the answer of validate -o json. It is a stable interface.
type validatedView struct {
	Valid          bool                `json:"valid"` // no errors; there may be warnings
	Configurations []configurationView `json:"configurations"`
}

type configurationView struct {
	Path     string        `json:"path"`
	Digest   string        `json:"digest"` // "" while anything is broken
	Revision string        `json:"revision,omitempty"`
	Errors   []problemView `json:"errors"`
	Warnings []problemView `json:"warnings"`
	// Manifests are the documents of Kubernetes that were read, Skipped those that
	// were not.
	Manifests []manifestView `json:"manifests"`
	Skipped   []skippedView  `json:"skipped"`
	// Config is what was understood, with every default.
	Config configView `json:"config"`
	// Origins are where that is declared: by section (settings, nodes, images) and name.
	Origins map[string]map[string]originView `json:"origins"`
}

type originView struct {
	placeView
	// Kind is of the manifest, "" for the native form.
	Kind string `json:"kind,omitempty"`
	// Values are by their native paths. What is not among them is a default.
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
	Also    placeView `json:"also,omitzero"` // the other place of the mistake
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
	Image string `json:"mayDeclare,omitempty"` // with what is not there
}

func viewValidated(all []validated) validatedView {
	v := validatedView{Valid: true, Configurations: []configurationView{}}
	for _, one := range all {
		v.Valid = v.Valid && len(one.Errors) == 0
		c := configurationView{
			Path: one.path, Digest: one.Digest, Revision: one.Revision, Config: viewConfig(one.Config),
			Errors: viewProblems(one.path, one.Errors), Warnings: viewProblems(one.path, one.Warnings),
			Manifests: []manifestView{}, Skipped: []skippedView{}, Origins: viewOrigins(one.path, one.Origins()),
		}
		for _, m := range one.Manifests {
			c.Manifests = append(c.Manifests, viewManifest(one.path, m))
		}
		for _, s := range one.Skipped {
			c.Skipped = append(c.Skipped, skippedView{viewManifest(one.path, s.Document), s.Why, s.Image})
		}
		v.Configurations = append(v.Configurations, c)
	}
	return v
}

func viewPlace(dir string, p schema.Position) placeView {
	return placeView{filepath.Join(dir, p.File), p.Line, p.Column}
}

func viewManifest(dir string, d schema.Document) manifestView {
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

func viewProblems(dir string, problems []schema.Problem) []problemView {
	views := []problemView{}
	for _, p := range problems {
		view := problemView{placeView: viewPlace(dir, p.Position), Path: p.Path, Message: p.Message, Hint: p.Hint}
		if p.Also != (schema.Position{}) {
			view.Also = viewPlace(dir, p.Also)
		}
		views = append(views, view)
	}
	return views
}

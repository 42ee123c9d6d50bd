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
	Skipped  []skippedView `json:"skipped"`
	// Config is what was understood, with every default.
	Config configView `json:"config"`
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

type skippedView struct {
	placeView
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	Why        string `json:"why"`
}

func viewValidated(all []validated) validatedView {
	v := validatedView{Valid: true, Configurations: []configurationView{}}
	for _, one := range all {
		v.Valid = v.Valid && len(one.Errors) == 0
		c := configurationView{
			Path: one.path, Digest: one.Digest, Revision: one.Revision, Config: viewConfig(one.Config),
			Errors: viewProblems(one.path, one.Errors), Warnings: viewProblems(one.path, one.Warnings), Skipped: []skippedView{},
		}
		for _, s := range one.Skipped {
			c.Skipped = append(c.Skipped, skippedView{viewPlace(one.path, s.Position), s.APIVersion, s.Kind, s.Name, s.Why})
		}
		v.Configurations = append(v.Configurations, c)
	}
	return v
}

func viewPlace(dir string, p schema.Position) placeView {
	return placeView{filepath.Join(dir, p.File), p.Line, p.Column}
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

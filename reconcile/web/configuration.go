package web

import (
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// maxProblems limits each list: errors, warnings, suspensions, documents. What is not shown is counted.
const maxProblems = 200

// configurationModel is the configuration that the daemon applies, and what is wrong with it.
type configurationModel struct {
	status.ConfigStatus
	Dir           string
	Images, Nodes int
	Suspended     []plan.Suspension
	Skipped       []string
	More          int // problems, suspensions and documents that are not shown
}

func newConfiguration(s *snapshot, of request) (any, int) {
	config := s.view.Desired.Config
	m := configurationModel{ConfigStatus: s.doc.Config, Dir: of.dir, Images: len(config.Images), Nodes: len(config.Nodes)}
	for _, d := range s.view.Config.Skipped {
		m.Skipped = append(m.Skipped, fmt.Sprintf("%s: %s %s: %s", d.Position, d.Kind, d.Name, d.Why))
	}
	m.Errors, m.Warnings, m.Skipped = firstOf(m.Errors, &m.More), firstOf(m.Warnings, &m.More), firstOf(m.Skipped, &m.More)
	if by := plan.NewSuspension(config.Settings.Suspend, s.doc.Time); by != nil {
		m.Suspended = append(m.Suspended, *by)
	}
	for _, name := range slices.Sorted(maps.Keys(config.Images)) {
		if by := plan.NewSuspension(config.Images[name].Suspend, s.doc.Time); by != nil {
			by.Image = name
			m.Suspended = append(m.Suspended, *by)
		}
	}
	m.Suspended = firstOf(m.Suspended, &m.More)
	return m, http.StatusOK
}

// firstOf returns the first maxProblems of a list, and adds the number of the others to more.
func firstOf[T any](all []T, more *int) []T {
	n := min(len(all), maxProblems)
	*more += len(all) - n
	return all[:n]
}

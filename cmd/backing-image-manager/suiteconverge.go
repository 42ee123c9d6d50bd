package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/rehearse"
	"github.com/seed-26586806/backing-image-manager/schema"
)

func converge(st *stage, in input) error {
	limit := time.Duration(0)
	if text, given := in.option("for"); given {
		var err error
		if limit, err = schema.ParseInterval(text); err != nil {
			return err
		}
	}
	done, err := st.world.Converge(st.ctx, limit)
	failures := 0
	for _, line := range align(doneRows(st.world, done)) {
		fmt.Fprintln(st.out, line)
	}
	for _, d := range done {
		if d.Err != nil {
			failures++
		}
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(st.out, "%s, %d failed. %s\n", count(len(done), "action"), failures, planSummary(st.world.Plan()))
	return nil
}

// doneRows are when, what, of which image, where to, and how it came out.
func doneRows(w *rehearse.World, done []rehearse.Done) [][]string {
	var rows [][]string
	for _, d := range done {
		text := oneLine(d.Reason)
		if d.From != "" {
			text += "; from " + d.From
		}
		if d.Err != nil {
			text = "failed: " + oneLine(d.Err.Error())
		}
		rows = append(rows, []string{fmt.Sprintf("+%v", w.Since(d.At)), string(d.Kind), d.Image, d.Key().Disk.String(), text})
	}
	return slices.Clip(rows)
}

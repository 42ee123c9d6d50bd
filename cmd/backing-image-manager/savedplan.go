package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// checkFiles refuses what makes no sense with --out and --plan.
func (c *convergence) checkFiles() error {
	switch {
	case c.outFile != "" && c.planFile != "":
		return errors.New("--out and --plan exclude each other: the one saves a plan, the other does what one says")
	case c.outFile != "" && (!c.dryRun || c.diffDir != "" && len(c.states) == 0):
		return errors.New("--out is for --dry-run, with or without --state: it saves the plan that is printed")
	case c.planFile != "" && len(c.states) > 0:
		return errors.New("--plan and --state exclude each other: a saved plan is held against what is there now")
	case c.planFile != "" && c.diffDir != "":
		return errors.New("--plan and --diff exclude each other")
	}
	return nil
}

// save writes the plan to the file of --out, if there is one: the whole of it or nothing.
func (c *convergence) save(result schema.Result, plan reconcile.Saved) error {
	if c.outFile == "" {
		return nil
	}
	if result.Digest == "" {
		return errors.New("the plan is not saved: the configuration has mistakes")
	}
	var text bytes.Buffer
	if err := writeJSON(&text, plan); err != nil {
		return fmt.Errorf("save plan: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(c.outFile), ".plan-*")
	if err != nil {
		return fmt.Errorf("save plan: %w", err)
	}
	_, err = f.Write(text.Bytes())
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), c.outFile)
	}
	if err != nil {
		return fmt.Errorf("save plan: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

func (c *convergence) readPlan() (plan reconcile.Saved, err error) {
	text, err := readFile(c.planFile)
	if err != nil {
		return plan, fmt.Errorf("read --plan: %w", err)
	}
	if err = unmarshal(text, &plan); err == nil {
		err = plan.Check()
	}
	if err != nil {
		return plan, fmt.Errorf("--plan %s is not a plan as --out saves it: %w", c.planFile, err)
	}
	return plan, nil
}

// checkPlan says whether the plan of --plan still holds.
func (c *convergence) checkPlan(d reconcile.Desired, o reconcile.Observed, now reconcile.Plan) error {
	if d.Only == nil {
		return nil
	}
	if err := d.Only.Holds(d, o, now); err != nil {
		return errors.Join(fmt.Errorf("the plan %s does not hold any more, and nothing is done: make another one with --dry-run --out", c.planFile), err)
	}
	return nil
}

// unfinishedOf says what of a plan was not done.
func unfinishedOf(plan reconcile.Saved, d reconcile.Desired, o reconcile.Observed, now reconcile.Plan) error {
	failed := 0
	for _, key := range ownFailures(d, o) {
		if plan.Names(key) {
			failed++
		}
	}
	left := len(plan.Left(now).Actions)
	switch {
	case failed > 0:
		return fmt.Errorf("the saved plan was not done: %d failed", failed)
	case left > 0:
		return fmt.Errorf("the saved plan was not done: %s left", count(left, "action"))
	}
	return nil
}

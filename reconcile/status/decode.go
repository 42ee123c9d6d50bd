package status

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// observed returns the observation from which the status was made. With the same configuration,
// that observation gives the same plan. observed fails if s is not a complete status.
func (s Status) observed() (plan.Observed, error) {
	if s.Node == "" || s.Time.IsZero() || s.Disks == nil || s.Images == nil {
		return plan.Observed{}, errors.New("it lacks one of the fields node, time, disks and images")
	}
	if s.Version != model.Version {
		return plan.Observed{}, model.VersionError(s.Version, model.Version, "use the release of backing-image-manager that made it")
	}
	if err := s.checkNames(); err != nil {
		return plan.Observed{}, err
	}
	o := plan.Observed{
		Now: s.Time, Disks: map[ident.DiskRef]model.Disk{}, Peers: map[string]model.Peer{}, Awaited: map[ident.CopyRef]time.Duration{},
		Failures: map[ident.CopyRef]model.Failure{}, Running: map[ident.CopyRef]bool{}, Jobs: map[ident.CopyRef]plan.Job{}, BeingRead: map[ident.CopyRef]bool{}, CannotPrepare: map[ident.ID]string{}, BackedUp: map[ident.ID]bool{},
	}
	for _, p := range s.Peers {
		o.Peers[p.Node] = p.Peer
	}
	for _, one := range s.Disks {
		ref := ident.DiskRef{Node: one.Node, Disk: one.Name}
		if _, twice := o.Disks[ref]; twice {
			return plan.Observed{}, fmt.Errorf("disk %s occurs twice", ref)
		}
		if one.Observed {
			one.Copies = model.Copies{}
			o.Disks[ref] = one.Disk
		}
	}
	for _, image := range s.Images {
		id := image.ID()
		if image.CannotPrepare != "" {
			o.CannotPrepare[id] = image.CannotPrepare
		}
		if image.BackedUp {
			o.BackedUp[id] = true
		}
		for _, c := range image.Copies {
			key := ident.CopyRef{Disk: ident.DiskRef{Node: c.Node, Disk: c.Disk}, ID: id}
			if err := addCopyStatus(o, key, c); err != nil {
				return plan.Observed{}, fmt.Errorf("copy %s: %w", key, err)
			}
		}
	}
	return o, nil
}

// checkNames rejects names that no configuration can have. A saved file may come from anybody, and
// plans print its names into terminals and pull requests (H5).
func (s Status) checkNames() error {
	places := []string{s.Node}
	for _, p := range s.Peers {
		places = append(places, p.Node)
	}
	for _, d := range s.Disks {
		places = append(places, d.Node, d.Name)
	}
	for _, image := range s.Images {
		err := ident.CheckName(image.Name)
		if err == nil && image.UUID != "" { // an image with an invalid declaration has no uuid
			err = ident.CheckUUID(image.UUID)
		}
		if err != nil {
			return fmt.Errorf("an image has an invalid %w", err)
		}
		for _, c := range image.Copies {
			places = append(places, c.Node, c.Disk)
		}
	}
	for _, name := range places {
		if !validName.MatchString(name) {
			return fmt.Errorf("invalid name of a node or disk: %.60q", name)
		}
	}
	return nil
}

// validName is the form of names of nodes and disks in a configuration.
var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// knownStates are the states that a disk can report. The other states exist only during a job.
var knownStates = []model.State{model.Pending, model.Ready, model.Failed, model.Unknown}

// addCopyStatus adds c to o, as the status of the copy that key names. An observed copy needs an observed disk.
func addCopyStatus(o plan.Observed, key ident.CopyRef, c CopyStatus) error {
	if c.Running {
		o.Running[key] = true
	}
	if c.Job != "" {
		o.Jobs[key] = plan.NewJob(c.Job, key)
	}
	if c.BeingRead {
		o.BeingRead[key] = true
	}
	if !c.AwaitedSince.IsZero() {
		o.Awaited[key] = o.Now.Sub(c.AwaitedSince)
	}
	if c.Failure != nil {
		o.Failures[key] = *c.Failure
	}
	seen, known := o.Disks[key.Disk]
	if c.Need != nil && known {
		if seen.Needs == nil {
			seen.Needs = map[ident.ID]model.Need{}
		}
		seen.Needs[key.ID] = *c.Need
		o.Disks[key.Disk] = seen
	}
	switch {
	case c.Observed == nil:
		return nil
	case !known:
		return errors.New("its disk is missing or was not observed")
	case !slices.Contains(knownStates, c.Observed.State):
		return fmt.Errorf("unknown state %q", c.Observed.State)
	}
	seen.Copies[key.ID] = c.observed(key.ID)
	return nil
}

// observed returns the copy as it was observed on its disk. c.Observed must not be nil.
func (c CopyStatus) observed(id ident.ID) model.Copy {
	seen := c.Copy
	seen.ID, seen.State, seen.Message = id, c.Observed.State, c.Observed.Message
	seen.Failure, seen.Need, seen.Job = nil, nil, ""
	return seen
}

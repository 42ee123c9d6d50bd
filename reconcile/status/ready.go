package status

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Unready returns the reasons why a manager cannot work. An error that affects only some images is no
// reason. An unusable disk is no reason while another disk of the node is usable. A last round older
// than maxAge is a reason. The view is nil before the first round.
func (v *View) Unready(now time.Time, maxAge time.Duration) []string {
	if v == nil {
		return []string{"the config directory was not read yet"}
	}
	var reasons []string
	switch {
	case !v.Loaded && v.Fault != "":
		reasons = append(reasons, v.Fault)
	case !v.Loaded:
		reasons = append(reasons, "the config directory was not read yet")
	case v.Desired.Allowed == schema.ObserveOnly:
		reasons = append(reasons, fmt.Sprintf("the configuration cannot be applied: correct its errors (%d), or declare this node", len(v.Config.Errors)))
	}
	if age := now.Sub(v.Observed.Now); age > maxAge {
		reasons = append(reasons, fmt.Sprintf("the disks were last read %v ago", age.Round(time.Second)))
	}
	if v.Loaded {
		reasons = append(reasons, v.noUsableDisk()...)
	}
	return reasons
}

// noUsableDisk returns the problems of the disks of this node if none is usable.
func (v *View) noUsableDisk() []string {
	var problems []string
	for ref, d := range v.Observed.Disks {
		if ref.Node != v.Desired.Node {
			continue
		}
		if d.Problem == "" && !d.ReadOnly {
			return nil
		}
		problems = append(problems, fmt.Sprintf("disk %s: %s", ref, d.Faults()[0]))
	}
	if len(problems) == 0 {
		return []string{"no disks are declared for this node: declare them"}
	}
	slices.Sort(problems)
	return problems
}

// ErrNoDisk is in each error about a disk that a node does not have.
var ErrNoDisk = errors.New("no disk of that name")

// CheckOwnDisk returns why this manager cannot decide about the copies on a disk, or nil. For an
// unknown disk of this node, the error is ErrNoDisk. For a disk of another node, it names the daemon
// to call.
func (v *View) CheckOwnDisk(ref ident.DiskRef) error {
	node := v.Desired.Node
	if node != ref.Node {
		other, declared := v.Desired.Config.Nodes[ref.Node]
		switch {
		case !declared:
			return fmt.Errorf("disk %s: this is node %s, and node %s is not declared", ref, node, ref.Node)
		case other.Address == "":
			return fmt.Errorf("disk %s: this is node %s: call the daemon of node %s, whose address is not declared", ref, node, ref.Node)
		}
		return fmt.Errorf("disk %s: this is node %s: call the daemon of node %s with --url %s", ref, node, ref.Node, text.RedactURL(other.Address))
	}
	d, known := v.Observed.Disks[ref]
	switch {
	case !known:
		return fmt.Errorf("disk %s: node %s has %w: it has %s", ref, node, ErrNoDisk, cmp.Or(strings.Join(v.ownDiskNames(), ", "), "none"))
	case d.Problem != "":
		return fmt.Errorf("disk %s: %s", ref, d.Problem)
	}
	return nil
}

func (v *View) ownDiskNames() []string {
	var names []string
	for ref := range v.Observed.Disks {
		if ref.Node == v.Desired.Node {
			names = append(names, ref.Disk)
		}
	}
	slices.Sort(names)
	return names
}

// NotReadyError lists what is not ready, with one line for each image.
type NotReadyError struct{ Lines []error }

func (e *NotReadyError) Error() string { return errors.Join(e.Lines...).Error() }

// Unwrap returns the lines, so that an error message has one line for each.
func (e *NotReadyError) Unwrap() []error { return e.Lines }

// NotDeclaredError says that no image of a name is declared.
type NotDeclaredError struct{ Name string }

func (e *NotDeclaredError) Error() string { return e.Name + " is not declared" }

// ConfigID names a configuration by the beginning of its commit or of its config digest, in
// lower-case hex. The zero ConfigID stands for any configuration.
type ConfigID struct{ Revision, Digest string }

// CheckApplied checks that the manager has applied a configuration. The error is a *NotReadyError.
func (c ConfigStatus) CheckApplied(of ConfigID) error {
	wanted, applied := "the digest "+of.Digest, cmp.Or(c.Digest, "no digest")
	if of.Digest == "" {
		wanted, applied = "revision "+of.Revision, cmp.Or(c.Revision, "no revision")
	}
	if strings.HasPrefix(c.Revision, of.Revision) && strings.HasPrefix(c.Digest, of.Digest) {
		return nil
	}
	err := fmt.Errorf("the daemon has not applied the configuration with %s: it has %s", wanted, applied)
	switch {
	case c.Fault != "":
		err = fmt.Errorf("%w: %s", err, oneLine(c.Fault))
	case len(c.Errors) > 0:
		err = fmt.Errorf("%w: %s", err, c.firstError())
	case of.Revision != "" && c.Revision == "":
		err = fmt.Errorf("%w: its directory is not a git checkout: use --digest", err)
	}
	return &NotReadyError{[]error{err}}
}

// CheckReady checks that the images in names have all desired copies ready. Without names, it checks
// all declared images and that the configuration is valid. The error is a *NotReadyError, or a
// *NotDeclaredError for a named image that is not declared.
func (s Status) CheckReady(names []string) error {
	if s.Config.Allowed == schema.ObserveOnly.String() {
		return &NotReadyError{[]error{fmt.Errorf("the configuration is unknown: %s", cmp.Or(s.Config.Fault, s.Config.firstError()))}}
	}
	var lines []error
	if len(names) == 0 {
		for _, image := range s.Images {
			if image.Declared {
				names = append(names, image.Name)
			}
		}
		switch {
		case s.Config.Fault != "": // the status shows the last valid declarations
			lines = append(lines, fmt.Errorf("the configuration is unusable: %s", oneLine(s.Config.Fault)))
		case s.Config.Digest == "":
			lines = append(lines, fmt.Errorf("the configuration has errors: %s", s.Config.firstError()))
		}
	}
	for _, name := range names {
		image, declared := s.declaredImage(name)
		switch {
		case !declared:
			return &NotDeclaredError{name}
		case !image.AllReady():
			lines = append(lines, s.notReadyError(image))
		}
	}
	if len(lines) > 0 {
		return &NotReadyError{lines}
	}
	return nil
}

func (c ConfigStatus) firstError() string {
	if len(c.Errors) == 0 {
		return "it was not read yet"
	}
	return oneLine(c.Errors[0])
}

// declaredImage returns a declared image. An image whose declaration is invalid counts as
// declared: its message has the error.
func (s Status) declaredImage(name string) (image ImageStatus, ok bool) {
	for _, image := range s.Images {
		if image.Name == name && (image.Declared || len(s.Config.Errors) > 0 && image.Message != "") {
			return image, true
		}
	}
	return ImageStatus{}, false
}

// maxReasons is the number of copies that an error describes. An image on all disks may have
// hundreds.
const maxReasons = 3

// notReadyError returns the number of ready copies and the message of the image. Without a message of
// the image, it returns those of the copies that are not ready.
func (s Status) notReadyError(image ImageStatus) error {
	count := fmt.Sprintf("%s: %d of %d copies ready", image.Name, image.Ready, image.Desired)
	if image.Message != "" {
		return fmt.Errorf("%s: %s", count, oneLine(image.Message))
	}
	parts := []string{count}
	for _, c := range image.Copies {
		if c.State != model.Ready {
			parts = append(parts, fmt.Sprintf("%s is %s: %s", c.DiskName(), c.State, cmp.Or(oneLine(c.Summary()), s.unexplained(image, c))))
		}
	}
	return errors.New(plan.JoinMax(parts, "; ", 1+maxReasons))
}

// unexplained returns what is known about a copy without a message: the plan of this node for the
// image, or which daemon to ask. A node publishes the state of its copies, but not all reasons.
func (s Status) unexplained(image ImageStatus, c CopyStatus) string {
	if c.Node != s.Node {
		if url, ok := s.urlOf(c.Node); ok {
			return "its node has the reason: backing-image-manager status --url " + url
		}
		return fmt.Sprintf("the daemon of node %s has the reason", c.Node)
	}
	for _, a := range s.Plan.Actions {
		if a.Image == image.Name && a.UUID == image.UUID {
			return fmt.Sprintf("the plan has %s on %s/%s: %s", a.Op, a.Node, a.Disk, oneLine(a.Text))
		}
	}
	return "nothing is planned for the image on this node"
}

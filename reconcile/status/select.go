package status

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// DiskName returns the name of the disk of the copy: NODE/DISK, or without a daemon the path of the
// disk.
func (c CopyStatus) DiskName() string {
	if c.Node == "" {
		return c.Disk
	}
	return c.Node + "/" + c.Disk
}

// String returns the copy and its disk, for messages.
func (c CopyStatus) String() string { return fmt.Sprintf("%s on %s", c.ID, c.DiskName()) }

// StateText returns the state of the copy and its message in one line.
func (c CopyStatus) StateText() string {
	if c.Message == "" {
		return string(c.State)
	}
	return string(c.State) + ": " + oneLine(c.Message)
}

// Summary returns the message of the copy, its use, its signature if it is ready, and when it proceeds or is tried again.
func (c CopyStatus) Summary() string {
	var parts []string
	if c.Message != "" {
		parts = append(parts, c.Message)
	}
	inMessage := c.Message != "" && (c.Code == plan.CodeInUse || c.Code == plan.CodeDamagedInUse) // the message already says what uses the copy
	if c.UsedBy != "" && !inMessage {
		parts = append(parts, c.UsedBy)
	}
	if c.Signature.Signer != "" && c.State == model.Ready {
		parts = append(parts, "signed by "+c.Signature.String())
	}
	switch {
	case c.Until.IsZero():
	case c.Code == plan.CodeRetry, c.Code == plan.CodeRejected, c.Failure != nil && c.Failure.RetryAt.Equal(c.Until):
		parts = append(parts, "next attempt at "+c.Until.Format(time.RFC3339))
	default:
		parts = append(parts, "until "+c.Until.Format(time.RFC3339))
	}
	return strings.Join(parts, "; ")
}

// StateOrder are the states, the best one first.
var StateOrder = []model.State{model.Ready, model.InProgress, model.Starting, model.Pending, model.Unknown, model.Failed}

// CompareStates orders states, the best one first.
func CompareStates(a, b model.State) int {
	return cmp.Compare(slices.Index(StateOrder, a), slices.Index(StateOrder, b))
}

// CopiesOn returns the copies on the disks with the names in on, the best copy first. Without names
// it returns all copies.
func CopiesOn(copies []CopyStatus, on []string) []CopyStatus {
	kept := []CopyStatus{}
	for _, c := range copies {
		if len(on) == 0 || slices.Contains(on, c.DiskName()) {
			kept = append(kept, c)
		}
	}
	slices.SortStableFunc(kept, func(a, b CopyStatus) int {
		return cmp.Or(CompareStates(a.State, b.State), cmp.Compare(b.Progress, a.Progress), cmp.Compare(a.DiskName(), b.DiskName()))
	})
	return kept
}

// CompareGenerations orders the generations of an image for output: first the declared generation, then
// generations that are not surplus, then surplus generations. Within these groups, the state of the
// best copy decides. The copies of each generation must be sorted as by CopiesOn.
func CompareGenerations(a, b ImageStatus) int {
	rank := func(image ImageStatus) int {
		switch {
		case image.Declared:
			return 0
		case len(image.Copies) > 0 && image.Copies[0].SurplusSince.IsZero():
			return 1
		}
		return 2
	}
	if n := cmp.Compare(rank(a), rank(b)); n != 0 {
		return n
	}
	if len(a.Copies) > 0 && len(b.Copies) > 0 {
		if n := CompareStates(a.Copies[0].State, b.Copies[0].State); n != 0 {
			return n
		}
	}
	return cmp.Compare(a.UUID, b.UUID)
}

// Generations returns the generations of the image with a name, in the order of CompareGenerations, or the generation
// <name>-<uuid>. If on has names of disks, only copies on these disks count, and generations without such a copy are left out.
func Generations(images []ImageStatus, name string, on []string) []ImageStatus {
	var found []ImageStatus
	for _, image := range images {
		if image.Name != name && image.ID().String() != name {
			continue
		}
		image.Copies = CopiesOn(image.Copies, on)
		if len(on) == 0 || len(image.Copies) > 0 {
			found = append(found, image)
		}
	}
	slices.SortFunc(found, CompareGenerations)
	return found
}

// maxNames is how many images an error names. There may be thousands.
const maxNames = 50

// NoSuchImage returns the error for a name that Generations does not find.
func NoSuchImage(images []ImageStatus, name string, on []string) error {
	var names []string
	for _, image := range images {
		if len(on) == 0 || len(CopiesOn(image.Copies, on)) > 0 {
			names = append(names, image.Name)
		}
	}
	slices.Sort(names)
	where := name
	if len(on) > 0 {
		where += " on " + strings.Join(on, ", ")
	}
	if len(names) == 0 {
		return fmt.Errorf("no image %s: there are no images", where)
	}
	return fmt.Errorf("no image %s: the images are %s", where, plan.JoinMax(slices.Compact(names), ", ", maxNames))
}

// FindReady returns the first result of Generations, and its ready copies on the node of the status,
// the best copy first. If there is no such copy, the error says why, and which other nodes have a ready copy.
func (s Status) FindReady(name string, on []string) (ImageStatus, []CopyStatus, error) {
	found := Generations(s.Images, name, on)
	if len(found) == 0 {
		return ImageStatus{}, nil, NoSuchImage(s.Images, name, on)
	}
	image := found[0]
	ready := slices.DeleteFunc(slices.Clone(image.Copies), func(c CopyStatus) bool {
		return c.Node != s.Node || c.State != model.Ready || c.Leaving || c.ManifestDigest.IsZero()
	})
	if len(ready) == 0 {
		return image, nil, s.noReadyCopy(image)
	}
	return image, ready, nil
}

// noReadyCopy returns the reasons why the node has no ready copy, and the other nodes that have a ready copy.
func (s Status) noReadyCopy(image ImageStatus) error {
	var own, others []string
	for _, c := range image.Copies {
		switch {
		case c.Node == s.Node && c.State == model.Ready && c.Leaving:
			own = append(own, "the copy on "+c.Disk+" has a pending deletion")
		case c.Node == s.Node && c.State == model.Ready:
			own = append(own, "the copy on "+c.Disk+" has no chunk manifest yet")
		case c.Node == s.Node:
			own = append(own, fmt.Sprintf("on %s it is %s", c.Disk, c.StateText()))
		case c.State == model.Ready && !c.Leaving:
			advice := c.DiskName() + " has a ready copy: call its daemon"
			if url, ok := s.urlOf(c.Node); ok {
				advice += " with --url " + url
			}
			others = append(others, advice)
		}
	}
	id := image.ID()
	reason := cmp.Or(strings.Join(own, "; "), oneLine(image.Message), "it has no copy")
	return errors.New(strings.Join(append([]string{fmt.Sprintf("%s is not ready on node %s: %s", id, s.Node, reason)}, others...), "; "))
}

// urlOf returns the address of the daemon of another node without secrets, if it is declared.
func (s Status) urlOf(node string) (url string, ok bool) {
	for _, p := range s.Peers {
		if p.Node == node && p.Address != "" {
			return text.RedactURL(p.Address), true
		}
	}
	return "", false
}

// FindHolder returns another node with a ready copy of a declared image and a declared address.
func (s Status) FindHolder(image string) (node, url string, ok bool) {
	if declared, ok := s.declaredImage(image); ok {
		for _, c := range declared.Copies {
			if url, ok := s.urlOf(c.Node); ok && c.State == model.Ready {
				return c.Node, url, true
			}
		}
	}
	return "", "", false
}

func oneLine(s string) string {
	return text.Line(strings.ReplaceAll(strings.TrimSpace(s), "\n", "; "))
}

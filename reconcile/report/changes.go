package report

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// WriteStatusChanges writes what differs between two documents: a line for the configuration, and one for each peer, disk,
// image and copy. Durations, progress and times alone make no difference. If the earlier document is the zero Status, the
// lines are the configuration, the images, and what is not ready.
func WriteStatusChanges(w io.Writer, was, now status.Status) error {
	before, old := map[string]string{}, facts(was)
	for _, f := range old {
		before[f.subject] = f.text
	}
	first := was.Node == ""
	var b lines
	add := func(subject, text string) { b.linef("%s %s: %s", now.Time.Format(time.RFC3339), subject, text) }
	for _, f := range facts(now) {
		text, known := before[f.subject]
		delete(before, f.subject)
		if known && status.WithoutDurations(text) != status.WithoutDurations(f.text) || !known && !(first && f.good) {
			add(f.subject, f.text)
		}
	}
	for _, f := range old {
		if _, removed := before[f.subject]; removed {
			add(f.subject, "removed")
		}
	}
	return b.writeTo(w)
}

// fact is what a status says about one subject.
type fact struct {
	subject, text string
	good          bool // the lines for the first document leave it out
}

// facts returns what a status says, in the order of its tables.
func facts(s status.Status) (all []fact) {
	add := func(good bool, text, subject string, args ...any) {
		all = append(all, fact{fmt.Sprintf(subject, args...), text, good})
	}
	if s.Node == "" {
		return nil
	}
	add(false, configText(s.Config), "configuration")
	for _, p := range s.Peers {
		text := "responds"
		if !p.Responds {
			text = "does not respond: " + peerProblem(s.Time, p)
		} else if p.Skew != status.SkewSame {
			text += ", configuration " + string(p.Skew)
		}
		add(p.Responds && p.Skew == status.SkewSame, text, "peer %s", p.Node)
	}
	for _, d := range s.Disks {
		problem := diskProblem(d)
		text := problem
		if problem == "" {
			text = "usable"
		}
		add(problem == "", text, "disk %s/%s", d.Node, d.Name)
	}
	for _, image := range s.Images {
		add(false, imageText(image), "image %s-%s", image.Name, image.UUID)
		for _, c := range image.Copies {
			if c.Absent() && c.Rejection != "" {
				continue // the disk takes no copy
			}
			add(c.State == model.Ready, copyText(c), "copy %s-%s on %s", image.Name, image.UUID, c.DiskName())
		}
	}
	return all
}

func configText(c status.ConfigStatus) string {
	var b lines
	c.Skew, c.Warnings = "", nil // the skew is a fact about peers
	writeConfig(&b, c)
	text := strings.TrimPrefix(strings.TrimSpace(b.b.String()), "Configuration: ")
	return strings.Join(strings.Fields(strings.ReplaceAll(text, "\n", "; ")), " ")
}

func imageText(image status.ImageStatus) string {
	text := fmt.Sprintf("%d/%d ready", image.Ready, image.Desired)
	if !image.Declared {
		text = "not declared"
	}
	if s := image.Suspended; s != nil && !s.Over {
		text += ", suspended " + suspensionText(*s)
	}
	if image.Message != "" {
		text += "; " + clip(image.Message)
	}
	return text
}

// copyText returns the state of a copy with its message. It omits the message of a copy that is ready or in progress,
// because that message has only the planned action.
func copyText(c status.CopyStatus) string {
	if c.State == model.Ready || c.State == model.InProgress {
		return string(c.State)
	}
	return clip(c.StateText())
}

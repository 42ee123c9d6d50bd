package notification

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/printable"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Kind is what holds for an image or for the configuration. Kinds are added; none changes its meaning.
type Kind string

// The kinds.
const (
	NotReady       Kind = "not-ready"       // fewer copies are ready than are desired; its end is that the image is ready
	Failed         Kind = "failed"          // the last attempt to create or keep a copy failed
	Blocked        Kind = "blocked"         // the image cannot proceed until a person changes something
	Damaged        Kind = "damaged"         // a copy is damaged, or was found damaged within DamageShown
	PruneLimit     Kind = "prune-limit"     // more images were removed at once than pruneLimit allows
	SuspensionOver Kind = "suspension-over" // a suspension has ended, and is still declared
)

// Condition is what an episode is about. Image is "" for the configuration as a whole.
type Condition struct {
	Kind  Kind
	Image string
}

// CompareConditions orders conditions by image and kind.
func CompareConditions(a, b Condition) int {
	return cmp.Or(strings.Compare(a.Image, b.Image), strings.Compare(string(a.Kind), string(b.Kind)))
}

// DamageShown is for how long a damage counts after it was found, also if the copy was repaired at once: the disk may be faulty.
const DamageShown = time.Hour

// Observation is which conditions hold.
type Observation struct {
	on      map[Condition]string // with a text for people
	unknown bool                 // nothing is known of the conditions that are not on
	silent  bool                 // a node does not respond
	partial map[string]bool      // images with copies on nodes that do not respond
}

// blockingCodes are the reasons of single copies that only a person can remove. A node knows the reasons of other nodes by
// their codes, and all nodes must judge alike.
var blockingCodes = map[model.Code]bool{
	plan.CodeRejected: true, plan.CodeDemandRejected: true, plan.CodeNamedDisk: true, plan.CodeUploadLost: true, plan.CodeCloneUndeclared: true,
	plan.CodeDamagedInUse: true, plan.CodeChecksumMismatch: true, plan.CodeConflict: true, plan.CodeVerifyRequired: true, plan.CodeReplenishOff: true,
	plan.CodeTooFewDisks: true, plan.CodeNoMatchingDisk: true, plan.CodeAllEvicted: true, plan.CodeInvalidImage: true, plan.CodeDiskDisputed: true,
}

// Observe returns which conditions hold according to a status document. Only declared images have conditions.
func Observe(s status.Status) Observation {
	o := Observation{on: map[Condition]string{}, partial: map[string]bool{}, unknown: s.Config.Allowed == schema.ObserveOnly.String()}
	away := map[string]bool{}
	for _, p := range s.Peers {
		away[p.Node] = !p.Responds
		o.silent = o.silent || !p.Responds
	}
	if by := s.Config.Suspended; by != nil && by.Over {
		o.add(Condition{SuspensionOver, ""}, "the suspension of all images has ended, and is still declared: "+by.Reason)
	}
	for _, image := range s.Images {
		for _, c := range image.Copies {
			if codeOf(s, c) == plan.CodePruneLimit {
				o.add(Condition{PruneLimit, ""}, "more images were removed from the configuration at once than pruneLimit allows: confirm them in pruneConfirmed, or declare them again")
			}
		}
		if image.Declared {
			o.observeImage(s, image, away)
		}
	}
	return o
}

func (o *Observation) observeImage(s status.Status, image status.ImageStatus, away map[string]bool) {
	if by := image.Suspended; by != nil && by.Over && (s.Config.Suspended == nil || *by != *s.Config.Suspended) {
		o.add(Condition{SuspensionOver, image.Name}, "the suspension of the image has ended, and is still declared: "+by.Reason)
	}
	if !image.AllReady() {
		o.add(Condition{NotReady, image.Name}, fmt.Sprintf("%d of %d desired copies are ready", min(image.Ready, image.Desired), image.Desired))
	}
	if blockingCodes[image.Code] {
		o.add(Condition{Blocked, image.Name}, image.Message)
	}
	for _, c := range image.Copies {
		o.partial[image.Name] = o.partial[image.Name] || away[c.Node]
		code := codeOf(s, c)
		if f := c.Failure; f != nil && f.Attempts > 0 && c.State != model.Ready && code != plan.CodeCleanupInterval {
			o.add(Condition{Failed, image.Name}, c.DiskName()+": "+f.Message)
		}
		if blockingCodes[code] {
			o.add(Condition{Blocked, image.Name}, fmt.Sprintf("%s: %s", c.DiskName(), cmp.Or(c.Message, string(code))))
		}
		switch age := s.Time.Sub(c.DamagedAt); {
		case c.Observed != nil && c.Observed.State == model.Failed:
			o.add(Condition{Damaged, image.Name}, c.DiskName()+": "+cmp.Or(c.Observed.Message, "the copy is damaged"))
		case !c.DamagedAt.IsZero() && age.Abs() < DamageShown:
			o.add(Condition{Damaged, image.Name}, c.DiskName()+": the copy was found damaged, and was replaced or repaired")
		}
	}
}

// codeOf returns why a copy is not created, completed or deleted: by the plan of this node, or as its node published it.
func codeOf(s status.Status, c status.CopyStatus) model.Code {
	if c.Node == s.Node {
		return c.Code
	}
	return c.Reason.Code
}

const (
	maxText   = 300 // runes of one text
	maxPlaces = 3   // texts about one condition
)

// add makes a condition hold, and adds a text to those about it.
func (o *Observation) add(c Condition, text string) {
	switch before, on := o.on[c]; {
	case !on:
		o.on[c] = clip(text)
	case strings.Count(before, "; ") < maxPlaces-1 && c.Image != "":
		o.on[c] = before + "; " + clip(text)
	}
}

// clip makes a text from outside printable and short. "; " joins texts.
func clip(text string) string {
	text = text[:min(len(text), 4*maxText)] // a rune has at most four bytes
	r := []rune(strings.ReplaceAll(printable.Line(text), "; ", ", "))
	if len(r) > maxText {
		r = append(r[:maxText], '…')
	}
	return string(r)
}

// isUnknown reports whether it is not known whether a condition that is not on holds.
func (o Observation) isUnknown(c Condition) bool {
	switch c.Kind {
	case NotReady, SuspensionOver:
		return o.unknown
	case PruneLimit:
		return o.unknown || o.silent
	}
	return o.unknown || o.partial[c.Image]
}

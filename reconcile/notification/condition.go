package notification

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Kind is what holds for an image or for the configuration. New kinds may be added; no kind changes its meaning.
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

// Condition is what an episode is about: the copies of an image on one node. If Node is "", it is an image in the whole
// cluster; if Image is "" too, the configuration.
type Condition struct {
	Kind        Kind
	Image, Node string
}

// DamageShown is for how long a damage counts after it was found, even if the copy was repaired at once: the disk may be faulty.
const DamageShown = time.Hour

// observation shows which conditions hold, for the whole cluster and for the copies on this node.
type observation struct {
	on      map[Condition]string // with a text for people
	unknown bool                 // conditions that are not in the field on may hold, too
}

// blockingCodes are the reasons that only a person can remove.
var blockingCodes = map[model.Code]bool{
	plan.CodeRejected: true, plan.CodeNeedRejected: true, plan.CodeNamedDisk: true, plan.CodeUploadLost: true, plan.CodeCloneUndeclared: true,
	plan.CodeDamagedInUse: true, plan.CodeChecksumMismatch: true, plan.CodeConflict: true, plan.CodeVerifyRequired: true, plan.CodeReplenishOff: true,
	plan.CodeTooFewDisks: true, plan.CodeNoMatchingDisk: true, plan.CodeAllEvicted: true, plan.CodeInvalidImage: true, plan.CodeDiskDisputed: true,
}

// observe returns which conditions hold according to the status document of a node. Only declared images have conditions.
func observe(s status.Status) observation {
	o := observation{on: map[Condition]string{}, unknown: s.Config.Allowed == schema.ObserveOnly.String()}
	if by := s.Config.Suspended; by != nil && by.Over {
		o.add(Condition{Kind: SuspensionOver}, "the suspension of all images has ended, and is still declared: "+by.Reason)
	}
	for _, image := range s.Images {
		for _, c := range image.Copies {
			if c.Code == plan.CodePruneLimit || c.Reason.Code == plan.CodePruneLimit {
				o.add(Condition{Kind: PruneLimit}, "more images were removed from the configuration at once than pruneLimit allows: confirm them in pruneConfirmed, or declare them again")
			}
		}
		if image.Declared {
			o.observeImage(s, image)
		}
	}
	return o
}

func (o *observation) observeImage(s status.Status, image status.ImageStatus) {
	if by := image.Suspended; by != nil && by.Over && (s.Config.Suspended == nil || *by != *s.Config.Suspended) {
		o.add(Condition{Kind: SuspensionOver, Image: image.Name}, "the suspension of the image has ended, and is still declared: "+by.Reason)
	}
	if !image.AllReady() {
		o.add(Condition{Kind: NotReady, Image: image.Name}, fmt.Sprintf("%d of %d desired copies are ready", min(image.Ready, image.Desired), image.Desired))
	}
	if blockingCodes[image.Code] {
		o.add(Condition{Kind: Blocked, Image: image.Name}, image.Message)
	}
	for _, c := range image.Copies {
		if c.Node == s.Node {
			o.observeCopy(s.Time, image.Name, c)
		}
	}
}

// observeCopy adds the conditions of a copy of this node.
func (o *observation) observeCopy(now time.Time, image string, c status.CopyStatus) {
	if f := c.Failure; f != nil && f.Attempts > 0 && c.State != model.Ready && c.Code != plan.CodeCleanupInterval {
		o.add(Condition{Failed, image, c.Node}, c.DiskName()+": "+f.Message)
	}
	if blockingCodes[c.Code] {
		o.add(Condition{Blocked, image, c.Node}, fmt.Sprintf("%s: %s", c.DiskName(), cmp.Or(c.Message, string(c.Code))))
	}
	switch age := now.Sub(c.DamagedAt); {
	case c.Observed != nil && c.Observed.State == model.Failed:
		o.add(Condition{Damaged, image, c.Node}, c.DiskName()+": "+cmp.Or(c.Observed.Message, "the copy is damaged"))
	case !c.DamagedAt.IsZero() && age.Abs() < DamageShown:
		o.add(Condition{Damaged, image, c.Node}, c.DiskName()+": the copy was found damaged, and was replaced or repaired")
	}
}

const (
	maxText   = 300 // runes of one text
	maxPlaces = 3   // texts about one condition
)

// add records that a condition holds, and adds a text about it.
func (o *observation) add(c Condition, text string) {
	switch before, on := o.on[c]; {
	case !on:
		o.on[c] = clip(text)
	case strings.Count(before, "; ") < maxPlaces-1 && c.Image != "":
		o.on[c] = before + "; " + clip(text)
	}
}

// clip makes a text from outside printable and short. It replaces "; ", which joins texts.
func clip(s string) string {
	s = s[:min(len(s), 4*maxText)] // a rune has at most four bytes
	r := []rune(strings.ReplaceAll(text.Line(s), "; ", ", "))
	if len(r) > maxText {
		r = append(r[:maxText], '…')
	}
	return string(r)
}

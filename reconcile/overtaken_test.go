package reconcile

import (
	"log/slog"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// goesOn reports whether an action of an image that is under way goes on in the next round.
func goesOn(d Desired, o Observed, a Action, image schema.Image) (on bool, now Plan) {
	r := New(fetch.Client{}, slog.New(slog.DiscardHandler), true)
	r.running[a.Key()] = &running{job: job{action: a, image: image}, stop: func() {}}
	o.Running[a.Key()] = true
	now = d.Plan(o)
	r.stopObsolete(d, now)
	return !r.running[a.Key()].stopped, now
}

func failedCopy(image schema.Image, sum disk.Digest) Copy {
	c := readyCopy(image, sum)
	c.State, c.Message, c.Damaged = disk.Failed, "it is damaged", goldenNow.Add(-time.Minute)
	return c
}

// A first copy of whatever bytes is under way when a node comes back whose copy failed a
// minute ago: until the recovery interval is over, no other bytes may take its place.
func TestFirstCopyIsOvertakenByARecall(t *testing.T) {
	c, image, refs := duo(1)
	image.Checksum = disk.Digest{}
	c.Images["parrot"] = image
	o := bare(c)
	d, o := of(refs[0].Node, c, o)
	a := newAction(Download, Key{refs[0], image.ID}, "", UnknownBytes)
	if on, now := goesOn(d, o, a, image); !on {
		t.Errorf("stopped for nothing: %+v", now.Actions)
	}
	o.Disks[refs[1]].Copies[image.ID] = failedCopy(image, digestOf(disk.SHA512, "a"))
	if on, now := goesOn(d, o, a, image); on {
		t.Errorf("whatever comes is committed, although the plan is %+v", now.Actions)
	}
	a.recall = recall{digest: digestOf(disk.SHA512, "a"), until: goldenNow.Add(4 * time.Minute)}
	if on, now := goesOn(d, o, a, image); !on {
		t.Errorf("stopped, although it has to have those bytes: %+v", now.Actions)
	}
	delete(o.Disks[refs[1]].Copies, image.ID)
	if on, now := goesOn(d, o, a, image); !on {
		t.Errorf("stopped, although the bytes that it has to have are as good as others: %+v", now.Actions)
	}
}

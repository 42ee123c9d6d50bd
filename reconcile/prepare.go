package reconcile

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// prepare is how the first copy comes to be.
func (v imageView) prepare(ref schema.DiskRef, reason string) Action {
	if v.image.Source.Upload != nil && v.lost() {
		return v.blocked(ref, "no copy is ready any more, and what was uploaded cannot be fetched again: "+
			"bring back a disk that has it, or the file under a new checksum")
	}
	if kind := v.image.Source.Kind(); kind != schema.KindDownload {
		return v.blocked(ref, fmt.Sprintf("source %s is not supported yet", kind))
	}
	if t := v.sourceTry(); t.puts(Download, v.o.Now) {
		return v.putOff(ref, t)
	}
	if why, until := v.unheard(); why != "" {
		if from, ok := v.interrupted(ref); ok {
			return v.reading(newAction(Sync, Key{ref, v.image.ID}, reason, UnknownBytes), from)
		}
		a := v.wait(ref, why)
		a.Until = until
		return a
	}
	bytes := int64(UnknownBytes)
	if c := v.copy(Key{ref, v.image.ID}); c.PartTotal > 0 {
		bytes = max(0, c.PartTotal-c.PartBytes)
	}
	a := v.try(Download, ref, reason, bytes)
	a.recall = v.recall()
	return a
}

// lost reports whether the image had a copy once.
func (v imageView) lost() bool {
	return slices.ContainsFunc(v.all(v.image.ID.Name), func(key Key) bool {
		return key.ID == v.image.ID && v.copy(key).State == disk.Failed
	})
}

// skew is how far in the future a time may be that is still believed to be one of
// about now.
const skew = 24 * time.Hour

// recall is the digest that the image had, until it may be established anew.
func (v imageView) recall() (last recall) {
	if d := v.image.Source.Download; !v.image.Checksum.IsZero() || d.ChecksumURL != "" {
		return recall{} // the digest is known from elsewhere
	}
	for _, key := range v.all(v.image.ID.Name) {
		c := v.copy(key)
		since := c.Damaged
		if key.ID != v.image.ID || c.State != disk.Failed || c.SHA512.IsZero() || since.Before(epoch) || since.Sub(v.o.Now) > skew {
			continue
		}
		if since.After(v.o.Now) {
			since = v.o.Now // by a clock that was set since, or is ahead
		}
		end := since.Add(v.Config.Settings.RecoveryWaitInterval)
		if end.After(v.o.Now) && end.After(last.until) {
			last = recall{digest: c.SHA512, until: end}
		}
	}
	return last
}

// sourceTry is the failure that puts the source off the longest: it is the image's,
// and no other disk need meet it again, nor another node, but for what may be the
// fault of the way there.
func (v imageView) sourceTry() Try {
	var worst Try
	for name, node := range v.Config.Nodes {
		for diskName := range node.Disks {
			ref := schema.DiskRef{Node: name, Disk: diskName}
			t := v.o.Tries[Key{ref, v.image.ID}]
			switch {
			case t.Attempts == 0, t.Disk, t.Space > 0, !t.of(Download), worst.Final && !t.Final, t.Link && name != v.Node:
			case t.Final && !worst.Final, t.Until.After(worst.Until), t.Until.Equal(worst.Until) && t.Message < worst.Message:
				worst = t
			}
		}
	}
	return worst
}

package reconcile

import (
	"fmt"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// prepare is how the first copy comes to be.
func (v imageView) prepare(ref schema.DiskRef, reason string) Action {
	if kind := v.image.Source.Kind(); kind != schema.KindDownload {
		return v.blocked(ref, fmt.Sprintf("source %s is not supported yet", kind))
	}
	if t := v.sourceTry(); t.puts(Download, v.o.Now) {
		return v.putOff(ref, t)
	}
	bytes := int64(UnknownBytes)
	if c := v.copy(Key{ref, v.image.ID}); c.PartTotal > 0 {
		bytes = max(0, c.PartTotal-c.PartBytes)
	}
	a := v.try(Download, ref, reason, bytes)
	a.recall = v.recall()
	return a
}

// recall is the digest that the image had, until it may be established anew.
func (v imageView) recall() (last recall) {
	if d := v.image.Source.Download; !v.image.Checksum.IsZero() || d.ChecksumURL != "" {
		return recall{} // the digest is known from elsewhere
	}
	for _, key := range v.named[v.image.ID.Name] {
		c := v.copy(key)
		if key.ID != v.image.ID || c.State != disk.Failed || c.SHA512.IsZero() || implausible(c.Damaged, v.o.Now) {
			continue
		}
		end := c.Damaged.Add(v.Config.Settings.RecoveryWaitInterval)
		if end.After(v.o.Now) && end.After(last.until) {
			last = recall{digest: c.SHA512, until: end}
		}
	}
	return last
}

// sourceTry is the failure that puts the source off the longest, on whatever disk
// of this node it was: it is the image's and no other disk need meet it again.
func (v imageView) sourceTry() Try {
	var worst Try
	for ref := range v.o.Disks {
		t := v.o.Tries[Key{ref, v.image.ID}]
		switch {
		case !v.mine(ref), t.Disk, t.Space > 0, !t.of(Download), worst.Final && !t.Final:
		case t.Final && !worst.Final, t.Until.After(worst.Until), t.Until.Equal(worst.Until) && t.Message < worst.Message:
			worst = t
		}
	}
	return worst
}

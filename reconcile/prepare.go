package reconcile

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// preparation is the kind of action that makes the first copy.
func (v imageView) preparation() Kind {
	switch v.image.Source.Kind() {
	case schema.KindUpload:
		return Upload
	case schema.KindExportFromVolume:
		return Export
	case schema.KindRestore:
		return Restore
	case schema.KindClone:
		return Clone
	}
	return Download
}

// prepare is how the first copy comes to be.
func (v imageView) prepare(ref schema.DiskRef, reason string) Action {
	kind := v.preparation()
	if t := v.sourceTry(); kind != Upload && t.puts(kind, v.o.Now) {
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
	switch {
	case kind == Upload:
		return v.awaitUpload(ref, reason)
	case kind == Clone:
		return v.clone(ref, reason)
	}
	return v.make(kind, ref, reason)
}

// make makes the first copy of what is declared.
func (v imageView) make(kind Kind, ref schema.DiskRef, reason string) Action {
	bytes := int64(UnknownBytes)
	if c := v.copy(Key{ref, v.image.ID}); c.PartTotal > 0 {
		bytes = max(0, c.PartTotal-c.PartBytes)
	}
	a := v.try(kind, ref, reason, bytes)
	a.recall = v.recall()
	return a
}

// UploadOrigin is the disk.PartSource.ID of a part that a client uploads.
const UploadOrigin = upload.PartSourceID

// awaitUpload takes what a client has begun to upload, or waits for one to come. What
// failed before does not count: the next file may be another one.
func (v imageView) awaitUpload(ref schema.DiskRef, reason string) Action {
	key := Key{ref, v.image.ID}
	c := v.copy(key)
	if begun := c.PartSourceID == UploadOrigin; v.Uploads != nil && (begun || v.Uploads[key] || v.o.Running[key]) {
		bytes := int64(UnknownBytes)
		if begun && c.PartTotal > 0 {
			bytes = max(0, c.PartTotal-c.PartBytes)
		}
		if c.PartBytes == 0 && c.State != disk.Failed {
			reason = "a client sends it"
		}
		reason += fmt.Sprintf("; if its client has stopped, it goes on with: %s", v.uploadCommand())
		a := newAction(Upload, key, reason, bytes)
		if !v.Uploads[key] {
			a = v.try(Upload, ref, reason, bytes) // what is left of one is only tried again
		}
		a.recall = v.recall()
		return a
	}
	return v.awaitFile(ref)
}

func (v imageView) uploadCommand() string {
	return "backing-image-manager backing-image upload " + v.image.ID.Name + " FILE"
}

// awaitFile waits for somebody to begin an upload, wherever that will be.
func (v imageView) awaitFile(ref schema.DiskRef) Action {
	key := Key{ref, v.image.ID}
	c := v.copy(key)
	command := v.uploadCommand()
	if v.lost() {
		why := ""
		if c.State == disk.Failed {
			why = " (" + c.Message + ")"
		}
		return v.blocked(ref, "no copy is ready any more"+why+", and what was uploaded cannot be fetched again: "+
			"bring back a disk that has it, or upload the file again: "+command)
	}
	if t := v.o.Tries[key]; t.Attempts > 0 && t.of(Upload) {
		return v.wait(ref, "the upload failed: "+t.Message+"; waiting for another one: "+command)
	}
	return v.wait(ref, "waiting for upload: "+command)
}

// lost reports whether the image had a copy once.
func (v imageView) lost() bool {
	return slices.ContainsFunc(v.all(v.image.ID.Name), func(key Key) bool {
		return key.ID == v.image.ID && v.copy(key).State == disk.Failed
	})
}

// unable says why this node cannot make the first copy although nobody else has made
// it, and none can be had.
func (v imageView) unable() string {
	if len(v.ready)+len(v.sameHere())+len(v.sameThere()) > 0 {
		return ""
	}
	if v.image.Source.Clone != nil {
		return v.cannotClone()
	}
	return v.o.Unable[v.image.ID]
}

// skew is how far in the future a time may be that is still believed to be one of
// about now.
const skew = 24 * time.Hour

// recall is the digest that the image had, until it may be established anew.
func (v imageView) recall() (last recall) {
	if d := v.image.Source.Download; !v.image.Checksum.IsZero() || d != nil && d.ChecksumURL != "" {
		return recall{} // the digest is known from elsewhere
	}
	for _, key := range v.all(v.image.ID.Name) {
		c := v.copy(key)
		since := c.DamagedAt
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
			case t.Attempts == 0, t.Disk, t.Space > 0, !t.of(v.preparation()), worst.Final && !t.Final, t.Link && name != v.Node:
			case t.Final && !worst.Final, t.Until.After(worst.Until), t.Until.Equal(worst.Until) && t.Message < worst.Message:
				worst = t
			}
		}
	}
	return worst
}

package job

import (
	"context"
	"errors"
	"io"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// PeerCopies is where the bytes of a sync or of a repair are on other nodes. A verification may
// turn out to need one.
type PeerCopies struct {
	Client  *peer.Client // nil: nobody is asked, and there are no sources
	Sources func() []peer.Source
	Digest  disk.Digest // what the image has to be
	Size    int64
	Warn    func(error)
}

var errNoSource = &fetch.Error{Class: fetch.Network, Err: errors.New("nobody has a copy to take it from")}

// syncFromPeers makes the copy of those on other nodes, and of the origin where what comes
// from there can be told to be right.
func (j Job) syncFromPeers(ctx context.Context, id disk.ID) error {
	if j.Peers.Client == nil || j.Peers.Digest.IsZero() {
		return errNoSource
	}
	from, done := j.newPull()
	defer done()
	j.Progress.Total.Store(j.Peers.Size)
	each := func(disk.PartSource) bool { return true } // whose chunks are the right ones is of use
	return j.fill(ctx, id, j.Peers.Digest, each, func(part *disk.Part) error {
		return from.Into(ctx, part, j.Peers.Size)
	})
}

// newPull takes bytes from other nodes and, if it is declared what they are, from the
// origin. An origin that cannot be used as it is declared is not needed either.
func (j Job) newPull() (p *peer.Pull, done func()) {
	p = &peer.Pull{
		Client: j.Peers.Client, Sources: j.Peers.Sources, Limit: j.Image.BandwidthLimit, Progress: j.Progress, Warn: j.Peers.Warn,
	}
	d := j.Image.Source.Download
	if d == nil || d.Unpack != schema.UnpackNone || j.Image.Checksum.IsZero() {
		return p, func() {}
	}
	origin, err := j.Client.NewRangeReader(j.request())
	if err != nil {
		return p, func() {}
	}
	p.Upstream = origin
	return p, origin.Close
}

// syncLocal copies a ready image from another disk or folder of this node. It is read
// as any source is: hashed on the way and compared at the end.
func (j Job) syncLocal(ctx context.Context, id disk.ID) error {
	from, r, err := j.openSource()
	if err != nil {
		return err
	}
	defer r.Close()
	j.Progress.Total.Store(from.Size)
	origin := disk.CopySource(from)
	takes := func(o disk.PartSource) bool { return o == origin }
	return j.fill(ctx, id, from.SHA512, takes, func(part *disk.Part) error {
		if part.Source() != origin {
			if err := part.Begin(origin); err != nil {
				return err
			}
		}
		if _, err := r.Seek(part.Offset(), io.SeekStart); err != nil {
			return err
		}
		j.Progress.Done.Store(part.Offset())
		_, err := part.ReadFrom(&ctxReader{ctx: ctx, r: r, progress: j.Progress})
		return errors.Join(err, r.Unchanged())
	})
}

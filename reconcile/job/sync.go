package job

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/schema"
)

var errNoSource = &fetch.Error{Class: fetch.Network, Err: errors.New("no responding node has a ready copy with these bytes")}

// syncFromPeers creates the copy from the ready copies of other nodes. It also reads from the
// upstream, see newPull.
func (j Job) syncFromPeers(ctx context.Context, id ident.ID) error {
	if j.Peers == nil || j.Digest.IsZero() {
		return errNoSource
	}
	pull, done := j.newPull()
	defer done()
	seeds, closeSeeds := j.openSeeds()
	defer closeSeeds()
	pull.Seeds = seeds
	// The pull verifies each chunk of the partial file against the chunk manifest of a peer, so the
	// chunks of any earlier source can be used.
	anySource := func(disk.PartSource) bool { return true }
	err := j.fill(ctx, id, j.Digest, disk.SignatureCheck{}, anySource, func(part *disk.Part) error {
		return pull.Into(ctx, part)
	})
	return withWrongSources(err, pull)
}

// WrongSourcesError is the error of a job that failed because copies on other nodes have other bytes
// than their nodes claim.
type WrongSourcesError struct {
	Sources []peer.Source
	Err     error
}

func (e *WrongSourcesError) Error() string { return e.Err.Error() }

func (e *WrongSourcesError) Unwrap() error { return e.Err }

// withWrongSources returns err together with the sources of the pull that were wrong, if there are any.
func withWrongSources(err error, pull *peer.Pull) error {
	if err == nil {
		return nil
	}
	if wrong := pull.WrongSources(err); len(wrong) > 0 {
		return &WrongSourcesError{wrong, err}
	}
	return err
}

// newPull returns a reader of chunks from other nodes. It also reads from the upstream, if the
// image has a declared checksum and a source that is stored unpacked: only then ranges of the
// upstream are ranges of the image. An upstream that cannot be used is left out, because the
// peers suffice. The caller calls done at the end.
func (j Job) newPull() (p *peer.Pull, done func()) {
	p = &peer.Pull{
		Client: j.Peers, Sources: j.PeerCopies, Limit: j.Image.BandwidthLimit, Progress: j.Progress, Warn: j.Warn,
	}
	d := j.Image.Source.Download
	if d == nil || d.Unpack != schema.UnpackNone || j.Image.Checksum.IsZero() {
		return p, func() {}
	}
	addresses, done, err := j.Client.OpenRanges(DownloadRequest(j.Image), 0)
	if err != nil {
		return p, func() {}
	}
	for _, a := range addresses {
		p.Upstream = append(p.Upstream, a)
	}
	return p, done
}

// syncLocal creates the copy from a ready copy on this node, which is on another disk or of another
// image. The bytes are hashed while they are copied and verified at the end, as with any source: a
// damage of the source may not have been found yet.
func (j Job) syncLocal(ctx context.Context, id ident.ID) error {
	from, r, err := j.openSource()
	if err != nil {
		return err
	}
	defer r.Close()
	j.Progress.Total.Store(from.Size)
	source := disk.CopySource(from)
	canResume := func(o disk.PartSource) bool { return o == source }
	var signed disk.SignatureCheck
	if from.ID == id { // the copy has the same bytes, so that the same signature holds
		signed.End = func() (model.Signature, error) { return from.Signature, nil }
	}
	return j.fill(ctx, id, from.SHA512, signed, canResume, func(part *disk.Part) error {
		if part.Source() != source {
			if err := part.Begin(source); err != nil {
				return err
			}
		}
		if _, err := r.Seek(part.Offset(), io.SeekStart); err != nil {
			return err
		}
		j.Progress.Resume(part.Offset())
		_, err := part.ReadFrom(fetch.CountReader(ctx, localReader{r}, &j.Progress.Done))
		return errors.Join(err, r.Unchanged())
	})
}

// openSource opens the ready copy on this node that the action reads. It fails unless the copy is
// ready: in another state there may be no digest, and then any bytes would be accepted.
func (j Job) openSource() (model.Copy, *disk.Reader, error) {
	source := j.Disks[j.Action.LocalSource.Disk.Disk]
	from := source.Stat(j.Action.LocalSource.ID)
	if from.State != model.Ready {
		return from, nil, fmt.Errorf("open %s: it is %s: %s", from.ID, from.State, from.Message)
	}
	r, err := source.Open(from.ID)
	return from, r, err
}

// localReader reads the copy on another disk of this node, which is the source of a sync.
type localReader struct{ r io.Reader }

func (l localReader) Read(b []byte) (int, error) {
	n, err := l.r.Read(b)
	if errors.Is(err, unix.EIO) {
		// The error code does not show which of the two disks failed. ErrDamaged marks the source
		// as the cause, so that the next attempt reads another copy.
		err = fmt.Errorf("the source %w: %w", disk.ErrDamaged, err)
	}
	return n, err
}

package reconcile

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// far is where the bytes of a sync or of a repair are on other nodes. A verification may
// turn out to need one.
type far struct {
	client  *peer.Client // nil: nobody is asked, and there are no sources
	sources func() []peer.Source
	want    disk.Digest // what the image has to be
	size    int64
	warn    func(error)
}

var errNoSource = &fetch.Error{Class: fetch.Network, Err: errors.New("nobody has a copy to take it from")}

// far says where an action gets its bytes from, if not from this node.
func (s *others) far(d Desired, o Observed, a Action) far {
	f := far{client: s.client, sources: func() []peer.Source { return nil }}
	if a.from != (Key{}) || !a.Kind.pulls() && a.Kind != Verify {
		return f
	}
	f.want = d.bytesOf(o, a)
	for _, seen := range o.Disks {
		for _, c := range seen.Copies {
			if c.HasDigest(f.want) {
				f.size = c.Size
			}
		}
	}
	if watch, nodes := s.watch, d.Config.Nodes; watch != nil {
		f.sources = func() []peer.Source { return sources(watch.Observations(), nodes, f.want) }
	}
	return f
}

// bytesOf is the digest that the copy of an action has to have: without a checksum
// that of what it is made of.
func (d Desired) bytesOf(o Observed, a Action) disk.Digest {
	key, image := a.Key(), d.Config.Images[a.Image]
	if a.Kind == Repair || a.Kind == Verify {
		return o.Disks[key.Disk].Copies[key.ID].SHA512
	}
	if !image.Checksum.IsZero() {
		return image.Checksum
	}
	return a.sum
}

// sources are the copies of the bytes want that the nodes which answer have to give.
func sources(answers map[string]peer.Observation, nodes map[string]schema.Node, want disk.Digest) []peer.Source {
	var all []peer.Source
	for _, name := range slices.Sorted(maps.Keys(answers)) {
		a := answers[name]
		if !a.Polled || a.Problem != "" {
			continue
		}
		at := peer.Address{Node: name, URL: a.URL} // that a transfer began with may be out of date
		for _, one := range a.State.Disks {
			if _, declared := nodes[name].Disks[one.Name]; !declared || one.Problem != "" {
				continue
			}
			for _, c := range one.Copies {
				if c := toldCopy(c); c.HasDigest(want) && !c.Leaving && !c.ManifestDigest.IsZero() {
					all = append(all, peer.Source{Address: at, Disk: one.Name, ID: c.ID, ManifestDigest: c.ManifestDigest})
				}
			}
		}
	}
	return all
}

// pull makes the copy of those on other nodes, and of the origin where what comes
// from there can be told to be right.
func (j job) pull(ctx context.Context, id disk.ID) error {
	if j.far.client == nil || j.far.want.IsZero() {
		return errNoSource
	}
	from, done := j.puller()
	defer done()
	j.progress.Total.Store(j.far.size)
	each := func(disk.PartSource) bool { return true } // whose chunks are the right ones is of use
	return j.fill(ctx, id, j.far.want, each, func(part *disk.Part) error {
		return from.Into(ctx, part, j.far.size)
	})
}

// puller takes bytes from other nodes and, if it is declared what they are, from the
// origin. An origin that cannot be used as it is declared is not needed either.
func (j job) puller() (p *peer.Pull, done func()) {
	p = &peer.Pull{
		Client: j.far.client, Sources: j.far.sources, Limit: j.image.BandwidthLimit, Progress: j.progress, Warn: j.far.warn,
	}
	d := j.image.Source.Download
	if d == nil || d.Unpack != schema.UnpackNone || j.image.Checksum.IsZero() {
		return p, func() {}
	}
	origin, err := j.client.NewRangeReader(j.request())
	if err != nil {
		return p, func() {}
	}
	p.Upstream = origin
	return p, origin.Close
}

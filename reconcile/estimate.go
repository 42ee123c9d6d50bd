package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/delta"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Estimator computes how many bytes the planned downloads by an index transfer, as far as the indexes are at hand: it
// sends no request. It changes the sizes of actions only. A download whose index is not at hand remains as it is.
type Estimator struct {
	client    *fetch.Client
	indexDir  string
	ambiguous map[string]bool // names of files in indexDir that are of several indexes
	warn      func(error)
}

// NewEstimator returns an Estimator for images of these configurations. client decides which local files are read.
// indexDir is a folder with further indexes, named as the last elements of their addresses; "": none. warn receives the
// reason for each index that is at hand and cannot be used.
func NewEstimator(client *fetch.Client, indexDir string, warn func(error), configs ...schema.Config) Estimator {
	e := Estimator{client: client, indexDir: indexDir, ambiguous: map[string]bool{}, warn: warn}
	named := map[string]string{} // an address with this name
	for _, c := range configs {
		for image := range maps.Values(c.Images) {
			address := indexOf(image)
			name := fetch.NameInFolder(address)
			if other, seen := named[name]; seen && other != address && name != "" {
				e.ambiguous[name] = true
			}
			named[name] = address
		}
	}
	return e
}

// indexOf returns the address of the index of an image, "" if it has none.
func indexOf(image schema.Image) string {
	if d := image.Source.Download; d != nil {
		return d.Index
	}
	return ""
}

// open opens an index that is at hand; nil: it is not.
func (e Estimator) open(image schema.Image) *os.File {
	address := indexOf(image)
	if address == "" {
		return nil
	}
	f, err := e.client.OpenLocal(address, e.indexDir)
	switch name := fetch.NameInFolder(address); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		e.warnAbout(image, err)
		return nil
	case e.ambiguous[name]:
		f.Close() // it was not read
		e.warnAbout(image, fmt.Errorf("several indexes have the name %s: publish each version under its own name", name))
		return nil
	}
	return f
}

func (e Estimator) warnAbout(image schema.Image, err error) {
	e.warn(fmt.Errorf("image %s: the size of its download by an index is not known: %w", image.ID.Name, err))
}

// needs reports whether a is a download by an index.
func needs(a *plan.Action, image schema.Image) bool {
	return a.Op == model.Download && a.UUID == image.ID.UUID && indexOf(image) != ""
}

// estimate sets the sizes of a. transferred is true if the download transfers the index, too.
func (e Estimator) estimate(ctx context.Context, a *plan.Action, image schema.Image, hand delta.AtHand, transferred bool) {
	request := job.DownloadRequest(image)
	hand.MaxSize = request.MaxSize
	s, err := delta.Estimate(ctx, hand)
	switch {
	case err != nil && !errors.Is(err, delta.ErrUnknown):
		e.warnAbout(image, err)
		return
	case request.IsPacked() && request.Store == "":
		return // the whole file is downloaded
	}
	a.Size, a.Data = s.Size, s.Data
	if err == nil {
		a.Bytes = s.Missing
	}
	if err == nil && transferred {
		a.Bytes += s.Index
	}
}

// Estimate returns p, the plan of d for o on the disks of this process, with the sizes of the downloads by an index.
func (r *Reconciler) Estimate(ctx context.Context, e Estimator, d plan.Desired, o plan.Observed, p plan.Plan) plan.Plan {
	return p.WithSizes(func(a *plan.Action) {
		image := d.Config.Images[a.Image]
		on := r.disks.open[a.CopyRef().Disk]
		if on == nil || !needs(a, image) {
			return
		}
		request := job.DownloadRequest(image)
		var hand delta.AtHand
		stored, source, err := folderOf(on.handle).PartIndex(image.ID)
		if err == nil && source.Index != fetch.AddressID(request.Index) {
			stored.Close() // it was not read
			stored = nil
		}
		if hand.Index = stored; stored == nil {
			hand.Index = e.open(image)
		}
		if hand.Index == nil {
			return
		}
		if c := o.Disks[a.CopyRef().Disk].Copies[image.ID]; request.CanResume(source) {
			hand.Offset, hand.PartSize = c.PartBytes, source.Size
		}
		for _, s := range r.disks.seeds(image, o, *a, func(ident.CopyRef) {}) {
			f, err := folderOf(s.Disk).Index(s.ID)
			if err != nil {
				f = nil // as for the download
			}
			hand.Seeds = append(hand.Seeds, delta.SeedIndex{File: f, Cut: s.ID.Name == a.Image})
		}
		e.estimate(ctx, a, image, hand, stored == nil)
	})
}

// EstimateSaved returns p, a plan of nodes of the cluster, with the sizes of the downloads by an index. The old
// configuration declares the indexes of the older generations.
func (e Estimator) EstimateSaved(ctx context.Context, c *plan.Cluster, current, old schema.Config, p plan.Plan) plan.Plan {
	return p.WithSizes(func(a *plan.Action) {
		image := current.Images[a.Image]
		if !needs(a, image) {
			return
		}
		hand := delta.AtHand{Index: e.open(image)}
		if hand.Index == nil {
			return
		}
		part := c.Disks[a.CopyRef().Disk].Copies[image.ID]
		hand.Offset, hand.PartSize = part.PartBytes, part.PartTotal
		for id := range olderGenerations(c, a.Node, image.ID) {
			f := (*os.File)(nil)
			if before := old.Images[a.Image]; before.ID == id {
				f = e.open(before)
			}
			hand.Seeds = append(hand.Seeds, delta.SeedIndex{File: f, Cut: true})
		}
		e.estimate(ctx, a, image, hand, true)
	})
}

// olderGenerations returns the other generations of an image that are seeds on a node, as disks.seeds selects them.
func olderGenerations(c *plan.Cluster, node string, current ident.ID) map[ident.ID]bool {
	older := map[ident.ID]bool{}
	for ref, seen := range c.Disks {
		for id := range seen.Copies {
			one, ready := seen.Ready(id)
			if ref.Node == node && ready && !one.Leaving && !one.ManifestDigest.IsZero() && id.Name == current.Name && id != current {
				older[id] = true
			}
		}
	}
	return older
}

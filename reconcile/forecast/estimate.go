package forecast

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/delta"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Estimator computes how many bytes the planned downloads by an index transfer. It sends no request, so it uses only
// indexes at hand: local files, and files in a folder. It changes only the sizes of actions. A download whose index is
// not at hand remains as it is.
type Estimator struct {
	client    *fetch.Client
	indexDir  string
	ambiguous map[string]bool // names of files in indexDir that several indexes have
	warn      func(error)
}

// NewEstimator returns an Estimator for images of these configurations. The client decides which local files are read.
// The folder indexDir has further indexes, each named by the last element of its address; "" means no folder. The
// function warn receives the reason for each index that is at hand and cannot be used.
func NewEstimator(client *fetch.Client, indexDir string, warn func(error), configs ...schema.Config) Estimator {
	e := Estimator{client: client, indexDir: indexDir, ambiguous: map[string]bool{}, warn: warn}
	named := map[string]string{} // by name, the address of an index with this name
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

// indexOf returns the address of the index of an image. "" means that the image has no index.
func indexOf(image schema.Image) string {
	if d := image.Source.Download; d != nil {
		return d.Index
	}
	return ""
}

// open opens the index of an image. nil means that the index is not at hand or cannot be used.
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

// estimate sets the sizes of the download a, if its index is at hand. stored is the index beside the partial file, which a
// job does not transfer again; nil: there is none. seedIndex opens the index of a seed.
func (e Estimator) estimate(ctx context.Context, a *plan.Action, image schema.Image, stored *os.File, hand delta.AtHand, disks map[ident.DiskRef]model.Disk, seedIndex func(ident.CopyRef) *os.File) {
	if hand.Index = stored; stored == nil {
		hand.Index = e.open(image)
	}
	if hand.Index == nil {
		return
	}
	for _, seed := range job.SeedsOf(*a, image, disks) {
		hand.Seeds = append(hand.Seeds, delta.SeedIndex{File: seedIndex(seed), Cut: seed.ID.Name == a.Image})
	}
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
	if err != nil {
		return
	}
	if a.Bytes = s.Missing; stored == nil {
		a.Bytes += s.Index
	}
}

// Estimate adds to plan p how many bytes each download by an index will transfer. p is the plan for d and o. on has
// the disks of this process.
func (e Estimator) Estimate(ctx context.Context, d plan.Desired, o plan.Observed, p plan.Plan, on map[ident.DiskRef]*disk.Disk) plan.Plan {
	return e.estimateAll(d.Config, p, func(a *plan.Action, image schema.Image) {
		folder := on[a.CopyRef().Disk]
		if folder == nil {
			return
		}
		request := job.DownloadRequest(image)
		stored, source, err := folder.PartIndex(image.ID)
		if err == nil && source.Index != fetch.AddressID(request.Index) {
			stored.Close() // it was not read
			stored = nil
		}
		var hand delta.AtHand
		if c := o.Disks[a.CopyRef().Disk].Copies[image.ID]; request.CanResume(source) {
			hand.Offset, hand.PartSize = c.PartBytes, source.Size
		}
		e.estimate(ctx, a, image, stored, hand, o.Disks, func(seed ident.CopyRef) *os.File {
			f, err := on[seed.Disk].Index(seed.ID)
			if err != nil {
				return nil // the download does not use this seed, either
			}
			return f
		})
	})
}

// EstimateSaved adds to plan p how many bytes each download by an index will transfer. c is the cluster of the plan. old is the
// earlier configuration, which declares the indexes of the older generations.
func (e Estimator) EstimateSaved(ctx context.Context, c *plan.Cluster, current, old schema.Config, p plan.Plan) plan.Plan {
	return e.estimateAll(current, p, func(a *plan.Action, image schema.Image) {
		part := c.Disks[a.CopyRef().Disk].Copies[image.ID]
		hand := delta.AtHand{Offset: part.PartBytes, PartSize: part.PartTotal}
		e.estimate(ctx, a, image, nil, hand, c.Disks, func(seed ident.CopyRef) *os.File {
			if before := old.Images[a.Image]; before.ID == seed.ID {
				return e.open(before)
			}
			return nil
		})
	})
}

// estimateAll returns the plan p after it has called estimate for each download by an index.
func (e Estimator) estimateAll(c schema.Config, p plan.Plan, estimate func(*plan.Action, schema.Image)) plan.Plan {
	return p.WithSizes(func(a *plan.Action) {
		if image := c.Images[a.Image]; a.Op == model.Download && a.UUID == image.ID.UUID && indexOf(image) != "" {
			estimate(a, image)
		}
	})
}

package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// offline is what a command finds on disks without a daemon, in the form of a daemon's status: the name of a disk is its
// path, and no image is declared.
type offline struct {
	disks   map[string]*disk.Disk // by path
	images  []status.ImageStatus
	unlocks []func() error
}

func openDisks(paths []string) (*offline, error) {
	o := &offline{disks: map[string]*disk.Disk{}}
	at := map[ident.ID]int{}
	for _, path := range paths {
		d, err := disk.Open(path)
		if err != nil {
			return nil, errors.Join(err, o.close())
		}
		o.disks[d.Path()] = d
		listing, err := d.List()
		if err != nil {
			return nil, errors.Join(err, o.close())
		}
		for _, c := range listing.Copies {
			if _, known := at[c.ID]; !known {
				at[c.ID] = len(o.images)
				o.images = append(o.images, status.ImageStatus{Name: c.ID.Name, UUID: c.ID.UUID})
			}
			image := &o.images[at[c.ID]]
			if image.Checksum.IsZero() {
				image.Checksum = c.CfgExpected
			}
			s := status.NewCopyStatus(ident.DiskRef{Disk: d.Path()}, c)
			if c.State == model.Pending && c.PartBytes > 0 {
				s.State = model.InProgress
			}
			image.Copies = append(image.Copies, s)
		}
	}
	return o, nil
}

func (o *offline) close() error {
	var errs []error
	for _, unlock := range o.unlocks {
		errs = append(errs, unlock())
	}
	for _, d := range o.disks {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// find returns the copies of an image, or of a generation by <name>-<uuid>. The copy that a list shows is the first.
func (o *offline) find(name string, on []string) (copies []status.CopyStatus, err error) {
	for _, image := range status.Generations(o.images, name, on) {
		copies = append(copies, image.Copies...)
	}
	if len(copies) == 0 {
		return nil, status.NoSuchImage(o.images, name, on)
	}
	return copies, nil
}

// lock locks all disks until close.
func (o *offline) lock() error {
	for _, path := range slices.Sorted(maps.Keys(o.disks)) {
		unlock, err := o.disks[path].Lock()
		if err != nil {
			return err
		}
		o.unlocks = append(o.unlocks, unlock)
	}
	return nil
}

// checkReady returns an error if a copy is not ready. The error says what to do.
func checkReady(c status.CopyStatus) error {
	advice := "a daemon or reconcile replaces it if it is declared"
	switch c.State {
	case model.Ready:
		return nil
	case model.Unknown:
		advice = "backing-image verify verifies it"
	case model.InProgress:
		advice = "a daemon or reconcile completes it"
	}
	return fmt.Errorf("%s is not ready: it is %s; %s", c, c.StateText(), advice)
}

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// offlineDisk is a disk that a command uses without a daemon.
type offlineDisk struct {
	*disk.Disk
	copies []disk.Copy
}

func openDisks(paths []string) (disks []offlineDisk, err error) {
	for _, path := range paths {
		d, err := disk.Open(path)
		if err != nil {
			return nil, errors.Join(err, closeDisks(disks))
		}
		listing, err := d.List()
		if err != nil {
			return nil, errors.Join(err, d.Close(), closeDisks(disks))
		}
		disks = append(disks, offlineDisk{d, listing.Copies})
	}
	return disks, nil
}

func closeDisks(disks []offlineDisk) error {
	var errs []error
	for _, d := range disks {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// imagesOn returns the images on disks in the form of a daemon's status. The name of a disk
// is its path, and no image is declared.
func imagesOn(disks []offlineDisk) []status.ImageStatus {
	var images []status.ImageStatus
	at := map[disk.ID]int{}
	for _, d := range disks {
		users := d.Users()
		for _, c := range d.copies {
			i, known := at[c.ID]
			if !known {
				i = len(images)
				at[c.ID] = i
				images = append(images, status.ImageStatus{Name: c.ID.Name, UUID: c.ID.UUID})
			}
			if images[i].Expected.IsZero() {
				images[i].Expected = c.CfgExpected
			}
			images[i].Copies = append(images[i].Copies, copyStatus(d.Path(), c, users))
		}
	}
	return images
}

// copyStatus returns the status of a copy on the disk at path.
func copyStatus(path string, c disk.Copy, users disk.Users) status.CopyStatus {
	inUse, _ := users.InUse(c.ID)
	s := status.CopyStatus{
		Disk: path, State: c.State, Message: c.Message, Format: c.Format,
		Size: c.Size, VirtualSize: c.VirtualSize, RealSize: c.RealSize, SHA512: c.SHA512, SHA256: c.SHA256,
		Owned: c.Owned, VerifiedAt: c.VerifiedAt, InUse: inUse, LastUsed: c.LastUsed, SurplusSince: c.SurplusSince,
	}
	switch {
	case c.State == disk.Ready:
		s.Progress = 100
	case c.State == disk.Pending && c.PartBytes > 0:
		s.State, s.Done, s.Total = disk.InProgress, c.PartBytes, c.PartTotal
		if c.PartTotal > 0 {
			s.Progress = int(min(99, 100*c.PartBytes/c.PartTotal))
		}
	}
	return s
}

// localCopy is one copy on one disk.
type localCopy struct {
	offlineDisk
	disk.Copy
}

func (c localCopy) String() string { return fmt.Sprintf("%s on %s", c.ID, c.Path()) }

// findCopies returns the copies with a name, which is the name of an image or
// <name>-<uuid>. The error for none lists the images on the disks.
func findCopies(disks []offlineDisk, name string) ([]localCopy, error) {
	var found []localCopy
	var others []string
	for _, d := range disks {
		for _, c := range d.copies {
			if c.ID.Name == name || c.ID.String() == name {
				found = append(found, localCopy{d, c})
			} else {
				others = append(others, c.ID.Name)
			}
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	if len(others) == 0 {
		return nil, fmt.Errorf("no image %q: the disk has no images", name)
	}
	return nil, fmt.Errorf("no image %q on the disk: it has %s", name, strings.Join(others, ", "))
}

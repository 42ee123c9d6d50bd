package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile"
)

// shelf is a disk that a command works on without a daemon.
type shelf struct {
	*disk.Disk
	copies []disk.Copy
}

func openShelves(paths []string) (shelves []shelf, err error) {
	for _, path := range paths {
		d, err := disk.Open(path)
		if err != nil {
			return nil, errors.Join(err, closeShelves(shelves))
		}
		listing, err := d.List()
		if err != nil {
			return nil, errors.Join(err, d.Close(), closeShelves(shelves))
		}
		shelves = append(shelves, shelf{d, listing.Copies})
	}
	return shelves, nil
}

func closeShelves(shelves []shelf) error {
	var errs []error
	for _, s := range shelves {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// imagesOn shows what lies on disks as a daemon would, with the path of a disk as
// its name. What is declared is not known.
func imagesOn(shelves []shelf) []reconcile.ImageStatus {
	var images []reconcile.ImageStatus
	at := map[disk.ID]int{}
	for _, s := range shelves {
		users := s.Users()
		for _, c := range s.copies {
			i, known := at[c.ID]
			if !known {
				i = len(images)
				at[c.ID] = i
				images = append(images, reconcile.ImageStatus{Name: c.ID.Name, UUID: c.ID.UUID})
			}
			if images[i].Expected.IsZero() {
				images[i].Expected = c.CfgExpected
			}
			images[i].Copies = append(images[i].Copies, copyOn(s.Path(), c, users))
		}
	}
	return images
}

func copyOn(path string, c disk.Copy, users disk.Users) reconcile.CopyStatus {
	inUse, _ := users.InUse(c.ID)
	s := reconcile.CopyStatus{
		Disk: path, State: c.State, Message: c.Message, Format: c.Format,
		Size: c.Size, VirtualSize: c.VirtualSize, RealSize: c.RealSize, SHA512: c.SHA512, SHA256: c.SHA256,
		Owned: c.Owned, Verified: c.VerifiedAt, InUse: inUse, LastUsed: c.LastUsed, Unwanted: c.SurplusSince,
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

// shelved is one copy on one disk.
type shelved struct {
	shelf
	disk.Copy
}

func (s shelved) String() string { return fmt.Sprintf("%s on %s", s.ID, s.Path()) }

// named returns the copies that have a file and answer to name: to an image's name,
// or to <name>-<uuid>. None is an error that says what there is.
func named(shelves []shelf, name string) ([]shelved, error) {
	var found []shelved
	var others []string
	for _, s := range shelves {
		for _, c := range s.copies {
			if c.ID.Name == name || c.ID.String() == name {
				found = append(found, shelved{s, c})
			} else {
				others = append(others, c.ID.Name)
			}
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	if len(others) == 0 {
		return nil, fmt.Errorf("no image %q: there is none on the disk", name)
	}
	return nil, fmt.Errorf("no image %q on the disk: it has %s", name, strings.Join(others, ", "))
}

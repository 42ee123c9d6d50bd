package export

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/disk/replica"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// Request is an image to export. Exactly one of Volume and Path is set.
type Request struct {
	Volume   string
	Snapshot string // of Volume; empty: the head of the volume
	Path     string // path of a file or block device
	Format   model.Format
	Compress bool // compress the clusters of a qcow2 image
}

// Source is a volume that can be read on this node.
type Source struct {
	request Request
	name    string // for messages
	open    func() (flatDisk, error)
}

// String returns the volume, the file or the device.
func (s *Source) String() string { return s.name }

// Find finds the source of r on the disks of this node. It reads only small files. Errors are
// *fetch.Error.
func Find(c *fetch.Client, disks map[string]*disk.Disk, r Request) (*Source, error) {
	if r.Path != "" {
		return findPath(c, r)
	}
	all, reasons := candidates(disks, r.Volume)
	older := rank(all, r.Snapshot == "")
	for n, one := range all {
		at := replica.Location{Disk: disks[one.disk], Folder: one.folder, Snapshot: r.Snapshot, OtherDisks: otherDisks(disks, one.disk)}
		err := replica.Check(at)
		if err == nil {
			s := &Source{request: r, name: fmt.Sprintf("volume %s, %s", r.Volume, one)}
			s.open = func() (flatDisk, error) { return replica.Open(at) }
			return s, nil
		}
		reasons = append(reasons, fmt.Sprintf("%s: %v", one, withHint(err)))
		if n+1 < len(all) && (older(one, all[n+1]) || r.Snapshot == "" && errors.Is(err, replica.ErrAttached)) {
			reasons = append(reasons, fmt.Sprintf("%s may have older data, so it is not used", all[n+1]))
			break
		}
	}
	if len(reasons) == 0 {
		return nil, &fetch.Error{Class: fetch.Refused, Err: fmt.Errorf("volume %s has no replica on this node", r.Volume)}
	}
	return nil, &fetch.Error{Class: fetch.Refused, Err: fmt.Errorf("volume %s: %s", r.Volume, strings.Join(reasons, "; "))}
}

// withHint adds to err a hint for the user.
func withHint(err error) error {
	switch {
	case errors.Is(err, replica.ErrAttached):
		return fmt.Errorf("%w: take a snapshot and declare its name in snapshotName, or detach the volume", err)
	case errors.Is(err, replica.ErrRemoved):
		return fmt.Errorf("%w: declare another snapshot", err)
	}
	return err
}

// candidate is a replica that may be usable.
type candidate struct {
	disk, folder string
	info         replica.Info
}

func (c candidate) String() string { return fmt.Sprintf("replica %s on %s", c.folder, c.disk) }

// candidates returns the usable replicas of the volume, and the reasons why the other replicas are
// not usable.
func candidates(disks map[string]*disk.Disk, volume string) (all []candidate, reasons []string) {
	for _, name := range slices.Sorted(maps.Keys(disks)) {
		folders, err := disks[name].Replicas()
		if err != nil {
			reasons = append(reasons, err.Error())
			continue
		}
		for _, folder := range folders {
			if of, ok := replica.Volume(folder); !ok || of != volume {
				continue
			}
			one := candidate{disk: name, folder: folder}
			one.info, err = replica.Stat(disks[name], folder)
			if err == nil {
				err = one.info.CheckHealth()
			}
			if err != nil {
				reasons = append(reasons, fmt.Sprintf("%s: %v", one, err))
				continue
			}
			all = append(all, one)
		}
	}
	return all, reasons
}

// rank sorts the replicas, best first. For the head, older(than, c) reports whether replica c has older
// data than the replica than. Then c must not be used.
func rank(all []candidate, head bool) (older func(than, c candidate) bool) {
	if !head {
		slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(b.info.Size, a.info.Size) })
		return func(candidate, candidate) bool { return false }
	}
	written := func(c candidate) int64 { return c.info.Revision }
	if slices.ContainsFunc(all, func(c candidate) bool { return c.info.Revision == 0 }) {
		written = func(c candidate) int64 { return c.info.HeadModTime }
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(written(b), written(a)) })
	return func(than, c candidate) bool { return written(c) < written(than) }
}

func otherDisks(disks map[string]*disk.Disk, but string) (all []*disk.Disk) {
	for _, name := range slices.Sorted(maps.Keys(disks)) {
		if name != but {
			all = append(all, disks[name])
		}
	}
	return all
}

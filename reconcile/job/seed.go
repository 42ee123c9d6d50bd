package job

import (
	"os"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
)

// Seed is a copy on this node that may have some of the bytes of another image.
type Seed struct {
	LocalCopy
	// Damaged is called if the copy does not have its own bytes any more. It does not block.
	Damaged func()
}

// openSeed is a seed whose files are open.
type openSeed struct {
	Seed
	reader   *disk.Reader
	manifest *disk.Manifest
	index    *os.File // nil: it has none
}

type openSeeds []openSeed

// openSeeds opens the seeds. A seed that cannot be opened is left out: its bytes can be transferred. The
// caller closes them.
func (j Job) openSeeds() (seeds openSeeds) {
	for _, s := range j.Seeds {
		r, err := s.Disk.Open(s.ID)
		if err != nil {
			continue
		}
		m, err := s.Disk.Manifest(s.ID)
		if err != nil {
			r.Close()
			continue
		}
		index, err := s.Disk.Index(s.ID)
		if err != nil {
			index = nil // a cache of what the bytes tell
		}
		seeds = append(seeds, openSeed{s, r, m, index})
	}
	return seeds
}

func (all openSeeds) close() {
	for _, s := range all {
		s.reader.Close()
		s.manifest.Close()
		if s.index != nil {
			s.index.Close() // it was only read, and may be closed already
		}
	}
}

// forPlan returns the seeds for an image. The bytes of an older generation are worth a full read, if it has no index;
// another image is a seed only with its index.
func (all openSeeds) forPlan(image ident.ID) []assemble.Seed {
	var seeds []assemble.Seed
	for _, s := range all {
		seeds = append(seeds, assemble.Seed{
			ID: s.ID, Reader: s.reader, Manifest: s.manifest, Index: s.index, Cut: s.ID.Name == image.Name, Damaged: s.Damaged,
		})
	}
	return seeds
}

// dropSeedIndexes removes the indexes of the seeds: one of them may be the reason why an image that was assembled has
// other bytes. They are computed from the bytes when they are needed again.
func (j Job) dropSeedIndexes() {
	for _, s := range j.Seeds {
		_ = s.Disk.DropIndex(s.ID) // it is only a cache
	}
}

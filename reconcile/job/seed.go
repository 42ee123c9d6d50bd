package job

import (
	"cmp"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// maxOtherSeeds limits the seeds that are copies of other images.
const maxOtherSeeds = 4

// SeedsOf returns the seeds of an action: for a sync from other nodes or a download by an index, the ready copies of other
// generations of the image on its node. It prefers copies that were verified last: they probably are the newest generations. For
// a download by an index, copies of other images that have an index follow.
func SeedsOf(a plan.Action, image schema.Image, disks map[ident.DiskRef]model.Disk) (seeds []ident.CopyRef) {
	byIndex := a.Op == model.Download && image.Source.Download != nil && image.Source.Download.Index != ""
	if !byIndex && (a.Op != model.Sync || a.LocalSource != (ident.CopyRef{})) {
		return nil
	}
	var generations, others []model.Copy
	on := map[ident.ID]ident.DiskRef{}
	for _, ref := range slices.SortedFunc(maps.Keys(disks), ident.DiskRef.Compare) {
		if ref.Node != a.Node {
			continue
		}
		for id, c := range disks[ref].Copies {
			_, known := on[id]
			if known || id == a.CopyRef().ID || c.State != model.Ready || c.Leaving || c.ManifestDigest.IsZero() {
				continue
			}
			switch {
			case id.Name == a.Image:
				generations = append(generations, c)
			case byIndex && c.HasIndex:
				others = append(others, c)
			default:
				continue
			}
			on[id] = ref
		}
	}
	for _, c := range slices.Concat(lastVerified(generations, peer.MaxSeeds), lastVerified(others, maxOtherSeeds)) {
		seeds = append(seeds, ident.CopyRef{Disk: on[c.ID], ID: c.ID})
	}
	return seeds
}

// lastVerified returns the n copies that were verified last.
func lastVerified(copies []model.Copy, n int) []model.Copy {
	slices.SortFunc(copies, func(a, b model.Copy) int {
		return cmp.Or(b.VerifiedAt.Compare(a.VerifiedAt), ident.ID.Compare(a.ID, b.ID))
	})
	return copies[:min(len(copies), n)]
}

// LocalCopiesFor returns the copies on the node of an action that a repair can read: those with the digest.
func LocalCopiesFor(a plan.Action, digest ident.Digest, disks map[ident.DiskRef]model.Disk) (copies []ident.CopyRef) {
	if a.Op != model.Repair && a.Op != model.Verify { // a verification may turn into a repair
		return nil
	}
	for ref, seen := range disks {
		for id, c := range seen.Copies {
			at := ident.CopyRef{Disk: ref, ID: id}
			if ref.Node == a.Node && c.HasDigest(digest) && !c.Leaving && at != a.CopyRef() {
				copies = append(copies, at)
			}
		}
	}
	slices.SortFunc(copies, ident.CopyRef.Compare)
	return copies
}

// openSeeds opens the seeds of the job for package assemble. It leaves out seeds that cannot be opened: their bytes can be
// transferred. An older generation without an index is worth a full read (Cut). A copy of another image is not: it serves
// only if it has an index. The caller calls done at the end.
func (j Job) openSeeds() (seeds []assemble.Seed, done func()) {
	for _, ref := range j.Seeds {
		on := j.Disks[ref.Disk.Disk]
		r, err := on.Open(ref.ID)
		if err != nil {
			continue
		}
		m, err := on.Manifest(ref.ID)
		if err != nil {
			r.Close()
			continue
		}
		index, err := on.Index(ref.ID)
		if err != nil {
			index = nil // it is only a cache of what the bytes say
		}
		seeds = append(seeds, assemble.Seed{
			ID: ref.ID, Reader: r, Manifest: m, Index: index, Cut: ref.ID.Name == j.Image.ID.Name, Damaged: func() { j.Damaged(ref) },
		})
	}
	return seeds, func() {
		for _, s := range seeds {
			s.Reader.Close()
			s.Manifest.Close()
			if s.Index != nil {
				s.Index.Close() // it was only read, and may be closed already
			}
		}
	}
}

// dropSeedIndexes removes the indexes of the seeds: a wrong index may be the reason why the assembled image has other
// bytes. They are computed from the bytes when they are needed again.
func (j Job) dropSeedIndexes() {
	for _, ref := range j.Seeds {
		_ = j.Disks[ref.Disk.Disk].DropIndex(ref.ID) // it is only a cache
	}
}

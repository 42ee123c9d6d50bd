package plantest

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// checkGenerations checks what happens to the older generations of images with keepGenerations: none of
// the newest ones is deleted, no further one is kept for this reason, and all other actions are those of
// a configuration without keepGenerations.
func (k *checker) checkGenerations() {
	kept := map[ident.CopyRef]bool{}
	for _, a := range k.p.Actions {
		key := a.CopyRef()
		image, declared := k.d.Config.Images[key.ID.Name]
		if a.Op == model.Verify && declared && image.ID != key.ID {
			kept[key] = true // it is kept or deleted when it is verified
			continue
		}
		keeps := a.Code == plan.CodeGenerationKept || a.Cause == plan.CodeGenerationKept
		if !keeps && !a.Op.Deletes() || !declared || image.ID == key.ID {
			k.forbid(keeps, "%s is kept as an older generation", key)
			continue
		}
		c, newer := k.o.Disks[key.Disk].Copies[key.ID], k.newerGenerations(key)
		on := slices.Contains(MatchingDisks(k.d.Config, image), key.Disk) || slices.Contains(image.Disks, key.Disk) && !k.evicting(key.Disk)
		k.forbid(a.Op.Deletes() && c.State == model.Ready && on && newer < image.KeepGenerations, "%s of %s, and keepGenerations is %d", a.Op, key, image.KeepGenerations)
		if keeps {
			k.forbid(newer >= image.KeepGenerations || !on || !a.Idle(), "%s is kept with %d newer generations, and keepGenerations is %d", key, newer, image.KeepGenerations)
			kept[key] = true
		}
	}
	if len(kept) > 0 {
		k.checkKeptCountForNothing(kept)
	}
}

// newerGenerations returns how many older generations on the disk of a copy are ready, and were replaced
// later than the copy, or at the same time and verified later.
func (k *checker) newerGenerations(key ident.CopyRef) (n int) {
	replaced := func(c model.Copy) time.Time {
		if c.ReplacedAt.Before(earliestTime) || c.ReplacedAt.After(k.o.Now) {
			return k.o.Now
		}
		return c.ReplacedAt
	}
	c := k.o.Disks[key.Disk].Copies[key.ID]
	for id, other := range k.o.Disks[key.Disk].Copies {
		if id.Name != key.ID.Name || id == key.ID || id == k.d.Config.Images[id.Name].ID || other.State != model.Ready || !other.Owned {
			continue
		}
		later := replaced(other).After(replaced(c))
		same := replaced(other).Equal(replaced(c))
		if later || same && (other.VerifiedAt.After(c.VerifiedAt) || other.VerifiedAt.Equal(c.VerifiedAt) && id.UUID < key.ID.UUID) {
			n++
		}
	}
	return n
}

// evicting reports whether the eviction of a disk is requested.
func (k *checker) evicting(ref ident.DiskRef) bool {
	node := k.d.Config.Nodes[ref.Node]
	return node.EvictionRequested || node.Disks[ref.Disk].EvictionRequested
}

// checkKeptCountForNothing checks that a plan without keepGenerations has the same actions for all other
// copies.
func (k *checker) checkKeptCountForNothing(kept map[ident.CopyRef]bool) {
	type step struct {
		key  ident.CopyRef
		op   model.Op
		next model.Op
		code model.Code
	}
	steps := func(p plan.Plan) map[step]bool {
		all := map[step]bool{}
		for _, a := range p.Actions {
			if key := a.CopyRef(); !kept[key] {
				all[step{key, a.Op, a.Next, a.Code}] = true
			}
		}
		return all
	}
	free := k.d
	free.Config.Images = maps.Clone(k.d.Config.Images)
	for name, image := range free.Config.Images {
		image.KeepGenerations = 0
		free.Config.Images[name] = image
	}
	with, without := steps(k.p), steps(plan.NewRound(free, k.o).Plan())
	for s := range with {
		k.forbid(!without[s], "only with keepGenerations: %+v", s)
	}
	for s := range without {
		k.forbid(!with[s], "only without keepGenerations: %+v", s)
	}
}

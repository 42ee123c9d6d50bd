package plan

import (
	"fmt"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// planOrphans says what becomes of our copies of images that are not declared
// any more.
func (s *index) planOrphans() []Action {
	blind := s.unknownUsage()
	held := s.pruneBlocked()
	var actions []Action
	for name, keys := range s.ownByName {
		if !s.isOrphan(name) {
			continue
		}
		used := s.usedBy(name)
		for _, key := range keys {
			if s.copyAt(key).Owned {
				actions = append(actions, s.planOrphanCopy(key, used, held, blind))
			}
		}
	}
	return s.applySuspension(s.desired.SuspensionOf(schema.Image{}, s.observed.Now), actions) // an image's own went with its declaration
}

func (s *index) isOrphan(name string) bool {
	_, declared := s.desired.Config.Images[name]
	return !declared && s.desired.invalidReason(name) == ""
}

// pruneBlocked says why the images that left the configuration are too many to go, if
// they are. All nodes count the same ones: those of which any has a copy.
func (s *index) pruneBlocked() string {
	vanished := map[string][]CopyRef{}
	for _, names := range []map[string][]CopyRef{s.ownByName, s.peerByName} {
		for name, keys := range names {
			if !s.isOrphan(name) {
				continue
			}
			for _, key := range keys {
				if s.copyAt(key).Owned {
					vanished[name] = append(vanished[name], key)
				}
			}
		}
	}
	limit := s.desired.Config.Settings.PruneLimit
	if !limit.Holds(len(s.desired.Config.Images), len(vanished)) || s.pruneConfirmed(vanished) {
		return ""
	}
	return fmt.Sprintf("%d images left the configuration, more at once than pruneLimit %s allows", len(vanished), limit)
}

// pruneConfirmed reports whether all of these copies may go although they are many. If
// those that are named went first, the others would not be many any more.
func (s *index) pruneConfirmed(vanished map[string][]CopyRef) bool {
	confirmed := map[disk.ID]bool{}
	for _, id := range s.desired.Config.Settings.PruneConfirmed {
		confirmed[id] = true
	}
	for _, keys := range vanished {
		if slices.ContainsFunc(keys, func(key CopyRef) bool { return !confirmed[key.ID] }) {
			return false
		}
	}
	return true
}

// usedBy says what uses any copy of an image, here or elsewhere.
func (s *index) usedBy(name string) string {
	for _, key := range s.copiesNamed(name) {
		if c := s.copyAt(key); c.UsedBy != "" {
			return fmt.Sprintf("on %s %s", key.Disk, c.UsedBy)
		}
	}
	return ""
}

// unknownUsage says why it cannot be told whether an image is used on some declared disk, or
// whether all nodes know that it left the configuration.
func (s *index) unknownUsage() string {
	for _, node := range slices.Sorted(maps.Keys(s.desired.Config.Nodes)) {
		if node != s.desired.Node {
			if why := s.whyIgnored(node); why != "" {
				return why
			}
		}
		for _, name := range slices.Sorted(maps.Keys(s.desired.Config.Nodes[node].Disks)) {
			ref := schema.DiskRef{Node: node, Disk: name}
			seen, known := s.observed.Disks[ref]
			switch {
			case !known:
				return fmt.Sprintf("%s: not looked at", ref)
			case seen.Problem != "":
				return fmt.Sprintf("%s: %s", ref, seen.Problem)
			}
		}
	}
	return ""
}

// planOrphanCopy says whether a copy may go whose image is not declared any more.
// used, held and blind are what speaks against it, as far as anything does.
func (s *index) planOrphanCopy(key CopyRef, used, held, blind string) Action {
	const reason = "not in the configuration any more"
	until := s.desired.intervalEnd(s.observed, key)
	undecided, isUndecided := s.desired.Undecided.MayDeclare(key.ID.Name, s.copyAt(key).Declaration)
	switch {
	case s.desired.Allowed != schema.Everything:
		return s.keep(key, reason+", but nothing is deleted "+s.desired.whyNoDeletions()).asWaitFor(Cleanup, true)
	case isUndecided:
		return NewAction(Blocked, key, reason+", but "+undecided, 0).asWaitFor(Cleanup, true)
	case !s.desired.IsRemoved(key.ID.Name):
		return s.keep(key, reason+"; another look has to confirm it").asWaitFor(Cleanup, false)
	case used != "":
		return s.keepInUse(key, reason+", but "+used).asWaitFor(Cleanup, true)
	case held != "" && !slices.Contains(s.desired.Config.Settings.PruneConfirmed, key.ID):
		return NewAction(Blocked, key, fmt.Sprintf("%s: if that is meant, add %q to pruneConfirmed", held, key.ID), 0).asWaitFor(Cleanup, true)
	case held != "":
		return s.keep(key, held+": it goes when pruneConfirmed names all of them").asWaitFor(Cleanup, true)
	case !s.desired.Cleanup[key] && until.After(s.observed.Now):
		return s.keepUntil(key, reason+"; goes after the clean-up interval", until).asWaitFor(Cleanup, false)
	case blind != "":
		return NewAction(Blocked, key, reason+", but whether it is used there cannot be told: "+blind, 0).asWaitFor(Cleanup, true)
	}
	return s.planDeletion(Cleanup, key, reason)
}

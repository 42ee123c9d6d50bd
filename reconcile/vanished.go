package reconcile

import (
	"fmt"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// planVanished says what becomes of our copies of images that are not declared
// any more.
func (s *scene) planVanished() []Action {
	blind := s.blind()
	held := s.pruneHeld()
	var actions []Action
	for name, keys := range s.named {
		if !s.vanished(name) {
			continue
		}
		used := s.used(name)
		for _, key := range keys {
			if s.copy(key).Owned {
				actions = append(actions, s.dropVanished(key, used, held, blind))
			}
		}
	}
	return s.hold(s.suspension(schema.Image{}, s.o.Now), actions) // an image's own went with its declaration
}

func (s *scene) vanished(name string) bool {
	_, declared := s.Config.Images[name]
	return !declared && s.holds(name) == ""
}

// pruneHeld says why the images that left the configuration are too many to go, if
// they are. All nodes count the same ones: those of which any has a copy.
func (s *scene) pruneHeld() string {
	vanished := map[string][]Key{}
	for _, names := range []map[string][]Key{s.named, s.other} {
		for name, keys := range names {
			if !s.vanished(name) {
				continue
			}
			for _, key := range keys {
				if s.copy(key).Owned {
					vanished[name] = append(vanished[name], key)
				}
			}
		}
	}
	limit := s.Config.Settings.PruneLimit
	if !limit.Holds(len(s.Config.Images), len(vanished)) || s.confirmed(vanished) {
		return ""
	}
	return fmt.Sprintf("%d images left the configuration, more at once than pruneLimit %s allows", len(vanished), limit)
}

// confirmed reports whether all of these copies may go although they are many. If
// those that are named went first, the others would not be many any more.
func (s *scene) confirmed(vanished map[string][]Key) bool {
	confirmed := map[disk.ID]bool{}
	for _, id := range s.Config.Settings.PruneConfirmed {
		confirmed[id] = true
	}
	for _, keys := range vanished {
		if slices.ContainsFunc(keys, func(key Key) bool { return !confirmed[key.ID] }) {
			return false
		}
	}
	return true
}

// used says what uses any copy of an image, here or elsewhere.
func (s *scene) used(name string) string {
	for _, key := range s.all(name) {
		if c := s.copy(key); c.Using != "" {
			return fmt.Sprintf("on %s %s", key.Disk, c.Using)
		}
	}
	return ""
}

// blind says why it cannot be told whether an image is used on some declared disk, or
// whether all nodes know that it left the configuration.
func (s *scene) blind() string {
	for _, node := range slices.Sorted(maps.Keys(s.Config.Nodes)) {
		if node != s.Node {
			if why := s.disagrees(node); why != "" {
				return why
			}
		}
		for _, name := range slices.Sorted(maps.Keys(s.Config.Nodes[node].Disks)) {
			ref := schema.DiskRef{Node: node, Disk: name}
			seen, known := s.o.Disks[ref]
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

// dropVanished says whether a copy may go whose image is not declared any more.
// used, held and blind are what speaks against it, as far as anything does.
func (s *scene) dropVanished(key Key, used, held, blind string) Action {
	const reason = "not in the configuration any more"
	until := s.expires(s.o, key)
	unsure, meant := s.Unsure[key.ID.Name]
	switch {
	case s.May != schema.Everything:
		return s.keep(key, reason+", but nothing is deleted "+s.whyNot()).wouldBe(Cleanup, true)
	case meant:
		return newAction(Blocked, key, fmt.Sprintf("%s, but a %s of its name is in %s, which %s: remove it, too, if the image is to go",
			reason, unsure.Kind, unsure.Position, unsure.Why), 0).wouldBe(Cleanup, true)
	case !s.gone(key.ID.Name):
		return s.keep(key, reason+"; another look has to confirm it").wouldBe(Cleanup, false)
	case used != "":
		return s.keepUsed(key, reason+", but "+used).wouldBe(Cleanup, true)
	case held != "" && !slices.Contains(s.Config.Settings.PruneConfirmed, key.ID):
		return newAction(Blocked, key, fmt.Sprintf("%s: if that is meant, add %q to pruneConfirmed", held, key.ID), 0).wouldBe(Cleanup, true)
	case held != "":
		return s.keep(key, held+": it goes when pruneConfirmed names all of them").wouldBe(Cleanup, true)
	case !s.Cleanup[key] && until.After(s.o.Now):
		return s.keepUntil(key, reason+"; goes after the clean-up interval", until).wouldBe(Cleanup, false)
	case blind != "":
		return newAction(Blocked, key, reason+", but whether it is used there cannot be told: "+blind, 0).wouldBe(Cleanup, true)
	}
	return s.remove(Cleanup, key, reason)
}

package reconcile

import (
	"maps"
	"slices"
	"time"
)

// heal ends all that keeps a manager from doing its work.
func (s *simulation) heal() {
	s.broken, s.offline, s.wall = false, false, 0
	s.config.Settings.ConcurrentReplenishPerNodeLimit = 5
	node := s.config.Nodes["node1"]
	node.EvictionRequested, node.AllowScheduling = false, true
	for _, ref := range s.refs() {
		p := s.disks[ref]
		p.there, p.dying, p.unreadable, p.readOnly, p.filled = true, false, false, false, -100*gib
		one := node.Disks[ref.Disk]
		one.AllowScheduling, one.EvictionRequested = true, false
		node.Disks[ref.Disk] = one
		for id, f := range p.folders {
			f.users = 0
			if _, declared := s.config.Images[id.Name]; !declared {
				s.config.Settings.PruneConfirmed = append(s.config.Settings.PruneConfirmed, id)
			}
		}
	}
	s.config.Nodes["node1"] = node
	for _, name := range slices.Sorted(maps.Keys(s.config.Images)) {
		s.declare(name, s.serves["https://example.com/"+name], 1+s.IntN(3))
	}
	s.decide()
	s.restart()
	s.stepped = true
}

// decide is what a person has to do about files that lie under a declared uuid and
// have other bytes than the declared checksum.
func (s *simulation) decide() {
	for name, image := range s.config.Images {
		for _, p := range s.disks {
			f := p.folders[image.ID]
			right := s.serves["https://example.com/"+name]
			if f != nil && f.letter != "" && f.letter != right && f.digest != right {
				delete(p.folders, image.ID)
			}
		}
	}
}

// comeToRest runs rounds until nothing is left to do, and looks at what is there.
func (s *simulation) comeToRest() {
	quiet := 0
	for s.step = 0; quiet < 20; s.step++ {
		s.pass(20 * time.Minute)
		s.round()
		if s.step > 300 {
			s.t.Error("it does not come to rest")
			return
		}
		quiet++
		if !s.plan.Empty() || len(s.jobs) > 0 {
			quiet = 0
		}
	}
	for _, ref := range s.refs() {
		for _, id := range s.disks[ref].ids() {
			if f := s.disks[ref].folders[id]; s.config.Images[id.Name].ID != id && f.owned {
				s.t.Errorf("at rest %s is left on %s", id, ref)
			}
		}
	}
	for name, image := range s.config.Images {
		ready := 0
		for _, ref := range s.refs() {
			if f := s.disks[ref].folders[image.ID]; f != nil && f.letter != "" {
				ready++
			}
		}
		if want := min(image.Copies, len(s.disks)); ready != want {
			s.t.Errorf("at rest %s has %d copies of %d", name, ready, want)
		}
	}
}

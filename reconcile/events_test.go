package reconcile

import (
	"maps"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// event lets something happen, or nothing.
func (s *simulation) event() {
	events := []func(){
		func() {}, func() {}, func() {}, func() {},
		s.editImage, s.editImage, s.removeImage, s.editDisk, s.editDisk, s.editSettings,
		s.use, s.use, s.unuse, s.unuse, s.unuse,
		s.trouble, s.relief, s.relief, s.relief,
		s.touch, s.damage, s.rot, s.leave,
		s.setClock, s.restart, s.breakConfig, s.mendConfig, s.mendConfig,
	}
	events[s.IntN(len(events))]()
}

// declare declares an image; letter "" declares no checksum.
func (s *simulation) declare(name, letter string, copies int) {
	url := "https://example.com/" + name
	if s.serves[url] == "" {
		s.serves[url] = pick1(s.dice, plantest.Letters...)
	}
	m := schema.Image{Copies: copies, Source: schema.Source{Download: &schema.Download{URL: url}}}
	if letter != "" {
		m.Checksum = plantest.Digest(disk.SHA512, letter)
	}
	m.ID = disk.ID{Name: name, UUID: schema.UUID(name, m.Checksum, m.Source)}
	s.config.Images = maps.Clone(s.config.Images)
	s.config.Images[name] = m
}

func (s *simulation) editImage() {
	name := pick1(s.dice, plantest.ImageNames...)
	url := "https://example.com/" + name
	if s.one(4) {
		s.serves[url] = pick1(s.dice, plantest.Letters...)
	}
	s.declare(name, pick1(s.dice, "", s.serves[url], s.serves[url], "a"), 1+s.IntN(3))
	m := s.config.Images[name]
	m.AllDisks = s.one(6)
	if m.AllDisks {
		m.Copies = 1
	}
	if s.one(4) {
		m.DiskSelector = pick1(s.dice, []string{"a"}, []string{"a", "b"})
	}
	if s.one(4) {
		m.Disks = []schema.DiskRef{pick1(s.dice, s.refs()...)}
	}
	s.config.Images[name] = m
}

func (s *simulation) removeImage() {
	s.config.Images = maps.Clone(s.config.Images)
	delete(s.config.Images, pick1(s.dice, plantest.ImageNames...))
}

func (s *simulation) editDisk() {
	s.config.Nodes = maps.Clone(s.config.Nodes)
	node := s.config.Nodes["node1"]
	node.Disks = maps.Clone(node.Disks)
	name := pick1(s.dice, s.refs()...).Disk
	one := node.Disks[name]
	switch s.IntN(4) {
	case 0:
		one.EvictionRequested = !one.EvictionRequested
	case 1:
		one.AllowScheduling = !one.AllowScheduling
	case 2:
		one.Tags = plantest.RandomTags(s.Rand)
	case 3:
		one.StorageReserved = pick1(s.dice, int64(0), 2*gib)
	}
	node.Disks[name] = one
	s.config.Nodes["node1"] = node
}

func (s *simulation) editSettings() {
	s.config.Settings.CleanupWaitInterval = pick1(s.dice, 0, time.Minute, time.Hour, 3*time.Hour)
	s.config.Settings.PruneLimit = pick1(s.dice, schema.PrunePercent(50), schema.PruneCount(1), schema.PrunePercent(100))
	s.config.Settings.ConcurrentReplenishPerNodeLimit = pick1(s.dice, 0, 5, 5, 5)
}

// some gives a folder, if there is one.
func (s *simulation) some(which func(*folder) bool) (*platter, *folder) {
	for range 5 {
		p := s.disks[pick1(s.dice, s.refs()...)]
		ids := p.ids()
		if len(ids) == 0 || !p.there {
			continue
		}
		if f := p.folders[pick1(s.dice, ids...)]; which(f) {
			return p, f
		}
	}
	return nil, nil
}

func (s *simulation) use() {
	if _, f := s.some(func(f *folder) bool { return f.letter != "" }); f != nil {
		f.users++
	}
}

func (s *simulation) unuse() {
	if _, f := s.some(func(f *folder) bool { return f.users > 0 }); f != nil {
		f.users = 0
	}
}

// touch changes what vouches for a file, and damage its bytes too. Rot is what
// nobody sees.
func (s *simulation) touch() {
	if _, f := s.some(func(f *folder) bool { return f.letter != "" }); f != nil {
		f.touched = true
	}
}

func (s *simulation) damage() {
	if _, f := s.some(func(f *folder) bool { return f.letter != "" }); f != nil {
		f.touched, f.letter = true, "damaged"
	}
}

func (s *simulation) rot() {
	if _, f := s.some(func(f *folder) bool { return f.letter != "" && f.owned && s.one(3) }); f != nil {
		f.letter = "rotten"
	}
}

// leave is what Longhorn left: a file of a declared generation that is not ours.
func (s *simulation) leave() {
	name := pick1(s.dice, plantest.ImageNames...)
	image, declared := s.config.Images[name]
	p := s.disks[pick1(s.dice, s.refs()...)]
	if declared && p.there && p.folders[image.ID] == nil && p.free() > gib {
		p.folders[image.ID] = &folder{letter: s.serves[image.Source.Download.URL], users: s.IntN(2)}
	}
}

func (s *simulation) trouble() {
	p := s.disks[pick1(s.dice, s.refs()...)]
	switch s.IntN(6) {
	case 0:
		p.there = false
	case 1:
		p.dying = true
	case 2:
		p.unreadable = true
	case 3:
		p.readOnly = true
	case 4:
		p.filled = pick1(s.dice, int64(6*gib), platterSize)
	case 5:
		s.offline = true
	}
}

func (s *simulation) relief() {
	p := s.disks[pick1(s.dice, s.refs()...)]
	p.there, p.dying, p.unreadable, p.readOnly, p.filled = true, p.dying && s.one(2), false, p.readOnly && s.one(2), 0
	s.offline = false
}

// setClock sets the wall clock while the manager runs and sees it.
func (s *simulation) setClock() {
	s.wall += pick1(s.dice, -48*time.Hour, -time.Hour, time.Hour, 24*time.Hour, 1000*time.Hour)
	s.stepped = true
}

func (s *simulation) breakConfig() { s.broken = true }

func (s *simulation) mendConfig() { s.broken = false }

package simulation

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// keepRandomly changes keepGenerations in a configuration before its declaration. It has its own random
// numbers, so that it does not change the other events of a seed before a copy is kept.
func (c *cluster) keepRandomly(config *schema.Config) {
	if c.healed || !c.generations.oneIn(3) {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(config.Images)) {
		image := config.Images[name]
		image.KeepGenerations = pick(c.generations, 0, 1, 1, 2)
		config.Images[name] = image
		if image.KeepGenerations > 0 && !c.renewed && c.generations.oneIn(4) {
			c.renewed = true
			c.renewOften(name)
		}
	}
}

// renewOften declares some generations of an image one after the other, so that disks have several older ones.
func (c *cluster) renewOften(name string) {
	url := "https://example.com/" + name + "?renewed"
	for i, content := range plantest.Letters[:4] {
		c.after(time.Duration(1+4*i)*time.Minute, func() {
			c.unlessHealed(func() {
				c.served[url] = content
				c.declare(c.editedConfig(func(config *schema.Config) {
					if image, declared := config.Images[name]; declared {
						image.Source, image.Checksum = schema.Source{Download: &schema.Download{URL: url, Unpack: schema.UnpackNone}}, c.digest(content)
						image.ID.UUID = schema.UUID(name, image.Checksum, image.Source)
						image.KeepGenerations = max(1, image.KeepGenerations)
						config.Images[name] = image
					}
				}))
			})
		})
	}
}

// indexRandomly adds an index to some downloads of a configuration before its declaration, so that these read
// older generations, too, and removes it from others.
func (c *cluster) indexRandomly(config *schema.Config) {
	for _, name := range slices.Sorted(maps.Keys(config.Images)) {
		image := config.Images[name]
		if image.Source.Download == nil {
			continue
		}
		download := *image.Source.Download
		switch {
		case image.Checksum.IsZero():
			download.Index = ""
		case !c.healed && c.generations.oneIn(2):
			download.Index = pick(c.generations, "", "https://indexes/"+name+".caibx", "https://indexes/"+name+".caibx")
		}
		image.Source.Download = &download
		config.Images[name] = image
	}
}

// mayKeep reports whether a disk keeps older generations of an image.
func (c *cluster) mayKeep(d *declaration, image schema.Image, ref ident.DiskRef) bool {
	return image.KeepGenerations > 0 && (slices.Contains(c.rankedDisks(d, image), ref) || slices.Contains(image.Disks, ref) && !isEvicted(d.config, ref))
}

// earliestRecord is before any time that a manager can have recorded.
var earliestRecord = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// compareReplaced compares when the records of two copies say that another generation replaced them. A
// time that is impossible at the time now counts as now.
func compareReplaced(a, b *Copy, now time.Time) int {
	at := func(s *Copy) time.Time {
		if t := s.Usage.ReplacedAt; !t.Before(earliestRecord) && !t.After(now) {
			return t
		}
		return now
	}
	return at(a).Compare(at(b))
}

// olderGenerations returns the other ready copies of older generations on the disk of a copy.
func (c *cluster) olderGenerations(image schema.Image, key ident.CopyRef) map[ident.ID]*Copy {
	others := map[ident.ID]*Copy{}
	for id, s := range c.disks[key.Disk].Copies {
		if id.Name == key.ID.Name && id != key.ID && id != image.ID && s.Ready() {
			others[id] = s
		}
	}
	return others
}

// isCertainlyKept reports whether a round that lists a ready copy of an older generation now must keep it:
// too few others were replaced later, or at the same time.
func (m *node) isCertainlyKept(image schema.Image, key ident.CopyRef, s *Copy) bool {
	if !s.Ready() || !m.c.mayKeep(m.applied, image, key.Disk) {
		return false
	}
	n := 0
	for _, other := range m.c.olderGenerations(image, key) {
		if compareReplaced(other, s, m.wallNow()) >= 0 {
			n++
		}
	}
	return n < image.KeepGenerations
}

// checkKept checks that a deletion leaves as many newer generations on the disk as keepGenerations keeps.
// All that were ready at some moment since the withdrawal count.
func (r *deletion) checkKept(image schema.Image, s *Copy) {
	if !s.Ready() || !r.c.mayKeep(r.conf, image, r.key.Disk) || r.node.clockOffset != r.node.observedOffset {
		return
	}
	r.addReadyOn(r.node, r.conf.digest, r.readyDuring)
	newer := map[ident.ID]bool{}
	for one := range r.readyDuring {
		id := one.key.ID
		if one.key.Disk != r.key.Disk || id.Name != r.key.ID.Name || id == r.key.ID || id == image.ID {
			continue
		}
		if other := r.c.copyAt(one.key); other == nil || compareReplaced(other, s, r.node.wallNow()) >= 0 {
			newer[id] = true
		}
	}
	if len(newer) < image.KeepGenerations {
		r.c.violation("V6", "%s is deleted, and %d newer generations are ready on the disk; keepGenerations is %d", r.key, len(newer), image.KeepGenerations)
	}
}

// mayStay reports whether a copy of an older generation may stay in a converged cluster.
func (c *cluster) mayStay(image schema.Image, key ident.CopyRef) bool {
	d := c.disks[key.Disk]
	state := d.Copy(key.ID).State
	if !c.mayKeep(c.latest(), image, key.Disk) || state != model.Ready && state != model.Unknown {
		return false
	}
	n := 0
	for _, other := range c.olderGenerations(image, key) {
		if compareReplaced(other, d.Copies[key.ID], startTime.Add(c.now)) > 0 {
			n++
		}
	}
	if n < image.KeepGenerations {
		c.pairs[pairKept]++
		return true
	}
	return false
}

// readSeeds reads chunks for a job from the copies of other generations on its node, and returns whether
// one has some. It reports a copy that is damaged or cannot be read as damaged: its chunks are transferred
// then.
func (m *node) readSeeds(job *runningJob) (found bool) {
	job.seeds = slices.DeleteFunc(job.seeds, func(seed ident.CopyRef) bool {
		if s := m.c.copyAt(seed); s != nil && s.File == s.Recorded {
			found = true
			return false
		}
		m.c.logf(m.name, "%s cannot read chunks of %s", job.key, seed)
		job.damaged(seed)
		m.requestRound()
		return true
	})
	if found {
		m.c.pairs[pairSeed]++
	}
	return found
}

// checkSeedReaders checks that no running job reads chunks of the copy to delete.
func (r *deletion) checkSeedReaders() {
	for _, w := range r.node.sortedJobs() {
		reads := slices.Contains(w.seeds, r.key)
		if reads && !w.ended && !w.stopped {
			r.c.violation("seed", "%s is deleted while %s reads chunks of it", r.key, w.key)
		}
	}
}

// requestSeedCleanup requests the deletion of a copy while a job reads chunks of it.
func (c *cluster) requestSeedCleanup(w *runningJob, m *node) {
	if c.healed || len(w.seeds) == 0 || !c.generations.oneIn(2) {
		return
	}
	key := w.seeds[0]
	c.after(time.Duration(c.generations.IntN(20_000))*time.Millisecond, func() {
		if m.up {
			m.requestCleanup(key)
		}
	})
}

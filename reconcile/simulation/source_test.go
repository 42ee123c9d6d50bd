package simulation

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// origin is where the bytes of a first copy are, in cluster.serves: an address, a backup,
// a volume, or the file that somebody may upload. "" for a clone.
func origin(image schema.Image) string {
	switch s := image.Source; {
	case s.Download != nil:
		return s.Download.URL
	case s.Restore != nil:
		return s.Restore.BackupURL
	case s.ExportFromVolume != nil:
		return s.ExportFromVolume.VolumeName
	case s.Upload != nil:
		return "file of " + image.ID.Name
	}
	return ""
}

// source is where an image comes from.
func (c *cluster) source(config schema.Config, name string) schema.Source {
	variant := name
	if c.one(8) {
		variant = fmt.Sprintf("%s?%d", name, c.IntN(3))
	}
	switch n := c.IntN(12); {
	case n < 2:
		c.scatter("vol-" + variant)
		return schema.Source{ExportFromVolume: &schema.ExportFromVolume{VolumeName: "vol-" + variant}}
	case n < 4:
		return schema.Source{Restore: &schema.Restore{BackupURL: "s3://store/?backingImage=" + variant}}
	case n < 6:
		return schema.Source{Upload: &schema.Upload{}}
	case n < 9:
		if s, ok := c.clone(config, name); ok {
			return s
		}
	}
	return schema.Source{Download: &schema.Download{URL: "https://example.com/" + variant, Unpack: schema.UnpackNone}}
}

// scatter puts replicas of a volume on some nodes.
func (c *cluster) scatter(volume string) {
	if c.replicas[volume] != nil {
		return
	}
	on := map[string]bool{}
	for _, name := range c.names {
		on[name] = c.one(2)
	}
	c.replicas[volume] = on
}

// clone is of an image that stands before name in diceNames: there are no circles.
func (c *cluster) clone(config schema.Config, name string) (schema.Source, bool) {
	var of []string
	for _, before := range plantest.ImageNames[:slices.Index(plantest.ImageNames, name)] {
		if _, declared := config.Images[before]; declared {
			of = append(of, before)
		}
	}
	if len(of) == 0 {
		return schema.Source{}, false
	}
	s := schema.Source{Clone: &schema.Clone{BackingImage: pick1(c.dice, of...)}}
	s.Clone.Encryption = pick1(c.dice, schema.EncryptionIgnore, schema.EncryptionIgnore, schema.Encrypt, schema.Decrypt)
	if s.Clone.Encryption == lastEncryption(config, s.Clone.BackingImage) {
		s.Clone.Encryption = schema.EncryptionIgnore
	}
	return s, true
}

// lastEncryption is what was last done to the bytes of an image.
func lastEncryption(config schema.Config, name string) schema.Encryption {
	of := config.Images[name].Source.Clone
	switch {
	case of == nil:
		return schema.EncryptionIgnore
	case of.Encryption == schema.EncryptionIgnore:
		return lastEncryption(config, of.BackingImage)
	}
	return of.Encryption
}

// dropBadClones takes out what a configuration may not declare: clones of what is not
// declared, or is encrypted already.
func dropBadClones(config *schema.Config) {
	for _, name := range plantest.ImageNames {
		of := config.Images[name].Source.Clone
		if of == nil {
			continue
		}
		_, declared := config.Images[of.BackingImage]
		twice := of.Encryption != schema.EncryptionIgnore && of.Encryption == lastEncryption(*config, of.BackingImage)
		if !declared || twice {
			delete(config.Images, name)
		}
	}
}

// cloned are the bytes of a clone. To encrypt is left to chance: every time it gives
// other bytes.
func cloned(letter string, how schema.Encryption) string {
	switch {
	case how == schema.EncryptionIgnore || letter == "":
		return letter
	case how == schema.Encrypt:
		return ""
	case strings.HasPrefix(letter, "encrypted "):
		_, of, _ := strings.Cut(letter, " of ")
		return of
	}
	return "decrypted of " + letter
}

// content is what the first copy of an image would have now, "" if nobody can say.
func (c *cluster) content(config schema.Config, image schema.Image) string {
	of := image.Source.Clone
	if of == nil {
		at := origin(image)
		if c.serves[at] == "" {
			c.serves[at] = pick1(c.dice, plantest.Letters...)
		}
		return c.serves[at]
	}
	source := config.Images[of.BackingImage]
	letter := ""
	for _, key := range c.soundOf(config, source) {
		letter = c.slot(key).digest
		break
	}
	switch {
	case letter != "":
	case !source.Checksum.IsZero():
		letter = c.letterOf(source.Checksum)
	default:
		letter = c.content(config, source)
	}
	return cloned(letter, of.Encryption)
}

// soundOf are the ready copies of an image on declared disks, which have what is
// declared.
func (c *cluster) soundOf(config schema.Config, image schema.Image) []plan.CopyRef {
	var keys []plan.CopyRef
	for _, ref := range c.places() {
		_, declared := config.Nodes[ref.Node].Disks[ref.Disk]
		if s := c.slot(plan.CopyRef{Disk: ref, ID: image.ID}); declared && s.sound() && (image.Checksum.IsZero() || c.sum(s.digest) == image.Checksum) {
			keys = append(keys, plan.CopyRef{Disk: ref, ID: image.ID})
		}
	}
	return keys
}

// soundWith reports whether any image is ready with these bytes.
func (c *cluster) soundWith(config schema.Config, sum disk.Digest) bool {
	for _, ref := range c.places() {
		if _, declared := config.Nodes[ref.Node].Disks[ref.Disk]; !declared {
			continue
		}
		for _, id := range c.drives[ref].ids() {
			if s := c.slot(plan.CopyRef{Disk: ref, ID: id}); s.sound() && c.sum(s.digest) == sum {
				return true
			}
		}
	}
	return false
}

// obtainable reports whether the world has what a copy of the image can be made of, where
// it can be made.
func (c *cluster) obtainable(config schema.Config, image schema.Image, on []schema.DiskRef) bool {
	if len(c.soundOf(config, image)) > 0 || !image.Checksum.IsZero() && c.soundWith(config, image.Checksum) {
		return true
	}
	switch s := image.Source; {
	case s.Upload != nil:
		return false
	case s.ExportFromVolume != nil:
		return slices.ContainsFunc(on, func(ref schema.DiskRef) bool { return c.replicas[s.ExportFromVolume.VolumeName][ref.Node] })
	case s.Clone != nil:
		return c.cloneable(config, image, on)
	}
	return true
}

func (c *cluster) cloneable(config schema.Config, image schema.Image, on []schema.DiskRef) bool {
	of := image.Source.Clone
	sources, letter, can := c.soundOf(config, config.Images[of.BackingImage]), "", false
	for _, key := range sources {
		digest := c.slot(key).digest
		if letter != "" && letter != digest {
			return false // nobody knows which
		}
		letter = digest
		here := slices.ContainsFunc(on, func(ref schema.DiskRef) bool { return ref.Node == key.Disk.Node })
		can = can || here || of.Encryption == schema.EncryptionIgnore
	}
	return can && (image.Checksum.IsZero() || cloned(letter, of.Encryption) == c.letterOf(image.Checksum))
}

// replicasMove lets the replicas of a volume be on other nodes.
func (c *cluster) replicasMove() {
	volumes := slices.Sorted(maps.Keys(c.replicas))
	if len(volumes) == 0 {
		return
	}
	volume := pick1(c.dice, volumes...)
	none := c.one(4)
	for _, name := range c.names {
		if c.one(2) {
			c.replicas[volume][name] = !none && c.one(2)
		}
	}
	c.tell("", "the replicas of %s are on %v now", volume, c.replicas[volume])
}

// reach finds out whether what a first copy is made of is still there.
func (m *node) reach(w *work) error {
	switch w.action.Op {
	case plan.Download, plan.Restore:
		if m.c.offline {
			return &fetch.Error{Class: fetch.Network, Err: errors.New("no connection")}
		}
	case plan.Export:
		if e := w.image.Source.ExportFromVolume; !m.c.replicas[e.VolumeName][m.name] {
			return &fetch.Error{Class: fetch.Refused, Err: errors.New("no replica on this node")}
		}
	case plan.Clone:
		if s := m.c.slot(w.action.LocalSource); !s.sound() || m.c.sum(s.digest) != w.action.SourceDigest {
			return fmt.Errorf("open %s: it is not ready", w.action.From)
		}
	}
	return nil
}

// prepare is the end of a first copy.
func (m *node) prepare(d *drive, w *work) error {
	if err := m.reach(w); err != nil {
		return err
	}
	want := w.image.Checksum
	if want.IsZero() {
		want = w.action.Pinned.Digest
	}
	letter := m.c.serves[origin(w.image)]
	if w.action.Op == plan.Clone {
		s, how := m.c.slot(w.action.LocalSource), w.image.Source.Clone.Encryption
		if s.letter != s.digest {
			return &disk.ChecksumError{Want: w.action.SourceDigest, Got: m.c.sum(s.letter)}
		}
		if letter = cloned(s.letter, how); how == schema.Encrypt {
			m.c.salts++
			letter = fmt.Sprintf("encrypted %d of %s", m.c.salts, s.letter)
		}
	}
	return m.fill(d, w, letter, want)
}

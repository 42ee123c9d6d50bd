package simulation

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// upstream returns the key of an image's upstream in cluster.serves: an address, a backup, a volume,
// or the file of a client that uploads. It is "" for a clone.
func upstream(image schema.Image) string {
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

// randomSource returns a source for an image.
func (c *cluster) randomSource(config schema.Config, name string) schema.Source {
	variant := name
	if c.oneIn(8) {
		variant = fmt.Sprintf("%s?%d", name, c.IntN(3))
	}
	switch n := c.IntN(12); {
	case n < 2:
		c.placeReplicas("vol-" + variant)
		return schema.Source{ExportFromVolume: &schema.ExportFromVolume{VolumeName: "vol-" + variant}}
	case n < 4:
		return schema.Source{Restore: &schema.Restore{BackupURL: "s3://store/?backingImage=" + variant}}
	case n < 6:
		return schema.Source{Upload: &schema.Upload{}}
	case n < 9:
		if s, ok := c.randomClone(config, name); ok {
			return s
		}
	}
	return schema.Source{Download: &schema.Download{URL: "https://example.com/" + variant, Unpack: schema.UnpackNone}}
}

// placeReplicas puts replicas of a volume on some nodes.
func (c *cluster) placeReplicas(volume string) {
	if c.replicas[volume] != nil {
		return
	}
	on := map[string]bool{}
	for _, name := range c.names {
		on[name] = c.oneIn(2)
	}
	c.replicas[volume] = on
}

// randomClone returns a clone of an image whose name precedes this one in plantest.ImageNames: so
// there are no cycles.
func (c *cluster) randomClone(config schema.Config, name string) (schema.Source, bool) {
	var of []string
	for _, before := range plantest.ImageNames[:slices.Index(plantest.ImageNames, name)] {
		if _, declared := config.Images[before]; declared {
			of = append(of, before)
		}
	}
	if len(of) == 0 {
		return schema.Source{}, false
	}
	s := schema.Source{Clone: &schema.Clone{BackingImage: pick(c.rng, of...)}}
	s.Clone.Encryption = pick(c.rng, schema.EncryptionIgnore, schema.EncryptionIgnore, schema.Encrypt, schema.Decrypt)
	if s.Clone.Encryption == lastEncryption(config, s.Clone.BackingImage) {
		s.Clone.Encryption = schema.EncryptionIgnore
	}
	return s, true
}

// lastEncryption returns the last encryption or decryption in the chain of clones of an image.
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

// dropBadClones removes invalid clones: those of undeclared images, and those that encrypt or decrypt
// twice.
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

// cloneBytes returns the content of a clone. It is "" for an encryption, which has other bytes each
// time.
func cloneBytes(content string, how schema.Encryption) string {
	switch {
	case how == schema.EncryptionIgnore || content == "":
		return content
	case how == schema.Encrypt:
		return ""
	case strings.HasPrefix(content, "encrypted "):
		_, of, _ := strings.Cut(content, " of ")
		return of
	}
	return "decrypted of " + content
}

// expectedBytes returns the content that a first copy of the image would have now, "" if it is
// unknown.
func (c *cluster) expectedBytes(config schema.Config, image schema.Image) string {
	of := image.Source.Clone
	if of == nil {
		at := upstream(image)
		if c.served[at] == "" {
			c.served[at] = pick(c.rng, plantest.Letters...)
		}
		return c.served[at]
	}
	source := config.Images[of.BackingImage]
	content := ""
	for _, key := range c.readyCopies(config, source) {
		content = c.copyAt(key).Recorded
		break
	}
	switch {
	case content != "":
	case !source.Checksum.IsZero():
		content = c.contentOf(source.Checksum)
	default:
		content = c.expectedBytes(config, source)
	}
	return cloneBytes(content, of.Encryption)
}

// readyCopies returns the ready copies of an image on declared disks that have the declared checksum.
func (c *cluster) readyCopies(config schema.Config, image schema.Image) []ident.CopyRef {
	var keys []ident.CopyRef
	for _, ref := range c.diskRefs() {
		_, declared := config.Nodes[ref.Node].Disks[ref.Disk]
		if s := c.copyAt(ident.CopyRef{Disk: ref, ID: image.ID}); declared && s.Ready() && (image.Checksum.IsZero() || c.digest(s.Recorded) == image.Checksum) {
			keys = append(keys, ident.CopyRef{Disk: ref, ID: image.ID})
		}
	}
	return keys
}

// isReadyWith reports whether any image has a ready copy with the digest.
func (c *cluster) isReadyWith(config schema.Config, sum ident.Digest) bool {
	for _, ref := range c.diskRefs() {
		if _, declared := config.Nodes[ref.Node].Disks[ref.Disk]; !declared {
			continue
		}
		for _, id := range c.disks[ref].IDs() {
			if s := c.copyAt(ident.CopyRef{Disk: ref, ID: id}); s.Ready() && c.digest(s.Recorded) == sum {
				return true
			}
		}
	}
	return false
}

// obtainable reports whether the cluster or the upstream has the bytes for a copy of the image, in
// a place from which one of the disks can get them.
func (c *cluster) obtainable(config schema.Config, image schema.Image, on []ident.DiskRef) bool {
	if len(c.readyCopies(config, image)) > 0 || !image.Checksum.IsZero() && c.isReadyWith(config, image.Checksum) {
		return true
	}
	switch s := image.Source; {
	case s.Upload != nil:
		return false
	case s.ExportFromVolume != nil:
		return slices.ContainsFunc(on, func(ref ident.DiskRef) bool { return c.replicas[s.ExportFromVolume.VolumeName][ref.Node] })
	case s.Clone != nil:
		return c.cloneable(config, image, on)
	}
	return true
}

func (c *cluster) cloneable(config schema.Config, image schema.Image, on []ident.DiskRef) bool {
	of := image.Source.Clone
	sources, content, can := c.readyCopies(config, config.Images[of.BackingImage]), "", false
	for _, key := range sources {
		digest := c.copyAt(key).Recorded
		if content != "" && content != digest {
			return false // a conflict
		}
		content = digest
		here := slices.ContainsFunc(on, func(ref ident.DiskRef) bool { return ref.Node == key.Disk.Node })
		can = can || here || of.Encryption == schema.EncryptionIgnore
	}
	return can && (image.Checksum.IsZero() || cloneBytes(content, of.Encryption) == c.contentOf(image.Checksum))
}

// moveReplicas moves the replicas of a volume to other nodes.
func (c *cluster) moveReplicas() {
	volumes := slices.Sorted(maps.Keys(c.replicas))
	if len(volumes) == 0 {
		return
	}
	volume := pick(c.rng, volumes...)
	none := c.oneIn(4)
	for _, name := range c.names {
		if c.oneIn(2) {
			c.replicas[volume][name] = !none && c.oneIn(2)
		}
	}
	c.logf("", "the replicas of %s move to %v", volume, c.replicas[volume])
}

// checkSource returns an error if the source of a first copy cannot be read now.
func (m *node) checkSource(w *runningJob) error {
	switch w.action.Op {
	case model.Download, model.Restore:
		if m.c.offline {
			return &fetch.Error{Class: fetch.Network, Err: errors.New("no connection")}
		}
	case model.Export:
		if e := w.image.Source.ExportFromVolume; !m.c.replicas[e.VolumeName][m.name] {
			return &fetch.Error{Class: fetch.Refused, Err: errors.New("no replica on this node")}
		}
	case model.Clone:
		if s := m.c.copyAt(w.action.LocalSource); !s.Ready() || m.c.digest(s.Recorded) != w.action.SourceDigest {
			return fmt.Errorf("open %s: it is not ready", w.action.From)
		}
	}
	return nil
}

// finishFirstCopy is the last step of a job that creates a first copy.
func (m *node) finishFirstCopy(d *Disk, w *runningJob) error {
	if err := m.checkSource(w); err != nil {
		return err
	}
	want := w.image.Checksum
	if want.IsZero() {
		want = w.action.Pinned.Digest
	}
	content := m.c.served[upstream(w.image)]
	if w.action.Op == model.Clone {
		s, how := m.c.copyAt(w.action.LocalSource), w.image.Source.Clone.Encryption
		if s.File != s.Recorded {
			return &disk.ChecksumError{Want: w.action.SourceDigest, Got: m.c.digest(s.File)}
		}
		if content = cloneBytes(s.File, how); how == schema.Encrypt {
			m.c.encryptions++
			content = fmt.Sprintf("encrypted %d of %s", m.c.encryptions, s.File)
		}
	}
	return m.fill(d, w, content, want)
}

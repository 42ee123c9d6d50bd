package scenario

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// checkNode returns an error that lists the declared nodes, unless name is one of them.
func checkNode(c schema.Config, name string) error {
	if _, ok := c.Nodes[name]; !ok {
		return fmt.Errorf("node %s is not declared: the nodes are %s", name, joinNames(nodeNames(c)))
	}
	return nil
}

// parseDisk parses NODE/DISK. The error lists the declared names.
func parseDisk(c schema.Config, text string) (schema.DiskRef, error) {
	ref, err := schema.ParseDiskRef(text)
	if err != nil {
		return schema.DiskRef{}, fmt.Errorf("%s is not a disk: %w", text, err)
	}
	if err := checkNode(c, ref.Node); err != nil {
		return schema.DiskRef{}, err
	}
	disks := c.Nodes[ref.Node].Disks
	if _, ok := disks[ref.Disk]; !ok {
		return schema.DiskRef{}, fmt.Errorf("node %s has no disk %s: it has %s", ref.Node, ref.Disk, joinNames(slices.Sorted(maps.Keys(disks))))
	}
	return ref, nil
}

// findImage finds an image by its name, or a generation by <name>-<uuid>. The name of a
// removed image is enough if only one generation has copies.
func (w *world) findImage(text string) (disk.ID, error) {
	if image, ok := w.base.Config.Images[text]; ok {
		return image.ID, nil
	}
	if _, invalid := w.base.Invalid[text]; invalid {
		return disk.ID{Name: text}, nil
	}
	generations := map[string]disk.ID{} // of copies
	for _, d := range w.disks {
		for id := range d.Copies {
			if id.Name == text {
				generations[id.String()] = id
			}
		}
	}
	for _, id := range generations {
		if len(generations) == 1 {
			return id, nil
		}
		return disk.ID{}, fmt.Errorf("%s has several generations: name one of %s", text, joinNames(slices.Sorted(maps.Keys(generations))))
	}
	for _, e := range slices.Backward(w.history) {
		if e.Image == text {
			return e.CopyRef().ID, nil
		}
	}
	if id, err := disk.ParseID(text); err == nil {
		return id, nil
	}
	return disk.ID{}, fmt.Errorf("image %s is not declared and has no copies: the declared images are %s", text, joinNames(slices.Sorted(maps.Keys(w.base.Config.Images))))
}

// joinNames lists names for an error.
func joinNames(names []string) string { return cmp.Or(plan.JoinMax(names, ", ", 10), "none") }

// setUp starts or stops a node. A node that is down does not work or respond. Its disks stay
// as they are.
func (w *world) setUp(node string, up bool) {
	w.observe()
	w.invalidate()
	_, down := w.down[node]
	switch {
	case up:
		delete(w.down, node)
	case !down:
		w.down[node] = w.now
	}
}

// setAttached attaches or detaches a disk. The disk keeps its copies.
func (w *world) setAttached(ref schema.DiskRef, attached bool) {
	w.observe()
	w.invalidate()
	d := w.at(ref)
	switch {
	case attached:
		d.detachedAt, d.Problem = time.Time{}, ""
	case d.detachedAt.IsZero():
		d.detachedAt = w.now
	}
}

// setFree sets the free bytes of a disk.
func (w *world) setFree(ref schema.DiskRef, bytes int64) {
	w.invalidate()
	d := w.at(ref)
	d.Space.Free, d.Space.Total = bytes, max(bytes, d.Space.Total)
}

// setSource sets the behaviour of the source of an image.
func (w *world) setSource(image string, s source) {
	w.invalidate()
	w.sources[image] = s
}

// putCopy puts a copy on a disk, or removes it if its state is empty. It does not change the
// free space.
func (w *world) putCopy(ref plan.CopyRef, c plan.Copy) {
	w.invalidate()
	d := w.at(ref.Disk)
	delete(d.failures, ref.ID)
	if c.State == "" {
		delete(d.Copies, ref.ID)
		delete(d.backedUp, ref.ID)
		return
	}
	d.Copies[ref.ID] = c
}

// newCopy returns a copy of an image in a state.
func (w *world) newCopy(id disk.ID, state disk.State, size int64) plan.Copy {
	c := plan.Copy{Copy: disk.Copy{ID: id, State: state, Size: size, RealSize: size, VirtualSize: size, Format: disk.Raw, HasCfg: true, Owned: true}}
	c.SHA512, c.SHA256, c.ManifestDigest = digestsOf(w.base.Config, id)
	switch state {
	case disk.Ready:
		c.VerifiedAt = w.now
	case disk.Failed:
		c.Message, c.DamagedAt = "damaged", w.now
	case disk.Unknown:
		c.Message, c.Owned, c.HasCfg = "not verified yet", false, false
	}
	return c
}

// digestsOf returns the digests of an image: the declared one, and others that depend on the
// generation. sha256 is zero unless it is declared.
func digestsOf(c schema.Config, id disk.ID) (sha512, sha256, manifest disk.Digest) {
	h, m := disk.SHA512.New(), disk.SHA256.New()
	h.Write([]byte(id.String()))
	m.Write([]byte(id.String()))
	sha512, manifest = disk.SHA512.Digest(h), disk.SHA256.Digest(m)
	if image, ok := c.Images[id.Name]; ok && image.ID == id && !image.Checksum.IsZero() {
		if image.Checksum.Algorithm() == disk.SHA512 {
			return image.Checksum, sha256, manifest
		}
		return sha512, image.Checksum, manifest
	}
	return sha512, sha256, manifest
}

// setUsed says whether a replica on the disk uses a copy.
func (w *world) setUsed(ref plan.CopyRef, used bool) error {
	w.observe()
	d := w.at(ref.Disk)
	c, exists := d.Copies[ref.ID]
	if !exists {
		return fmt.Errorf("there is no copy of %s on %s", ref.ID.Name, ref.Disk)
	}
	w.invalidate()
	c.UsedBy = ""
	if used {
		c.UsedBy = "used by a replica"
	}
	d.Copies[ref.ID] = c
	return nil
}

// advance moves the clock. The managers observe the usage of copies, but execute nothing.
func (w *world) advance(d time.Duration) {
	w.observe()
	w.now = w.now.Add(d)
	w.invalidate()
}

package scenario

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// checkNode returns an error that names the declared nodes, unless name is one.
func (w *world) checkNode(name string) error {
	if _, ok := w.base.Config.Nodes[name]; !ok {
		return fmt.Errorf("no node %s is declared: there are %s", name, joinNames(w.nodes()))
	}
	return nil
}

// parseDisk reads NODE/DISK. The error names the declared ones.
func (w *world) parseDisk(text string) (schema.DiskRef, error) {
	node, name, ok := strings.Cut(text, "/")
	if !ok {
		return schema.DiskRef{}, fmt.Errorf("%s names no disk: write NODE/DISK", text)
	}
	if err := w.checkNode(node); err != nil {
		return schema.DiskRef{}, err
	}
	disks := w.base.Config.Nodes[node].Disks
	if _, ok := disks[name]; !ok {
		return schema.DiskRef{}, fmt.Errorf("node %s has no disk %s: it has %s", node, name, joinNames(slices.Sorted(maps.Keys(disks))))
	}
	return schema.DiskRef{Node: node, Disk: name}, nil
}

// findImage finds an image by its name, or a generation by its folder <name>-<uuid>. An
// image that has left the configuration goes by its name, unless there are copies of
// several generations.
func (w *world) findImage(text string) (disk.ID, error) {
	if image, ok := w.base.Config.Images[text]; ok {
		return image.ID, nil
	}
	if _, held := w.base.Invalid[text]; held {
		return disk.ID{Name: text}, nil
	}
	ids := map[string]disk.ID{} // of copies, by folder
	for _, d := range w.disks {
		for id := range d.Copies {
			if id.Name == text {
				ids[id.String()] = id
			}
		}
	}
	for _, id := range ids {
		if len(ids) == 1 {
			return id, nil
		}
		return disk.ID{}, fmt.Errorf("%s has several generations: name one of %s", text, joinNames(slices.Sorted(maps.Keys(ids))))
	}
	for _, d := range slices.Backward(w.history) {
		if d.Image == text {
			return d.CopyRef().ID, nil
		}
	}
	if id, err := disk.ParseID(text); err == nil {
		return id, nil
	}
	return disk.ID{}, fmt.Errorf("no image %s is declared, and there is no copy of one: declared are %s", text, joinNames(slices.Sorted(maps.Keys(w.base.Config.Images))))
}

// joinNames lists names for an error.
func joinNames(names []string) string { return cmp.Or(report.JoinMax(names, 10), "none") }

// setUp lets a node do its work again, or takes it down: it does nothing and answers
// nobody, and its disks stay as they are.
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

// setAttached lets a disk be there again, with what is on it, or takes it away.
func (w *world) setAttached(ref schema.DiskRef, there bool) {
	w.observe()
	w.invalidate()
	d := w.at(ref)
	switch {
	case there:
		d.detachedAt, d.Problem = time.Time{}, ""
	case d.detachedAt.IsZero():
		d.detachedAt = w.now
	}
}

// setFree sets how many bytes are free on a disk.
func (w *world) setFree(ref schema.DiskRef, bytes int64) {
	w.invalidate()
	d := w.at(ref)
	d.Space.Free, d.Space.Total = bytes, max(bytes, d.Space.Total)
}

// setSource says what the source of an image does from now on.
func (w *world) setSource(image string, s source) {
	w.invalidate()
	w.sources[image] = s
}

// putCopy puts a copy on a disk as if it had always been there, or takes it off where its
// state is "". Room is made for it.
func (w *world) putCopy(key plan.CopyRef, c plan.Copy) {
	w.invalidate()
	d := w.at(key.Disk)
	delete(d.tries, key.ID)
	if c.State == "" {
		delete(d.Copies, key.ID)
		delete(d.backedUp, key.ID)
		return
	}
	d.Copies[key.ID] = c
}

// newCopy is a copy of an image as its source would have it, in a state.
func (w *world) newCopy(id disk.ID, state disk.State, size int64) plan.Copy {
	c := plan.Copy{Copy: disk.Copy{ID: id, State: state, Size: size, RealSize: size, VirtualSize: size, Format: disk.Raw, HasCfg: true, Owned: true}}
	c.SHA512, c.SHA256, c.ManifestDigest = w.digests(id)
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

// digests are those of the bytes of an image: the declared ones where there are any.
func (w *world) digests(id disk.ID) (sum, short, chunks disk.Digest) {
	h, m := disk.SHA512.New(), disk.SHA256.New()
	h.Write([]byte(id.String()))
	m.Write([]byte(id.String()))
	sum, chunks = disk.SHA512.Digest(h), disk.SHA256.Digest(m)
	if image, ok := w.base.Config.Images[id.Name]; ok && image.ID == id && !image.Checksum.IsZero() {
		if image.Checksum.Algorithm() == disk.SHA512 {
			return image.Checksum, short, chunks
		}
		return sum, image.Checksum, chunks
	}
	return sum, short, chunks
}

// sourceSize is how many bytes an image has by its source.
func (w *world) sourceSize(id disk.ID) int64 { return w.source(id.Name).Size }

// setUsed says that a replica on the disk uses the copy there, or that none does any more.
func (w *world) setUsed(key plan.CopyRef, used bool) error {
	w.observe()
	d := w.at(key.Disk)
	c, there := d.Copies[key.ID]
	if !there {
		return fmt.Errorf("there is no copy of %s on %s", key.ID.Name, key.Disk)
	}
	w.invalidate()
	c.UsedBy = ""
	if used {
		c.UsedBy = "used by a replica"
	}
	d.Copies[key.ID] = c
	return nil
}

// advance lets time pass in which the managers do nothing but look.
func (w *world) advance(d time.Duration) {
	w.observe()
	w.now = w.now.Add(d)
	w.invalidate()
}

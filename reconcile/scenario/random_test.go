package scenario

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// dice generates random configurations and events.
type dice struct{ *rand.Rand }

func (r dice) one(in int) bool { return r.IntN(in) == 0 }

func pick[T any](r dice, of ...T) T { return of[r.IntN(len(of))] }

var images = []string{"parrot", "macaw", "kea", "lory"}

func (r dice) config() load.Result {
	c := schema.Config{Nodes: map[string]schema.Node{}, Images: map[string]schema.Image{}, Settings: schema.Settings{
		CleanupWaitInterval:             pick(r, 0, time.Minute, time.Hour),
		RecoveryWaitInterval:            pick(r, time.Minute, 5*time.Minute),
		ConcurrentReplenishPerNodeLimit: pick(r, 5, 5, 5, 0),
		ScrubInterval:                   pick(r, 0, 0, 0, 24*time.Hour),
		PruneLimit:                      pick(r, schema.PrunePercent(50), schema.PruneCount(0), schema.PrunePercent(100)),
	}}
	for n := range 3 {
		node := schema.Node{AllowScheduling: !r.one(10), EvictionRequested: r.one(10), Disks: map[string]schema.Disk{}}
		for i := range 1 + r.IntN(2) {
			node.Disks[fmt.Sprintf("disk%d", i+1)] = schema.Disk{
				Path: fmt.Sprintf("/disk%d", i+1), AllowScheduling: !r.one(8), EvictionRequested: r.one(8),
				Tags: pick(r, []string{"a"}, nil), StorageReserved: pick(r, int64(0), 5<<30),
			}
		}
		c.Nodes[fmt.Sprintf("node%d", n+1)] = node
	}
	for _, name := range images {
		if !r.one(5) {
			c.Images[name] = r.image(name)
		}
	}
	return load.Result{Loaded: schema.Loaded{Config: c, Digest: fmt.Sprintf("d%d", r.Uint32()), Allowed: schema.Everything}}
}

func (r dice) image(name string) schema.Image {
	m := schema.Image{
		ID: ident.ID{Name: name, UUID: pick(r, "0000000a", "0000000a", "0000000b")}, Copies: 1 + r.IntN(3), AllDisks: r.one(8),
		Source: pick(r, schema.Source{Download: &schema.Download{URL: "https://example.com/x"}}, schema.Source{Download: &schema.Download{URL: "https://example.com/x"}},
			schema.Source{Upload: &schema.Upload{}}, schema.Source{ExportFromVolume: &schema.ExportFromVolume{VolumeName: "x"}},
			schema.Source{Clone: &schema.Clone{BackingImage: images[0], Encryption: schema.EncryptionIgnore}}),
	}
	if m.Source.Clone != nil && name == images[0] {
		m.Source = schema.Source{Restore: &schema.Restore{BackupURL: "s3://x"}}
	}
	if m.AllDisks {
		m.Copies = 1
	}
	if r.one(4) {
		m.DiskSelector = []string{"a"}
	}
	if r.one(6) {
		m.Disks = []ident.DiskRef{{Node: "node1", Disk: "disk1"}}
	}
	return m
}

// happen applies a random event.
func (r dice) apply(w *world) (event string) {
	nodes := nodeNames(w.base.Config)
	node := nodes[r.IntN(len(nodes))]
	refs := make([]ident.DiskRef, 0, 6)
	for ref := range w.locations() {
		refs = append(refs, ref)
	}
	slices.SortFunc(refs, ident.DiskRef.Compare)
	key := ident.CopyRef{Disk: refs[r.IntN(len(refs))], ID: ident.ID{Name: images[r.IntN(len(images))], UUID: pick(r, "0000000a", "0000000b")}}
	_, there := w.at(key.Disk).Copies[key.ID]
	switch r.IntN(9) {
	case 0:
		up := r.one(2)
		w.setUp(node, up)
		return fmt.Sprintf("%s up=%t", node, up)
	case 1:
		there := !r.one(3)
		w.setAttached(key.Disk, there)
		return fmt.Sprintf("%s attached=%t", key.Disk, there)
	case 2:
		w.at(key.Disk).SetFree(pick(r, int64(0), 1<<30, 6<<30, 100<<30))
		w.changed()
		return fmt.Sprintf("%s free=%d", key.Disk, w.at(key.Disk).Free())
	case 3:
		if state := pick(r, model.Ready, model.Ready, model.Failed, model.Unknown); !there {
			w.putCopy(key, w.newCopy(key.ID, state, 1<<30))
			return fmt.Sprintf("%s %s", key, state)
		}
	case 4:
		if used := r.one(2); there || r.one(2) {
			w.setUsed(key, used)
			return fmt.Sprintf("%s used=%t", key, used)
		}
	case 5:
		s := source{size: initialSize}
		switch r.IntN(5) {
		case 0:
			s.err = &fetch.Error{Class: pick(r, fetch.Network, fetch.Refused, fetch.BadSource), Err: fmt.Errorf("it fails")}
		case 1:
			s.nodes = []string{node}
		}
		w.sources[key.ID.Name] = s
		w.changed()
		return fmt.Sprintf("source of %s: nodes %v, error %v", key.ID.Name, s.nodes, s.err)
	case 6, 7:
		c := r.config()
		if r.one(6) {
			c.Allowed, c.Digest = schema.NoDeletions, ""
		}
		if err := w.configure(c); err != nil {
			panic(err)
		}
		return "new configuration " + c.Digest
	}
	d := pick(r, time.Second, time.Minute, time.Hour, 25*time.Hour)
	w.advance(d)
	return fmt.Sprintf("%v later", d)
}

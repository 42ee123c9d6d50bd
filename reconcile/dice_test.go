package reconcile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// dice make situations.
type dice struct{ *rand.Rand }

func (r dice) one(in int) bool { return r.IntN(in) == 0 }

func pick1[T any](r dice, of ...T) T { return of[r.IntN(len(of))] }

func (r dice) situation() (plan.Desired, plan.Observed) {
	d := plan.Desired{Node: "node1", Config: r.config(), Invalid: map[string]schema.Held{}, Allowed: schema.Everything, Verify: map[plan.CopyRef]bool{}}
	if r.one(8) {
		d.Allowed = pick1(r, schema.ObserveOnly, schema.NoDeletions, schema.NoDeletions)
	}
	for _, name := range []string{"macaw", "gone1"} {
		if d.Allowed == schema.NoDeletions && r.one(2) {
			_, declared := d.Config.Images[name]
			d.Invalid[name] = schema.Held{Name: name, Stale: declared}
		}
	}
	now := goldenNow.Add(time.Duration(r.IntN(1000)) * time.Second)
	o := plan.Observed{Now: now, Disks: map[schema.DiskRef]plan.Disk{}, Failures: map[plan.CopyRef]plan.Failure{}, Running: map[plan.CopyRef]bool{}}
	if r.one(4) {
		removals := &configdir.RemovalConfirmer{}
		d.Removed = removals.Confirmed
		for range r.IntN(4) {
			at := now.Add(-time.Duration(r.IntN(9)) * time.Second)
			removals.Observe(at, at, map[string]bool{"parrot": true, "gone1": r.one(2)})
		}
	}
	o.CannotPrepare, o.BackedUp = map[disk.ID]string{}, map[disk.ID]bool{}
	for _, name := range diceNames {
		if r.one(3) {
			o.CannotPrepare[disk.ID{Name: name, UUID: "0000000a"}] = "no replica on this node"
		}
		if r.one(2) {
			o.BackedUp[disk.ID{Name: name, UUID: "0000000a"}] = true
		}
	}
	if !r.one(6) {
		d.Uploads = map[plan.CopyRef]bool{}
	}
	d.Digest = pick1(r, "d1", "d1", "d1", "")
	o.Peers = map[string]plan.Peer{}
	for _, node := range slices.Sorted(maps.Keys(d.Config.Nodes)) {
		if node != d.Node && !r.one(6) {
			o.Peers[node] = r.peer()
		}
		for _, name := range slices.Sorted(maps.Keys(d.Config.Nodes[node].Disks)) {
			if !r.one(30) {
				r.disk(schema.DiskRef{Node: node, Disk: name}, o, d.Verify, d.Uploads)
			}
		}
	}
	r.suspend(&d.Config, now)
	return d, o
}

// suspend suspends some images, or all of them, for ever, for a while, or until a moment ago.
func (r dice) suspend(config *schema.Config, now time.Time) {
	one := func() *schema.Suspension {
		return &schema.Suspension{Reason: "a reason", By: pick1(r, "", "ann"), Until: pick1(r, time.Time{}, now.Add(time.Hour), now, now.Add(time.Nanosecond))}
	}
	if r.one(10) {
		config.Settings.Suspend = one()
	}
	for _, name := range slices.Sorted(maps.Keys(config.Images)) {
		if image := config.Images[name]; r.one(6) {
			image.Suspend = one()
			config.Images[name] = image
		}
	}
}

func (r dice) peer() plan.Peer {
	p := plan.Peer{Queried: !r.one(10), ConfigDigest: pick1(r, "d1", "d1", "d1", "d1", "d2", "")}
	if !p.Queried || r.one(4) {
		p.Problem, p.UnreachableFor = "no answer", pick1(r, 0, time.Second, 4*time.Minute, time.Hour)
	}
	return p
}

var diceNames = []string{"parrot", "macaw", "cockatoo", "lory", "kea"}

func (r dice) config() schema.Config {
	c := schema.Config{Nodes: map[string]schema.Node{}, Images: map[string]schema.Image{}, Settings: schema.Settings{
		CleanupWaitInterval:  pick1(r, 0, time.Minute, time.Hour),
		RecoveryWaitInterval: pick1(r, 0, 5*time.Minute), MinNumberOfCopies: 1,
		ConcurrentReplenishPerNodeLimit: pick1(r, 0, 5, 5, 5),
		ScrubInterval:                   pick1(r, 0, 0, 24*time.Hour),
		PruneLimit:                      pick1(r, schema.PrunePercent(50), schema.PruneCount(0), schema.PruneCount(2), schema.PrunePercent(100)),
	}}
	for id := range 3 {
		if r.one(3) {
			c.Settings.PruneConfirmed = append(c.Settings.PruneConfirmed, disk.ID{Name: fmt.Sprintf("gone%d", id), UUID: "00000001"})
		}
	}
	for n := range 1 + r.IntN(4) {
		node := schema.Node{AllowScheduling: !r.one(10), EvictionRequested: r.one(15), Tags: r.tags(), Disks: map[string]schema.Disk{}}
		for i := range 1 + r.IntN(4) {
			node.Disks[fmt.Sprintf("disk%d", i+1)] = schema.Disk{
				Path: fmt.Sprintf("/disk%d", i+1), AllowScheduling: !r.one(8), EvictionRequested: r.one(4),
				Tags: r.tags(), StorageReserved: pick1(r, int64(0), 0, 20<<30),
			}
		}
		c.Nodes[fmt.Sprintf("node%d", n+1)] = node
	}
	for _, name := range diceNames[:r.IntN(6)] {
		c.Images[name] = r.image(name)
	}
	return c
}

func (r dice) tags() []string { return pick1(r, nil, []string{"a"}, []string{"a", "b"}) }

func (r dice) image(name string) schema.Image {
	m := schema.Image{
		ID: disk.ID{Name: name, UUID: "0000000a"}, Copies: 1 + r.IntN(3), AllDisks: r.one(8),
		Checksum: pick1(r, disk.Digest{}, digestOf(disk.SHA512, "a"), digestOf(disk.SHA512, "a"), digestOf(disk.SHA256, "a")),
	}
	m.Source = pick1(r, schema.Source{Download: &schema.Download{URL: "https://example.com/x"}},
		schema.Source{Download: &schema.Download{URL: "https://example.com/x"}}, schema.Source{Upload: &schema.Upload{}},
		schema.Source{ExportFromVolume: &schema.ExportFromVolume{VolumeName: "x"}}, schema.Source{Restore: &schema.Restore{BackupURL: "s3://x"}},
		r.clone(name), r.clone(name))
	if r.one(4) {
		m.Backup = &schema.Backup{Target: "s3://x"}
	}
	if r.one(3) {
		m.NodeSelector = r.tags()
	}
	if r.one(3) {
		m.DiskSelector = pick1(r, []string{"a"}, []string{"a", "b"}, []string{"c"})
	}
	if m.AllDisks {
		m.Copies = 1
	}
	for i := range 3 {
		if r.one(6) {
			m.Disks = append(m.Disks, schema.DiskRef{Node: "node1", Disk: fmt.Sprintf("disk%d", i+1)})
		}
	}
	return m
}

// clone is of an image that comes before: there are no circles.
func (r dice) clone(name string) schema.Source {
	of := diceNames[r.IntN(slices.Index(diceNames, name)+1)]
	if of == name {
		of = "gone0" // which is not declared
	}
	return schema.Source{Clone: &schema.Clone{BackingImage: of, Encryption: pick1(r, schema.EncryptionIgnore, schema.EncryptionIgnore, schema.Encrypt, schema.Decrypt)}}
}

func (r dice) disk(ref schema.DiskRef, o plan.Observed, asked, uploads map[plan.CopyRef]bool) {
	one := plan.Disk{ClockStepped: r.one(20), Space: disk.Space{Free: pick1(r, int64(0), 1<<30, 50<<30, 50<<30, 50<<30)}, Copies: map[disk.ID]plan.Copy{}}
	unreadable := r.one(15)
	if r.one(12) {
		one.Problem = "not there"
	}
	names := slices.Concat(diceNames[:r.IntN(6)], []string{"gone0", "gone1", "gone2"}[:r.IntN(4)])
	for _, name := range names {
		for _, uuid := range []string{"0000000a", "00000001"} {
			id := disk.ID{Name: name, UUID: uuid}
			key := plan.CopyRef{Disk: ref, ID: id}
			if r.one(2) {
				one.Copies[id] = r.copy(id, o.Now, unreadable)
			}
			if r.one(5) {
				o.Failures[key] = r.try(o.Now)
			}
			if r.one(10) {
				o.Running[key] = true
			}
			if r.one(20) {
				asked[key] = true
			}
			if uploads != nil && ref.Node == "node1" && r.one(2) {
				uploads[key] = true
			}
		}
	}
	o.Disks[ref] = one
}

func (r dice) copy(id disk.ID, now time.Time, unreadable bool) plan.Copy {
	c := plan.Copy{Copy: disk.Copy{ID: id, State: pick1(r, disk.Ready, disk.Ready, disk.Ready, disk.Ready, disk.Failed, disk.Unknown, disk.Pending), Owned: true, HasCfg: !r.one(8)}}
	if c.State == disk.Pending || r.one(10) {
		c.PartBytes, c.PartTotal = pick1(r, int64(0), 1<<20), pick1(r, int64(0), 1<<30)
		c.PartSourceID = pick1(r, "", disk.PartFromUpload, disk.PartFromPeers)
	}
	if c.State != disk.Pending {
		c.Size, c.RealSize = 1<<30, pick1(r, int64(1<<30), 1<<20)
	}
	if c.State == disk.Unknown || c.State == disk.Pending {
		c.Owned = !r.one(3)
	}
	if c.State == disk.Unknown || c.State == disk.Failed {
		c.Message = "who knows"
	}
	if c.State == disk.Ready || c.State == disk.Failed && r.one(2) {
		letter := pick1(r, "a", "a", "a", "a", "a", "b")
		c.SHA512 = digestOf(disk.SHA512, letter)
		if !r.one(10) {
			c.ManifestDigest = digestOf(disk.SHA256, letter)
		}
		if !r.one(4) {
			c.SHA256 = digestOf(disk.SHA256, letter)
		}
	}
	if r.one(6) || unreadable {
		c.UsedBy = "used by replica vol-1"
	}
	if c.Owned {
		c.Leaving = r.one(20)
		c.InUseRecorded = r.one(6)
		c.SurplusSince, c.LastUsed, c.ClockNode = r.when(now), r.when(now), pick1(r, "", "node1", "node1", "node9")
	}
	return c
}

func (r dice) when(now time.Time) time.Time {
	switch r.IntN(12) {
	case 0, 1, 2, 3:
		return time.Time{}
	case 4:
		return now.Add(time.Hour)
	case 5:
		return time.Unix(0, 0).UTC()
	}
	return now.Add(-pick1(r, 0, time.Second, time.Minute-1, time.Minute, time.Hour-1, time.Hour, 100*time.Hour, 200*time.Hour))
}

func (r dice) try(now time.Time) plan.Failure {
	t := plan.Failure{
		Op: pick1(r, "", plan.Download, plan.Export, plan.Restore, plan.Clone, plan.Upload, plan.Sync, plan.Verify, plan.Adopt, plan.Cleanup), Attempts: 1 + r.IntN(3), Message: "it failed",
		Since: now.Add(-pick1(r, 0, time.Minute, time.Hour)), RetryAt: now.Add(pick1(r, -time.Second, 0, time.Second, time.Minute)),
	}
	if r.one(4) {
		t.Suspects = []plan.CopyRef{{Disk: schema.DiskRef{Node: "node1", Disk: pick1(r, "disk1", "disk2", "disk3")}, ID: disk.ID{Name: "parrot", UUID: "0000000a"}}}
	}
	switch r.IntN(4) {
	case 0:
		t.Final = true
	case 1:
		t.Disk = true
	case 2:
		t.NeedsSpace = pick1(r, int64(1), 10<<30, 100<<30)
	}
	return t
}

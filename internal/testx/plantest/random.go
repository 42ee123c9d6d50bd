package plantest

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

var seeds = flag.Int("seeds", race.Fewer(6000, 30), "number of random situations in a planner test")

// Seeds returns the number of random situations for a test (flag -seeds). A test that computes
// several plans for each situation divides this number.
func Seeds() int { return *seeds }

// ImageNames are the names of the images in random configurations.
var ImageNames = []string{"parrot", "macaw", "cockatoo", "lory", "kea"}

// Situation returns a random desired and observed state of node1, realistic or not. It has up to 16
// disks with copies of declared images and of the undeclared images gone0, gone1 and gone2. Equal
// sources r return equal situations.
func Situation(r *rand.Rand) (plan.Desired, plan.Observed) { return generator{r}.situation() }

// RandomConfig returns a random configuration of up to 4 nodes with up to 4 disks each, and up to 5
// images of ImageNames.
func RandomConfig(r *rand.Rand) schema.Config { return generator{r}.config() }

// RandomTags returns no tags, "a", or "a" and "b".
func RandomTags(r *rand.Rand) []string {
	return pick(generator{r}, nil, []string{"a"}, []string{"a", "b"})
}

// generator generates random values of the planner's types.
type generator struct{ *rand.Rand }

// oneIn returns true with a probability of 1/n.
func (r generator) oneIn(n int) bool { return r.IntN(n) == 0 }

func pick[T any](r generator, of ...T) T { return of[r.IntN(len(of))] }

func (r generator) situation() (plan.Desired, plan.Observed) {
	d := plan.Desired{Node: "node1", Config: r.config(), Invalid: map[string]schema.InvalidImage{}, Allowed: schema.Everything, Removed: plan.AlwaysConfirmed, Verify: map[ident.CopyRef]bool{}}
	if r.oneIn(8) {
		d.Allowed = pick(r, schema.ObserveOnly, schema.NoDeletions, schema.NoDeletions)
	}
	for _, name := range []string{"macaw", "gone1"} {
		if d.Allowed == schema.NoDeletions && r.oneIn(2) {
			_, declared := d.Config.Images[name]
			d.Invalid[name] = schema.InvalidImage{Name: name, Stale: declared}
		}
	}
	now := Now.Add(time.Duration(r.IntN(1000)) * time.Second)
	o := plan.Observed{Now: now, Disks: map[ident.DiskRef]model.Disk{}, Failures: map[ident.CopyRef]model.Failure{}, Running: map[ident.CopyRef]bool{}}
	switch {
	case r.oneIn(8):
		d.Removed = nil
	case r.oneIn(4):
		removals := &configdir.RemovalConfirmer{}
		d.Removed = removals.Confirmed
		for range r.IntN(4) {
			at := now.Add(-time.Duration(r.IntN(9)) * time.Second)
			removals.Observe(at, at, map[string]bool{"parrot": true, "gone1": r.oneIn(2)})
		}
	}
	o.CannotPrepare, o.BackedUp = map[ident.ID]string{}, map[ident.ID]bool{}
	for _, name := range ImageNames {
		if r.oneIn(3) {
			o.CannotPrepare[ident.ID{Name: name, UUID: "0000000a"}] = "no replica on this node"
		}
		if r.oneIn(2) {
			o.BackedUp[ident.ID{Name: name, UUID: "0000000a"}] = true
		}
	}
	if !r.oneIn(6) {
		d.Uploads = map[ident.CopyRef]bool{}
	}
	d.Digest = pick(r, "d1", "d1", "d1", "")
	o.Peers = map[string]model.Peer{}
	for _, node := range slices.Sorted(maps.Keys(d.Config.Nodes)) {
		if node != d.Node && !r.oneIn(6) {
			o.Peers[node] = r.peer(now)
		}
		for _, name := range slices.Sorted(maps.Keys(d.Config.Nodes[node].Disks)) {
			if !r.oneIn(30) {
				r.disk(ident.DiskRef{Node: node, Disk: name}, o, d.Verify, d.Uploads)
			}
		}
	}
	r.suspend(&d.Config, now)
	o.Jobs = r.jobs(d, o)
	return d, o
}

// jobs returns jobs for most of the running copies of node1.
func (r generator) jobs(d plan.Desired, o plan.Observed) map[ident.CopyRef]plan.Job {
	jobs := map[ident.CopyRef]plan.Job{}
	for _, key := range slices.SortedFunc(maps.Keys(o.Running), func(a, b ident.CopyRef) int { return cmp.Compare(a.String(), b.String()) }) {
		image, declared := d.Config.Images[key.ID.Name]
		op := model.Cleanup
		if declared {
			op = pick(r, model.Sync, model.Op(strings.TrimSuffix(string(image.Source.Kind()), "FromVolume")))
		}
		switch c := o.Disks[key.Disk].Copies[key.ID]; {
		case key.Disk.Node != d.Node || r.oneIn(4):
			continue
		case declared && (c.State == model.Ready || c.State == model.Unknown):
			op = pick(r, model.Verify, model.Verify, model.Backup, model.Cleanup)
		case declared && c.State == model.Failed:
			op = pick(r, op, model.Repair)
		}
		a := plan.NewAction(op, key, model.Reason{Code: plan.CodeNoCopy, Text: "began before"}, plan.UnknownBytes)
		if op.ReadsCopies() {
			a.SourceDigest = Digest(ident.SHA512, pick(r, "a", "a", "b"))
		}
		jobs[key] = plan.Job{Action: a, Image: image}
	}
	return jobs
}

// suspend suspends some or all images: without an end, until a later time, or until a time that has
// passed.
func (r generator) suspend(config *schema.Config, now time.Time) {
	suspension := func() *schema.Suspension {
		return &schema.Suspension{Reason: "a reason", By: pick(r, "", "ann"), Until: pick(r, time.Time{}, now.Add(time.Hour), now, now.Add(time.Nanosecond))}
	}
	if r.oneIn(10) {
		config.Settings.Suspend = suspension()
	}
	for _, name := range slices.Sorted(maps.Keys(config.Images)) {
		if image := config.Images[name]; r.oneIn(6) {
			image.Suspend = suspension()
			config.Images[name] = image
		}
	}
}

func (r generator) peer(now time.Time) model.Peer {
	p := model.Peer{Queried: !r.oneIn(10), ConfigDigest: pick(r, "d1", "d1", "d1", "d1", "d2", "")}
	if !p.Queried || r.oneIn(4) {
		p.Problem, p.UnreachableSince = "no answer", now.Add(-pick(r, 0, time.Second, 4*time.Minute, time.Hour))
		if p.Queried && !r.oneIn(3) {
			p.LastResponse = time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
		}
	}
	if p.ConfigDigest != "d1" {
		p.OtherConfigSince = now.Add(-pick(r, 0, 4*time.Minute, time.Hour))
	}
	return p
}

func (r generator) config() schema.Config {
	c := schema.Config{Nodes: map[string]schema.Node{}, Images: map[string]schema.Image{}, Settings: schema.Settings{
		CleanupWaitInterval:  pick(r, 0, time.Minute, time.Hour),
		RecoveryWaitInterval: pick(r, 0, 5*time.Minute), MinNumberOfCopies: 1,
		ConcurrentReplenishPerNodeLimit: pick(r, 0, 5, 5, 5),
		ScrubInterval:                   pick(r, 0, 0, 24*time.Hour),
		PruneLimit:                      pick(r, schema.PrunePercent(50), schema.PruneCount(0), schema.PruneCount(2), schema.PrunePercent(100)),
	}}
	for id := range 3 {
		if r.oneIn(3) {
			c.Settings.PruneConfirmed = append(c.Settings.PruneConfirmed, ident.ID{Name: fmt.Sprintf("gone%d", id), UUID: "00000001"})
		}
	}
	for n := range 1 + r.IntN(4) {
		node := schema.Node{AllowScheduling: !r.oneIn(10), EvictionRequested: r.oneIn(12), Tags: RandomTags(r.Rand), Disks: map[string]schema.Disk{}}
		for i := range 1 + r.IntN(4) {
			node.Disks[fmt.Sprintf("disk%d", i+1)] = schema.Disk{
				Path: fmt.Sprintf("/disk%d", i+1), AllowScheduling: !r.oneIn(8), EvictionRequested: r.oneIn(3),
				Tags: RandomTags(r.Rand), StorageReserved: pick(r, int64(0), 0, 20<<30),
			}
		}
		c.Nodes[fmt.Sprintf("node%d", n+1)] = node
	}
	for _, name := range ImageNames[:r.IntN(6)] {
		c.Images[name] = r.image(name)
	}
	return c
}

func (r generator) image(name string) schema.Image {
	m := schema.Image{
		ID: ident.ID{Name: name, UUID: "0000000a"}, Copies: 1 + r.IntN(3), AllDisks: r.oneIn(8),
		Checksum: pick(r, ident.Digest{}, Digest(ident.SHA512, "a"), Digest(ident.SHA512, "a"), Digest(ident.SHA256, "a")),
	}
	m.Source = pick(r, schema.Source{Download: &schema.Download{URL: "https://example.com/x"}},
		schema.Source{Download: &schema.Download{URL: "https://example.com/x"}}, schema.Source{Upload: &schema.Upload{}},
		schema.Source{ExportFromVolume: &schema.ExportFromVolume{VolumeName: "x"}}, schema.Source{Restore: &schema.Restore{BackupURL: "s3://x"}},
		r.clone(name), r.clone(name))
	m.KeepGenerations, m.FollowReplicas = pick(r, 0, 0, 1, 2), !r.oneIn(4)
	if r.oneIn(4) {
		m.Backup = &schema.Backup{Target: "s3://x"}
	}
	if r.oneIn(3) {
		m.NodeSelector = RandomTags(r.Rand)
	}
	if r.oneIn(3) {
		m.DiskSelector = pick(r, []string{"a"}, []string{"a", "b"}, []string{"c"})
	}
	if m.AllDisks {
		m.Copies = 1
	}
	for i := range 3 {
		if r.oneIn(6) {
			m.Disks = append(m.Disks, ident.DiskRef{Node: "node1", Disk: fmt.Sprintf("disk%d", i+1)})
		}
	}
	return m
}

// clone returns a clone of an image that precedes name in ImageNames, so that there are no cycles, or
// of the undeclared image gone0.
func (r generator) clone(name string) schema.Source {
	of := ImageNames[r.IntN(slices.Index(ImageNames, name)+1)]
	if of == name {
		of = "gone0"
	}
	return schema.Source{Clone: &schema.Clone{BackingImage: of, Encryption: pick(r, schema.EncryptionIgnore, schema.EncryptionIgnore, schema.Encrypt, schema.Decrypt)}}
}

// disk adds a disk to o. It may add requests for verifications and uploads on this disk to verify and
// uploads.
func (r generator) disk(ref ident.DiskRef, o plan.Observed, verify, uploads map[ident.CopyRef]bool) {
	seen := model.Disk{ClockStepped: r.oneIn(20), Space: model.Space{Free: pick(r, int64(0), 1<<30, 50<<30, 50<<30, 50<<30)}, Copies: map[ident.ID]model.Copy{}}
	allUsed := r.oneIn(15) // as on a disk where the metadata of a replica cannot be read
	if r.oneIn(60) {
		seen.UsageUnknown = "replica vol-2: read volume.meta: unexpected end of JSON input"
	}
	if r.oneIn(12) {
		seen.Problem, seen.ProblemSince = "not there", o.Now.Add(-pick(r, 0, 4*time.Minute, time.Hour))
	}
	names := slices.Concat(ImageNames[:r.IntN(6)], []string{"gone0", "gone1", "gone2"}[:r.IntN(4)])
	for _, name := range names {
		uuids := []string{"0000000a", "00000001"}
		if r.oneIn(3) {
			uuids = append(uuids, "00000002", "00000003")
		}
		for _, uuid := range uuids {
			id := ident.ID{Name: name, UUID: uuid}
			key := ident.CopyRef{Disk: ref, ID: id}
			if r.oneIn(2) {
				seen.Copies[id] = r.copy(id, o.Now, allUsed)
			}
			if r.oneIn(6) {
				if seen.Needs == nil {
					seen.Needs = map[ident.ID]model.Need{}
				}
				seen.Needs[id] = model.Need{By: "replica vol-1", Since: pick(r, time.Time{}, o.Now.Add(-time.Second), o.Now.Add(-time.Hour), o.Now.Add(time.Hour)), OtherWriter: pick(r, time.Time{}, time.Time{}, o.Now)}
			}
			if r.oneIn(5) {
				o.Failures[key] = r.failure(o.Now)
			}
			if r.oneIn(10) {
				o.Running[key] = true
			}
			if r.oneIn(20) {
				verify[key] = true
			}
			if uploads != nil && ref.Node == "node1" && r.oneIn(2) {
				uploads[key] = true
			}
		}
	}
	if seen.Problem != "" { // nothing is known of its copies
		seen.Copies, seen.UsageUnknown = nil, ""
		if ref.Node == "node1" || r.oneIn(2) { // otherwise it was read before
			seen.Needs = nil
		}
	}
	o.Disks[ref] = seen
}

func (r generator) copy(id ident.ID, now time.Time, used bool) model.Copy {
	c := model.Copy{ID: id, State: pick(r, model.Ready, model.Ready, model.Ready, model.Ready, model.Failed, model.Unknown, model.Pending), Owned: true, HasCfg: !r.oneIn(8)}
	if c.State == model.Pending || r.oneIn(10) {
		c.PartBytes, c.PartTotal = pick(r, int64(0), 1<<20), pick(r, int64(0), 1<<30)
		c.PartKind = pick(r, "", model.PartFromUpload, model.PartFromPeers)
	}
	if c.State != model.Pending {
		c.Size, c.RealSize = 1<<30, pick(r, int64(1<<30), 1<<20)
	}
	if c.State == model.Unknown || c.State == model.Pending {
		c.Owned = !r.oneIn(3)
	}
	if c.State == model.Unknown || c.State == model.Failed {
		c.Message = "cannot be verified"
	}
	if c.State == model.Ready || c.State == model.Failed && r.oneIn(2) {
		content := pick(r, "a", "a", "a", "a", "a", "b")
		c.SHA512 = Digest(ident.SHA512, content)
		if !r.oneIn(10) {
			c.ManifestDigest = Digest(ident.SHA256, content)
		}
		if !r.oneIn(4) {
			c.SHA256 = Digest(ident.SHA256, content)
		}
	}
	if r.oneIn(6) || used {
		c.UsedBy = "used by replica vol-1"
	}
	if c.Owned {
		c.Leaving = r.oneIn(20)
		c.InUseRecorded = r.oneIn(6)
		c.SurplusSince, c.LastUsed, c.ReplacedAt, c.ClockNode = r.when(now), r.when(now), r.when(now), pick(r, "", "node1", "node1", "node9")
	}
	if !c.InUseRecorded { // a draw of its own would change all situations
		c.ReadBackAt = now
	}
	return c
}

// when returns no time, a future time, a time before this program existed, or a time at or near the
// end of an interval.
func (r generator) when(now time.Time) time.Time {
	switch r.IntN(12) {
	case 0, 1, 2, 3:
		return time.Time{}
	case 4:
		return now.Add(time.Hour)
	case 5:
		return time.Unix(0, 0).UTC()
	}
	return now.Add(-pick(r, 0, time.Second, time.Minute-1, time.Minute, time.Hour-1, time.Hour, 100*time.Hour, 200*time.Hour))
}

func (r generator) failure(now time.Time) model.Failure {
	f := model.Failure{
		Op: pick(r, "", model.Download, model.Export, model.Restore, model.Clone, model.Upload, model.Sync, model.Verify, model.Adopt, model.Cleanup), Attempts: 1 + r.IntN(3), Message: "it failed",
		Since: now.Add(-pick(r, 0, time.Minute, time.Hour)), RetryAt: now.Add(pick(r, -time.Second, 0, time.Second, time.Minute)),
	}
	if r.oneIn(4) {
		f.Suspects = []ident.CopyRef{{Disk: ident.DiskRef{Node: "node1", Disk: pick(r, "disk1", "disk2", "disk3")}, ID: ident.ID{Name: "parrot", UUID: "0000000a"}}}
	}
	switch r.IntN(4) {
	case 0:
		f.Final = true
	case 1:
		f.Fault = model.FaultDisk
	case 2:
		f.NeedsSpace = pick(r, int64(1), 10<<30, 100<<30)
	}
	return f
}

// Describe returns a situation and its plan as JSON, for the message of a failed test.
func Describe(d plan.Desired, o plan.Observed, planned plan.Plan) string {
	copies := map[string]any{}
	for ref, seen := range o.Disks {
		for id, c := range seen.Copies {
			copies[ident.CopyRef{Disk: ref, ID: id}.String()] = c
		}
		copies[ref.String()] = fmt.Sprint(seen.Problem, seen.Space, seen.Needs)
	}
	failures := map[string]model.Failure{}
	for key, f := range o.Failures {
		failures[key.String()] = f
	}
	b, err := json.MarshalIndent(map[string]any{
		"config": d.Config, "invalid": d.Invalid, "allowed": d.Allowed.String(), "now": o.Now,
		"running": fmt.Sprint(o.Running), "jobs": fmt.Sprint(o.Jobs), "ends": fmt.Sprint(planned.Ends), "copies": copies, "failures": failures, "plan": planned,
	}, "", " ")
	if err != nil {
		panic(err)
	}
	return string(b)
}

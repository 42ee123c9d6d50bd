package reconcile

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

var seeds = flag.Int("seeds", 6000, "how many random situations to plan for")

// TestPlanNever plans for random configurations and states, sensible or not, and
// holds every plan against what a manager never does.
func TestPlanNever(t *testing.T) {
	t.Parallel()
	seen := map[Kind]int{}
	for seed := range uint64(*seeds) {
		d, o := dice{rand.New(rand.NewPCG(seed, 1))}.situation()
		plan := d.Plan(o)
		checkPlan(t, d, o, plan)
		if seed%10 == 0 {
			checkPure(t, d, o, plan)
		}
		checkMarks(t, d, o)
		for _, a := range plan.Actions {
			seen[a.Kind]++
		}
		if t.Failed() {
			t.Fatalf("seed %d\n%s", seed, situationText(d, o, plan))
		}
	}
	for _, kind := range []Kind{Download, Sync, Adopt, Verify, Cleanup, Evict, Wait, Blocked} {
		if seen[kind] < *seeds/150 {
			t.Errorf("%d times %s in all plans: the situations do not show enough", seen[kind], kind)
		}
	}
}

// checkPure plans again from the same values in maps of another order and with
// another history, and sees that planning leaves its arguments alone.
func checkPure(t *testing.T, d Desired, o Observed, plan Plan) {
	t.Helper()
	before := situationText(d, o, plan)
	again := d
	again.Config.Images = rebuilt(d.Config.Images)
	again.Config.Nodes = rebuilt(d.Config.Nodes)
	again.Held = rebuilt(d.Held)
	seen := o
	seen.Disks = rebuilt(o.Disks)
	for ref, one := range seen.Disks {
		one.Copies = rebuilt(one.Copies)
		seen.Disks[ref] = one
	}
	seen.Tries = rebuilt(o.Tries)
	if other := again.Plan(seen); !reflect.DeepEqual(plan, other) {
		t.Errorf("two plans from equal values:\n%+v\n%+v", plan, other)
	}
	if a, b := d.Marks(o), again.Marks(seen); !reflect.DeepEqual(a, b) {
		t.Errorf("two lists of marks from equal values:\n%+v\n%+v", a, b)
	}
	if after := situationText(d, o, plan); after != before {
		t.Errorf("planning changed its arguments:\n%s\n%s", before, after)
	}
}

// rebuilt is the map filled in the opposite order of its keys.
func rebuilt[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return nil
	}
	keys := slices.SortedFunc(maps.Keys(m), func(a, b K) int { return -cmpText(a, b) })
	out := make(map[K]V)
	for _, k := range keys {
		out[k] = m[k]
	}
	return out
}

func cmpText(a, b any) int {
	x, y := fmt.Sprint(a), fmt.Sprint(b)
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// checkMarks holds the marks against what they are for: nothing looks older after
// them than it is, and once they are written there are none left to write.
func checkMarks(t *testing.T, d Desired, o Observed) {
	t.Helper()
	marks := d.Marks(o)
	for _, m := range marks {
		c := o.Disks[m.Key.Disk].Copies[m.Key.ID]
		switch {
		case !c.Owned || o.Disks[m.Key.Disk].Problem != "" || d.May == schema.ObserveOnly:
			t.Errorf("mark on what is not to be touched: %+v", m)
		case m.InUse != (c.Using != ""):
			t.Errorf("%+v, and %q uses it", m, c.Using)
		case !m.LastUsed.Equal(c.LastUsed) && !m.LastUsed.Equal(o.Now):
			t.Errorf("last use of %s was %s and is marked %s", m.Key, c.LastUsed, m.LastUsed)
		case !m.UnwantedSince.IsZero() && !m.UnwantedSince.Equal(c.UnwantedSince) && !m.UnwantedSince.Equal(o.Now):
			t.Errorf("%s is unwanted since %s and is marked %s", m.Key, c.UnwantedSince, m.UnwantedSince)
		case d.May != schema.Everything && !m.UnwantedSince.IsZero() && !m.UnwantedSince.Equal(c.UnwantedSince):
			t.Errorf("the clock of %s begins while the configuration is broken", m.Key)
		}
	}
	noted := withMarks(o, marks)
	noted.ClockStepped = false
	if left := d.Marks(noted); len(left) > 0 {
		t.Errorf("marks are left when all are written: %+v of %+v", left, marks)
	}
	checkPlan(t, d, noted, d.Plan(noted))
}

// withMarks is what a look sees when the marks are written.
func withMarks(o Observed, marks []Mark) Observed {
	o.Disks = maps.Clone(o.Disks)
	for _, m := range marks {
		one := o.Disks[m.Key.Disk]
		one.Copies = maps.Clone(one.Copies)
		c := one.Copies[m.Key.ID]
		c.InUse, c.LastUsed, c.UnwantedSince = m.InUse, m.LastUsed, m.UnwantedSince
		one.Copies[m.Key.ID] = c
		o.Disks[m.Key.Disk] = one
	}
	return o
}

func situationText(d Desired, o Observed, plan Plan) string {
	copies := map[string]any{}
	for ref, one := range o.Disks {
		for id, c := range one.Copies {
			copies[Key{ref, id}.String()] = c
		}
		copies[ref.String()] = fmt.Sprint(one.Problem, one.Space)
	}
	tries := map[string]Try{}
	for key, try := range o.Tries {
		tries[key.String()] = try
	}
	b, err := json.MarshalIndent(map[string]any{
		"config": d.Config, "held": d.Held, "may": d.May.String(), "removals": fmt.Sprintf("%+v", d.Removals), "now": o.Now,
		"stepped": o.ClockStepped, "running": fmt.Sprint(o.Running), "copies": copies, "tries": tries, "plan": plan,
	}, "", " ")
	if err != nil {
		panic(err)
	}
	return string(b)
}

// dice make situations.
type dice struct{ *rand.Rand }

func (r dice) one(in int) bool { return r.IntN(in) == 0 }

func pick1[T any](r dice, of ...T) T { return of[r.IntN(len(of))] }

func (r dice) situation() (Desired, Observed) {
	d := Desired{Node: "node1", Config: r.config(), Held: map[string]schema.Held{}, May: schema.Everything, Verify: map[Key]bool{}}
	if r.one(8) {
		d.May = pick1(r, schema.ObserveOnly, schema.NoDeletions, schema.NoDeletions)
	}
	for _, name := range []string{"macaw", "gone1"} {
		if d.May == schema.NoDeletions && r.one(2) {
			_, declared := d.Config.Images[name]
			d.Held[name] = schema.Held{Name: name, Stale: declared}
		}
	}
	now := goldenNow.Add(time.Duration(r.IntN(1000)) * time.Second)
	o := Observed{Now: now, ClockStepped: r.one(20), Disks: map[schema.DiskRef]Disk{}, Tries: map[Key]Try{}, Running: map[Key]bool{}}
	if r.one(4) {
		d.Removals = &Removals{}
		for range r.IntN(4) {
			d.Removals.Look(now.Add(-time.Duration(r.IntN(9))*time.Second), map[string]bool{"parrot": true, "gone1": r.one(2)})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Config.Nodes["node1"].Disks)) {
		if !r.one(30) {
			r.disk(schema.DiskRef{Node: "node1", Disk: name}, o, d.Verify)
		}
	}
	return d, o
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
	for n := range 1 + r.IntN(5)/4 {
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
		schema.Source{Download: &schema.Download{URL: "https://example.com/x"}}, schema.Source{Upload: &schema.Upload{}})
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

func (r dice) disk(ref schema.DiskRef, o Observed, asked map[Key]bool) {
	one := Disk{Space: disk.Space{Free: pick1(r, int64(0), 1<<30, 50<<30, 50<<30, 50<<30)}, Copies: map[disk.ID]Copy{}}
	unreadable := r.one(15)
	if r.one(12) {
		one.Problem = "not there"
	}
	names := slices.Concat(diceNames[:r.IntN(6)], []string{"gone0", "gone1", "gone2"}[:r.IntN(4)])
	for _, name := range names {
		for _, uuid := range []string{"0000000a", "00000001"} {
			id := disk.ID{Name: name, UUID: uuid}
			key := Key{ref, id}
			if r.one(2) {
				one.Copies[id] = r.copy(id, o.Now, unreadable)
			}
			if r.one(5) {
				o.Tries[key] = r.try(o.Now)
			}
			if r.one(10) {
				o.Running[key] = true
			}
			if r.one(20) {
				asked[key] = true
			}
		}
	}
	o.Disks[ref] = one
}

func (r dice) copy(id disk.ID, now time.Time, unreadable bool) Copy {
	c := Copy{Copy: disk.Copy{ID: id, State: pick1(r, disk.Ready, disk.Ready, disk.Ready, disk.Ready, disk.Failed, disk.Unknown, disk.Pending), Owned: true, HasCfg: !r.one(8)}}
	if c.State == disk.Pending || r.one(10) {
		c.PartBytes, c.PartTotal = pick1(r, int64(0), 1<<20), pick1(r, int64(0), 1<<30)
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
	if c.State == disk.Ready {
		letter := pick1(r, "a", "a", "a", "a", "a", "b")
		c.SHA512 = digestOf(disk.SHA512, letter)
		if !r.one(4) {
			c.SHA256 = digestOf(disk.SHA256, letter)
		}
	}
	if r.one(6) || unreadable {
		c.Using = "used by replica vol-1"
	}
	if c.Owned {
		c.InUse = r.one(6)
		c.UnwantedSince, c.LastUsed = r.when(now), r.when(now)
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

func (r dice) try(now time.Time) Try {
	t := Try{
		Kind: pick1(r, "", Download, Sync, Verify, Adopt, Cleanup), Attempts: 1 + r.IntN(3), Message: "it failed",
		Since: now.Add(-pick1(r, 0, time.Minute, time.Hour)), Until: now.Add(pick1(r, -time.Second, 0, time.Second, time.Minute)),
	}
	if r.one(4) {
		t.Suspects = []Key{{schema.DiskRef{Node: "node1", Disk: pick1(r, "disk1", "disk2", "disk3")}, disk.ID{Name: "parrot", UUID: "0000000a"}}}
	}
	switch r.IntN(4) {
	case 0:
		t.Final = true
	case 1:
		t.Disk = true
	case 2:
		t.Space = pick1(r, int64(1), 10<<30, 100<<30)
	}
	return t
}

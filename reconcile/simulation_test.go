package reconcile

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// TestSimulation drives a node through random events, and holds every step against
// what a manager never does. When the events stop, it has to come to rest with
// what is declared, and nothing else.
func TestSimulation(t *testing.T) {
	t.Parallel()
	const steps = 250
	done := map[plan.Op]int{}
	for seed := range uint64(plantest.Seeds() / 20) {
		s := newSimulation(t, seed)
		for step := range steps {
			s.step = step
			s.event()
			s.pass(time.Duration(s.IntN(20*60)) * time.Second)
			s.round()
			if t.Failed() {
				t.Fatalf("seed %d, step %d:\n%s", seed, step, plantest.Describe(s.d, s.o, s.plan))
			}
		}
		s.heal()
		s.comeToRest()
		if t.Failed() {
			t.Fatalf("seed %d at rest:\n%s", seed, plantest.Describe(s.d, s.o, s.plan))
		}
		for kind, n := range s.done {
			done[kind] += n
		}
	}
	for _, kind := range []plan.Op{plan.Download, plan.Sync, plan.Adopt, plan.Verify, plan.Cleanup, plan.Evict} {
		if done[kind] < plantest.Seeds()/40 {
			t.Errorf("%s was done %d times: the events do not show enough", kind, done[kind])
		}
	}
}

// simulation is a world with a manager in it.
type simulation struct {
	*world
	t      *testing.T
	step   int
	config schema.Config
	broken bool

	removals *configdir.RemovalConfirmer
	tries    map[plan.CopyRef]failureRecord
	jobs     map[plan.CopyRef]*simJob

	d    plan.Desired // of the last round
	o    plan.Observed
	plan plan.Plan
	done map[plan.Op]int
}

type simJob struct {
	action plan.Action
	image  schema.Image
	left   int // rounds
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	r := dice{rand.New(rand.NewPCG(seed, 2))}
	s := &simulation{t: t, done: map[plan.Op]int{}, world: &world{dice: r, disks: map[schema.DiskRef]*platter{}, serves: map[string]string{}}}
	s.config = schema.Config{Nodes: map[string]schema.Node{}, Images: map[string]schema.Image{}, Settings: schema.Settings{
		CleanupWaitInterval: time.Hour, RecoveryWaitInterval: 5 * time.Minute, ConcurrentReplenishPerNodeLimit: 5, PruneLimit: schema.PrunePercent(50),
	}}
	node := schema.Node{AllowScheduling: true, Disks: map[string]schema.Disk{}}
	for i := range 1 + r.IntN(4) {
		name := fmt.Sprintf("disk%d", i+1)
		node.Disks[name] = schema.Disk{Path: "/" + name, AllowScheduling: true, Tags: plantest.RandomTags(r.Rand)}
		s.disks[schema.DiskRef{Node: "node1", Disk: name}] = &platter{there: true, folders: map[disk.ID]*folder{}}
	}
	s.config.Nodes["node1"] = node
	s.restart()
	return s
}

func (s *simulation) restart() {
	s.removals, s.tries, s.jobs = &configdir.RemovalConfirmer{}, map[plan.CopyRef]failureRecord{}, map[plan.CopyRef]*simJob{}
}

func (s *simulation) pass(d time.Duration) { s.mono += d }

// round is what Loop and Reconciler do between two waits.
func (s *simulation) round() {
	d := plan.Desired{Node: "node1", Config: s.config, Allowed: schema.Everything, Invalid: map[string]schema.InvalidImage{}, Removed: s.removals.Confirmed}
	if s.broken {
		d.Allowed, *s.removals = schema.NoDeletions, configdir.RemovalConfirmer{}
	} else {
		at := worldStart.Add(s.mono)
		s.removals.Observe(at, at, declaredNames(s.config))
	}
	s.d, s.o = d, s.observe()
	if s.write(d.UsageUpdates(s.o)) {
		s.stepped = false
	}
	s.o = s.observe()
	s.remember()
	s.plan = d.Plan(s.o)
	plantest.CheckPlan(s.t, d, s.o, s.plan)
	s.stopObsolete()
	for _, a := range s.plan.Actions {
		if !a.Idle() && s.jobs[a.CopyRef()] == nil && len(s.jobs) < 5 {
			s.watch(a)
			s.jobs[a.CopyRef()] = &simJob{action: a, image: s.config.Images[a.Image], left: s.lasts(a.Op)}
		}
	}
	s.work()
}

func (s *simulation) lasts(kind plan.Op) int {
	if kind.Deletes() {
		return s.IntN(2)
	}
	return s.IntN(3)
}

func declaredNames(c schema.Config) map[string]bool {
	names := map[string]bool{}
	for name := range c.Images {
		names[name] = true
	}
	return names
}

func (s *simulation) observe() plan.Observed {
	o := plan.Observed{Now: s.now(), Disks: s.look(s.config), Failures: map[plan.CopyRef]plan.Failure{}, Running: map[plan.CopyRef]bool{}}
	for key, t := range s.tries {
		if !plan.SameImage(t.image, s.config.Images[key.ID.Name]) {
			delete(s.tries, key)
			continue
		}
		o.Failures[key] = t.Failure
	}
	for key := range s.jobs {
		o.Running[key] = true
	}
	return o
}

// write writes marks, as far as the disks let it, and reports whether it did all.
func (s *simulation) write(marks []plan.Usage) (all bool) {
	all = true
	for _, m := range marks {
		p := s.disks[m.Copy.Disk]
		if p.readOnly || s.jobs[m.Copy] != nil {
			all = false
			continue
		}
		p.folders[m.Copy.ID].mark = m
	}
	return all
}

// remember keeps what the test needs to know of each copy, by a clock that nobody
// sets.
func (s *simulation) remember() {
	for ref, seen := range s.o.Disks {
		for id, c := range seen.Copies {
			f := s.disks[ref].folders[id]
			if s.disks[ref].readOnly || s.jobs[plan.CopyRef{Disk: ref, ID: id}] != nil {
				continue // nothing can be noted
			}
			if c.UsedBy != "" {
				f.used = s.mono
			}
			image := s.config.Images[id.Name]
			places := plantest.MatchingDisks(s.config, image)
			everywhere := image.AllDisks || image.Copies >= len(places)
			if image.ID == id && c.State == disk.Ready && everywhere && slices.Contains(places, ref) {
				f.wanted = s.mono
			}
		}
	}
}

func (s *simulation) stopObsolete() {
	wanted := map[plan.CopyRef]plan.Op{}
	for _, a := range s.plan.Actions {
		if !a.Idle() {
			wanted[a.CopyRef()] = a.Op
		}
	}
	for key, job := range s.jobs {
		if job.action.Op.Deletes() {
			continue // a removal is not stopped half way
		}
		if wanted[key] != job.action.Op || !plan.SameImage(job.image, s.config.Images[key.ID.Name]) {
			delete(s.jobs, key)
		}
	}
}

// work lets the jobs go on, and ends some.
func (s *simulation) work() {
	for _, key := range slices.SortedFunc(maps.Keys(s.jobs), func(a, b plan.CopyRef) int { return cmp.Compare(a.String(), b.String()) }) {
		running := s.jobs[key]
		if running.left > 0 {
			running.left--
			s.progress(running)
			continue
		}
		delete(s.jobs, key)
		declared, _ := s.d.Disk(key.Disk)
		err := s.do(running.action, running.image, declared.StorageReserved)
		if err != nil {
			s.tries[key] = failureRecord{Failure: job.NextFailure(s.tries[key].Failure, running.action, err, s.now(), rand.Float64()), image: running.image}
			continue
		}
		failures(s.tries).clearCopy(key)
		s.done[running.action.Op]++
	}
}

func (s *simulation) progress(job *simJob) {
	p := s.disks[job.action.CopyRef().Disk]
	if job.action.Op != plan.Download && job.action.Op != plan.Sync || !p.there {
		return
	}
	f := p.folder(job.action.CopyRef().ID)
	f.owned = true
	if f.part < gib/2 && p.free() > gib/2 {
		f.part += gib / 4
	}
}

// watch holds a deletion, as it begins, against the world itself and the clock that nobody sets.
func (s *simulation) watch(a plan.Action) {
	if !a.Op.Deletes() {
		return
	}
	key := a.CopyRef()
	p := s.disks[key.Disk]
	f := p.folders[key.ID]
	wait := s.config.Settings.CleanupWaitInterval
	image, declared := s.config.Images[key.ID.Name]
	part := declared && key.ID != image.ID && f.letter == "" // of an older generation: nobody goes on with it
	if a.Op == plan.Cleanup && !part {
		s.least(key, "it was made", s.mono-f.made, wait)
		s.least(key, "it was used", s.mono-f.used, wait)
		s.least(key, "it was wanted", s.mono-f.wanted, wait)
	}
	if s.broken {
		s.t.Errorf("%s goes while the configuration is broken", key)
	}
	if !declared || part {
		return
	}
	others := 0
	for ref, other := range s.disks {
		g := other.folders[image.ID]
		if job := s.jobs[plan.CopyRef{Disk: ref, ID: image.ID}]; job != nil && job.action.Op.Deletes() {
			continue // on its way out
		}
		if other.there && g != nil && g.letter != "" && g.owned && !g.touched && g.failed == "" && (plan.CopyRef{Disk: ref, ID: image.ID}) != key {
			others++
		}
	}
	if others == 0 {
		s.t.Errorf("%s goes and %s is ready nowhere else", key, image.ID)
	}
	if f.letter != "" && key.ID == image.ID && !f.touched && f.failed == "" && !image.AllDisks && others < image.Copies {
		s.t.Errorf("%s goes and %d copies are left of %d", key, others, image.Copies)
	}
}

func (s *simulation) least(key plan.CopyRef, since string, passed, wait time.Duration) {
	if passed < wait {
		s.t.Errorf("%s goes %s after %s; the interval is %s", key, passed, since, wait)
	}
}

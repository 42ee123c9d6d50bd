package reconcile

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// kick asks for a round. It takes its time, and others do things meanwhile.
func (m *member) kick() {
	switch {
	case !m.up:
	case m.busy:
		m.due = true
	default:
		m.busy = true
		m.soon(m.roundLooks)
	}
}

func (m *member) roundLooks() {
	m.take()
	if m.conf == nil {
		m.busy = false
		return
	}
	for _, e := range m.ended {
		if w := e.w; e.asked {
			w.answered = true
		} else {
			m.finish(w, e.err)
		}
	}
	m.ended = nil
	asking := m.takeAsked()
	d := m.desired()
	o, at := m.look(d), m.c.now
	for _, w := range m.jobs {
		if w.answered {
			w.removal.witness(m, m.digestNow())
		}
	}
	m.soon(func() { m.roundPlans(d, o, at, asking) })
}

func (m *member) roundPlans(d plan.Desired, o plan.Observed, at time.Duration, asking []*uploader) {
	m.note(d, o, at)
	if m.write(d, o) {
		o = m.look(d)
	}
	m.decideAll(d, o)
	plan := d.Plan(o)
	m.soon(func() { m.roundStarts(d, o, plan, asking) })
}

func (m *member) roundStarts(d plan.Desired, o plan.Observed, planned plan.Plan, asking []*uploader) {
	m.d, m.o, m.plan, m.rounds, m.busy = d, o, planned, m.rounds+1, false
	m.stopObsolete(d, planned)
	limit := max(1, d.Config.Settings.ConcurrentReplenishPerNodeLimit)
	free := map[bool]int{true: limit, false: limit}
	for _, w := range m.jobs {
		if w.action.Op != plan.Upload { // which waits for people
			free[w.action.Op.Deletes()]--
		}
	}
	var begun []*work
	for _, a := range planned.Actions {
		drops := a.Op.Deletes()
		if !a.Idle() && m.jobs[a.CopyRef()] == nil && (free[drops] > 0 || a.Op == plan.Upload) {
			if a.Op != plan.Upload {
				free[drops]--
			}
			begun = append(begun, m.book(d, o, a))
		}
	}
	m.alone()
	m.publish()
	m.answerAsked(asking)
	for _, w := range begun {
		m.run(w)
	}
	m.sleep(o)
	if m.due {
		m.due = false
		m.later(m.c.between(0, 2*time.Second), m.kick)
	}
}

// sleep wakes the node when a wait of its plan is over.
func (m *member) sleep(o plan.Observed) {
	m.wakes++
	wakes, next := m.wakes, time.Duration(0)
	for _, a := range m.plan.Actions {
		if wait := a.Until.Sub(o.Now); !a.Until.IsZero() && wait > 0 && (next == 0 || wait < next) {
			next = wait
		}
	}
	if next > 0 && next < time.Hour {
		m.later(next, func() {
			if m.wakes == wakes {
				m.kick()
			}
		})
	}
}

// stopObsolete is Reconciler.stopObsolete.
func (m *member) stopObsolete(d plan.Desired, planned plan.Plan) {
	wanted := map[plan.CopyRef]plan.Action{}
	for _, a := range planned.Actions {
		if !a.Idle() {
			wanted[a.CopyRef()] = a
		}
	}
	for _, w := range m.sortedJobs() {
		now, ok := wanted[w.key]
		if !ok || w.action.SupersededBy(w.image, now) || !w.action.Op.SameDeclaration(w.image, d.Config.Images[w.key.ID.Name]) {
			m.stop(w)
		}
	}
}

func (m *member) sortedJobs() []*work {
	jobs := make([]*work, 0, len(m.jobs))
	for _, w := range m.jobs {
		jobs = append(jobs, w)
	}
	slices.SortFunc(jobs, func(a, b *work) int {
		return cmp.Or(plan.CompareDisks(a.key.Disk, b.key.Disk), plan.CompareIDs(a.key.ID, b.key.ID))
	})
	return jobs
}

// finish is Reconciler.Finish.
func (m *member) finish(w *work, err error) {
	if m.jobs[w.key] != w {
		return
	}
	delete(m.jobs, w.key)
	delete(m.uploads, w.key)
	a := w.action
	switch {
	case errors.Is(err, errUploadEnded):
		delete(m.tries, w.key)
	case w.stopped && err != nil:
		m.c.tell(m.name, "%s of %s was stopped", a.Op, w.key)
	case err == nil:
		m.c.done[a.Op]++
		m.c.tell(m.name, "%s of %s is done", a.Op, w.key)
		failures(m.tries).clearCopy(w.key)
		delete(m.byHand, w.key)
	default:
		m.c.tell(m.name, "%s of %s failed: %v", a.Op, w.key, err)
		if !a.Pinned.Until.IsZero() {
			a.Pinned.Until = a.Pinned.Until.Add(-m.wall)
		}
		next := job.NextFailure(m.tries[w.key].Failure, a, err, m.steady(), rand.Float64())
		m.tries[w.key] = failureRecord{Failure: m.jitter(next), image: w.image}
	}
}

// jitter makes a wait, which a manager leaves to chance, one that the dice gave.
func (m *member) jitter(t plan.Failure) plan.Failure {
	wait := t.RetryAt.Sub(m.steady())
	if !t.Final && wait > 0 && wait < 5*time.Minute {
		whole := time.Minute
		for whole < wait {
			whole = min(2*whole, 5*time.Minute)
		}
		t.RetryAt = m.steady().Add(whole - m.c.between(0, whole/5))
	}
	return t
}

// end notes that a job ended; the next round takes it up.
func (m *member) end(w *work, err error) {
	if w.over {
		return
	}
	w.over = true
	m.ended = append(m.ended, ending{w: w, err: err})
	m.kick()
}

package reconcile

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"time"
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

func (m *member) roundPlans(d Desired, o Observed, at time.Duration, asking []*uploader) {
	m.note(d, o, at)
	if m.write(d, o) {
		o = m.look(d)
	}
	m.decideAll(d, o)
	plan := d.Plan(o)
	m.soon(func() { m.roundStarts(d, o, plan, asking) })
}

func (m *member) roundStarts(d Desired, o Observed, plan Plan, asking []*uploader) {
	m.d, m.o, m.plan, m.rounds, m.busy = d, o, plan, m.rounds+1, false
	m.stopObsolete(d, plan)
	limit := max(1, d.Config.Settings.ConcurrentReplenishPerNodeLimit)
	free := map[bool]int{true: limit, false: limit}
	for _, w := range m.jobs {
		if w.action.Kind != Upload { // which waits for people
			free[w.action.Kind.drops()]--
		}
	}
	var begun []*work
	for _, a := range plan.Actions {
		drops := a.Kind.drops()
		if !a.Idle() && m.jobs[a.Key()] == nil && (free[drops] > 0 || a.Kind == Upload) {
			if a.Kind != Upload {
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
func (m *member) sleep(o Observed) {
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
func (m *member) stopObsolete(d Desired, plan Plan) {
	wanted := map[Key]Action{}
	for _, a := range plan.Actions {
		if !a.Idle() {
			wanted[a.Key()] = a
		}
	}
	for _, w := range m.sortedJobs() {
		now, ok := wanted[w.key]
		if !ok || w.action.overtaken(w.image, now) || !w.action.Kind.same(w.image, d.Config.Images[w.key.ID.Name]) {
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
		return cmp.Or(compareRefs(a.key.Disk, b.key.Disk), compareIDs(a.key.ID, b.key.ID))
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
		m.c.tell(m.name, "%s of %s was stopped", a.Kind, w.key)
	case err == nil:
		m.c.done[a.Kind]++
		m.c.tell(m.name, "%s of %s is done", a.Kind, w.key)
		(&Reconciler{tries: m.tries}).succeeded(w.key)
		delete(m.byHand, w.key)
	default:
		m.c.tell(m.name, "%s of %s failed: %v", a.Kind, w.key, err)
		if !a.recall.until.IsZero() {
			a.recall.until = a.recall.until.Add(-m.wall)
		}
		next := NextFailure(m.tries[w.key].Try, a, err, m.steady(), rand.Float64())
		m.tries[w.key] = tried{Try: m.jitter(next), image: w.image}
	}
}

// jitter makes a wait, which a manager leaves to chance, one that the dice gave.
func (m *member) jitter(t Try) Try {
	wait := t.Until.Sub(m.steady())
	if !t.Final && wait > 0 && wait < 5*time.Minute {
		whole := time.Minute
		for whole < wait {
			whole = min(2*whole, 5*time.Minute)
		}
		t.Until = m.steady().Add(whole - m.c.between(0, whole/5))
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

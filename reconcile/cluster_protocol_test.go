package reconcile

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// This is what Reconciler and Server do between the pure halves of a removal: withdraw,
// ask, decide, rename aside, look for users, unlink. Each step takes its time.

// withdraw begins a removal. The round publishes it before anybody is asked.
func (m *member) withdraw(w *work, d plan.Desired, o plan.Observed) {
	w.removal = m.c.beginRemoval(m, w)
	w.asks = &questions{asked: d.NodesToQuery(o, w.action), answers: map[string]plan.Response{}}
	m.leaving[w.key] = true
	m.c.provoke(w.removal)
	m.c.tell(m.name, "withdraws %s: %s", w.key, w.action.Text)
}

// step goes on with a removal after a moment, unless it was stopped.
func (m *member) step(w *work, do func()) {
	m.soon(func() {
		if !w.over && !w.stopped {
			do()
		}
	})
}

// questions are what a removal asks, and what came back.
type questions struct {
	asked   []string
	answers map[string]plan.Response
	open    int
}

func (m *member) askAll(w *work) {
	w.asks.open = len(w.asks.asked)
	m.c.tell(m.name, "asks %v about %s", w.asks.asked, w.key)
	if w.asks.open == 0 {
		m.heardAll(w)
	}
	for _, name := range w.asks.asked {
		m.ask(w, w.asks, m.c.nodes[name])
	}
}

// heardAll lets the next round decide.
func (m *member) heardAll(w *work) {
	m.step(w, func() {
		m.ended = append(m.ended, ending{w: w, asked: true})
		m.kick()
	})
}

// ask asks one node, itself and directly.
func (m *member) ask(w *work, q *questions, other *member) {
	ended := false
	end := func() {
		if ended || w.over || w.stopped {
			return
		}
		ended = true
		if q.open--; q.open == 0 {
			m.heardAll(w)
		}
	}
	m.c.send(m, other, func() {
		other.soon(func() {
			other.answerFresh(w, func(state peer.State) {
				m.c.tell(other.name, "answers %s about %s: %s", m.name, w.key.ID.Name, stateText(state))
				m.c.send(other, m, func() {
					if !ended {
						q.answers[other.name] = plan.Response{ConfigDigest: state.Config, Disks: disksFromPeer(w.nodes, other.name, state)}
						end()
					}
				})
			})
		})
	})
	m.later(QueryTimeout, end)
}

// answerFresh looks at the copies of a name, now, as peerNode.Copies does: what it
// finds before and after it has looked at the disks counts for less, never for more.
func (m *member) answerFresh(w *work, give func(peer.State)) {
	if m.rounds == 0 {
		return
	}
	s := peer.State{Node: m.name, Config: m.digestNow()}
	before := maps.Clone(m.leaving)
	m.soon(func() {
		disks := map[schema.DiskRef]plan.Disk{}
		m.lookAtDisks(disks)
		w.removal.witness(m, s.Config)
		for _, ref := range slices.SortedFunc(maps.Keys(disks), plan.CompareDisks) {
			one := diskToPeer(ref, disks[ref])
			for _, id := range slices.SortedFunc(maps.Keys(disks[ref].Copies), plan.CompareIDs) {
				v := copyToPeer(disks[ref].Copies[id])
				if m.suspects(plan.CopyRef{Disk: ref, ID: id}) {
					v.State = disk.Unknown
				}
				v.Leaving = before[plan.CopyRef{Disk: ref, ID: id}] || m.leaving[plan.CopyRef{Disk: ref, ID: id}]
				if id.Name == w.key.ID.Name {
					one.Copies = append(one.Copies, v)
				}
			}
			s.Disks = append(s.Disks, one)
		}
		give(s)
	})
}

// suspects reports whether a copy that was made of this one has other bytes.
func (m *member) suspects(key plan.CopyRef) bool {
	for _, t := range m.tries {
		if slices.Contains(t.Suspects, key) {
			return true
		}
	}
	return false
}

// decideAll decides on what was heard, by a look that began after all answers.
func (m *member) decideAll(d plan.Desired, o plan.Observed) {
	for _, w := range m.sortedJobs() {
		if !w.answered || w.sure || w.over {
			continue
		}
		w.answered = false
		if m.c.now-w.began > 2*QueryTimeout {
			m.takeBack(w, o, errors.New("the answers are old"))
			continue
		}
		if err := d.ConfirmDeletion(o.WithResponses(w.key.ID.Name, w.asks.asked, w.asks.answers), w.action); err != nil {
			m.takeBack(w, o, err)
			continue
		}
		m.c.tell(m.name, "is sure that %s may go", w.key)
		w.removal.decided(o)
		w.sure = true
		m.soon(func() { m.renameAside(w) })
	}
}

// takeBack keeps a copy after all. It is tried again soon, and not at the same moment
// as another holder does.
func (m *member) takeBack(w *work, o plan.Observed, err error) {
	m.c.tell(m.name, "keeps %s: %v", w.key, err)
	if plantest.IsSuspended(m.conf.config, w.key.ID.Name, o.Now) {
		m.c.pairs[pairSuspend]++
	}
	w.over = true
	delete(m.jobs, w.key)
	m.c.endRemoval(w.removal)
	t := plan.Failure{Op: w.action.Op, Since: m.steady(), RetryAt: m.steady().Add(m.c.againAfter()), Message: err.Error()}
	m.tries[w.key] = failureRecord{Failure: t, image: w.image}
	o.Failures[w.key] = shifted(t, m.wall)
	delete(o.Running, w.key)
}

// fails ends a removal that could not be done.
func (m *member) fails(w *work, err error) {
	m.c.tell(m.name, "keeps %s: %v", w.key, err)
	m.c.endRemoval(w.removal)
	m.end(w, err)
}

// stop ends a job that is not wanted any more. A removal that is decided goes on.
func (m *member) stop(w *work) {
	if w.over || w.stopped || w.sure {
		return
	}
	w.stopped = true
	if w.removal != nil {
		if plantest.IsSuspended(m.d.Config, w.key.ID.Name, m.o.Now) {
			m.c.pairs[pairSuspend]++
		}
		m.fails(w, errors.New("stopped"))
		return
	}
	m.end(w, errors.New("stopped"))
}

// renameAside is the first half of disk.Remove: from here on no new user finds the
// folder.
func (m *member) renameAside(w *work) {
	s := m.c.slot(w.key)
	d := m.c.drives[w.key.Disk]
	if s == nil || d.uuid != w.uuid {
		m.fails(w, errors.New("it is not there any more"))
		return
	}
	if why := s.using(d); why != "" {
		m.fails(w, &disk.InUseError{ID: w.key.ID, Reason: why})
		return
	}
	s.aside = true
	m.c.tell(m.name, "renames %s aside", w.key)
	m.soon(func() { m.lookForUsers(w, s) })
}

func (m *member) lookForUsers(w *work, s *slot) {
	d := m.c.drives[w.key.Disk]
	if m.c.slot(w.key) != s || !s.aside {
		m.fails(w, errors.New("it is not there any more"))
		return
	}
	if why := s.using(d); why != "" {
		s.aside = false
		m.fails(w, &disk.InUseError{ID: w.key.ID, Reason: why})
		return
	}
	m.soon(func() { m.unlink(w, s) })
}

func (m *member) unlink(w *work, s *slot) {
	if m.c.slot(w.key) != s || !s.aside {
		m.fails(w, errors.New("it is not there any more"))
		return
	}
	w.removal.unlinks(s)
	delete(m.c.drives[w.key.Disk].slots, w.key.ID)
	m.c.tell(m.name, "has deleted %s", w.key)
	m.c.endRemoval(w.removal)
	m.end(w, nil)
}

// againAfter is when a removal that was not confirmed is tried again.
func (c *cluster) againAfter() time.Duration { return c.between(time.Second, 10*time.Second) }

package simulation

import (
	"context"
	"maps"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// This is what the network and package disk do between the steps of a deletion: queries, a
// rename, a look for users, a rename back or an unlink. Each of these takes its time.

// withdraw begins the queries of a deletion. The copy is withdrawn and published.
func (m *node) withdraw(w *work) {
	m.checkSuspension(w)
	w.deletion = m.c.beginDeletion(m, w)
	m.c.injectDuringDeletion(w.deletion)
	m.c.logf(m.name, "withdraws %s: %s", w.key, w.action.Text)
	m.step(w, func() { m.askAll(w) })
}

// step goes on with a deletion after a moment, unless it was stopped.
func (m *node) step(w *work, do func()) {
	m.soon(func() {
		if !w.over && !w.stopped {
			do()
		}
	})
}

// questions are the queries of a deletion, and the responses.
type questions struct {
	asked   []peer.Address
	answers map[string]peer.State
	done    func(map[string]peer.State)
	open    int
	over    bool
}

func (m *node) askAll(w *work) {
	w.asks.open = len(w.asks.asked)
	m.c.logf(m.name, "asks %v about %s", w.asks.asked, w.key)
	if w.asks.open == 0 {
		m.heardAll(w)
	}
	for _, at := range w.asks.asked {
		m.ask(w, at, m.c.nodeAt(at.URL))
	}
}

// heardAll lets the next round decide.
func (m *node) heardAll(w *work) {
	m.step(w, func() {
		w.asks.over = true
		w.asks.done(w.asks.answers)
		m.kick()
	})
}

// ask queries one node directly.
func (m *node) ask(w *work, at peer.Address, other *node) {
	ended := false
	end := func() {
		if ended || w.over || w.stopped {
			return
		}
		ended = true
		if w.asks.open--; w.asks.open == 0 {
			m.heardAll(w)
		}
	}
	m.c.send(m, other, func() {
		other.soon(func() {
			other.answerFresh(w, func(state peer.State) {
				m.c.logf(other.name, "answers %s about %s: %s", m.name, w.key.ID.Name, formatState(state))
				m.c.send(other, m, func() {
					if !ended {
						if state.Node == at.Node { // peer.Client checks that
							w.asks.answers[at.Node] = state
						}
						end()
					}
				})
			})
		})
	})
	m.later(reconcile.QueryTimeout, end)
}

// answerFresh answers a direct query.
func (m *node) answerFresh(w *work, give func(peer.State)) {
	stood := map[readyCopy]bool{}
	f := &fiber{node: m, listed: func(ref schema.DiskRef) { w.deletion.addReady(m, ref, "", stood) }}
	m.c.spawn(f, func() {
		s, err := m.loop.PeerNode().Copies(m.ctx, w.key.ID.Name)
		if err == nil {
			w.deletion.recordResponse(m, s.Config, stood)
			give(s)
		}
	})
}

// stopWorks ends the jobs that the last round stopped, in a moment, and the deletions that it
// cancelled, at once.
func (m *node) stopWorks() {
	runs := m.loop.Transfers()
	for _, w := range m.sortedWorks() {
		if _, ok := runs[w.key]; !ok && w.deletion != nil && !w.sure {
			m.c.logf(m.name, "keeps %s: %s", w.key, m.o.Failures[w.key].Message)
			m.cancelled(w)
			continue
		}
		if w.ctx.Err() == nil || w.stopped || w.sure || w.over {
			continue
		}
		w.stopped = true
		m.c.logf(m.name, "stops %s of %s", w.action.Op, w.key)
		if w.asks == nil {
			m.soon(func() { m.end(w, context.Canceled) })
			continue
		}
		if plantest.IsSuspended(m.d.Config, w.key.ID.Name, m.o.Now) {
			m.c.pairs[pairSuspend]++
		}
		m.c.endDeletion(w.deletion)
		if !w.asks.over {
			w.asks.over = true
			m.soon(func() {
				m.forget(w)
				w.asks.done(maps.Clone(w.asks.answers))
				m.kick()
			})
		}
	}
}

// cancelled ends a deletion that was not confirmed.
func (m *node) cancelled(w *work) {
	if plantest.IsSuspended(m.conf.config, w.key.ID.Name, m.o.Now) {
		m.c.pairs[pairSuspend]++
	}
	m.c.endDeletion(w.deletion)
	m.forget(w)
}

// forget ends a job without a report to the loop.
func (m *node) forget(w *work) {
	w.over = true
	if m.works[w.key] == w {
		delete(m.works, w.key)
	}
}

// remove is what disk.Disk.Remove does for a confirmed deletion, on a simulated drive.
func (m *node) remove(w *work) {
	w.deletion.checkDecision(m.o)
	m.c.logf(m.name, "is sure that %s may go", w.key)
	m.soon(func() {
		m.c.spawn(&fiber{node: m}, func() {
			err := m.removeFolder(w)
			m.c.endDeletion(w.deletion)
			m.end(w, err)
		})
	})
}

// removeFolder deletes the folder of a copy.
func (m *node) removeFolder(w *work) error {
	s := m.c.copyAt(w.key)
	if s == nil {
		return errNoFile
	}
	return disk.RemoveUnused(watchedRemoval{m.c.disks[w.key.Disk].Removal(w.key.ID), m, w, s})
}

// watchedRemoval is the deletion of a copy in which each step takes a moment. It checks the rules.
type watchedRemoval struct {
	disk.Removal
	m *node
	w *work
	s *Copy
}

// CheckUnused implements disk.Removal.
func (r watchedRemoval) CheckUnused(aside bool) error {
	if !r.present() {
		return errNoFile
	}
	return r.Removal.CheckUnused(aside)
}

// present reports whether the disk with the copy is still at its path.
func (r watchedRemoval) present() bool {
	return r.m.c.copyOn(r.w.uuid, r.w.key) == r.s
}

// SetAside implements disk.Removal.
func (r watchedRemoval) SetAside() error {
	err := r.Removal.SetAside()
	r.m.c.logf(r.m.name, "renames the folder of %s", r.w.key)
	r.m.c.pause(r.m.c.moment())
	return err
}

// Delete implements disk.Removal.
func (r watchedRemoval) Delete() error {
	r.m.c.pause(r.m.c.moment())
	if !r.present() || !r.s.Aside {
		return errNoFile
	}
	r.w.deletion.checkUnlink(r.s)
	r.m.c.logf(r.m.name, "deletes %s", r.w.key)
	return r.Removal.Delete()
}

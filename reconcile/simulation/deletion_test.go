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
func (m *node) withdraw(w *runningJob) {
	m.checkSuspension(w)
	w.deletion = m.c.beginDeletion(m, w)
	m.c.injectDuringDeletion(w.deletion)
	m.c.logf(m.name, "withdraws %s: %s", w.key, w.action.Text)
	m.deletionStep(w, func() { m.queryNodes(w) })
}

// deletionStep goes on with a deletion after a moment, unless it was stopped.
func (m *node) deletionStep(w *runningJob, do func()) {
	m.afterMoment(func() {
		if !w.ended && !w.stopped {
			do()
		}
	})
}

// deletionQuery are the queries of a deletion, and the responses.
type deletionQuery struct {
	nodes     []peer.Address
	responses map[string]peer.State
	done      func(map[string]peer.State)
	pending   int
	ended     bool
}

func (m *node) queryNodes(w *runningJob) {
	w.query.pending = len(w.query.nodes)
	m.c.logf(m.name, "asks %v about %s", w.query.nodes, w.key)
	if w.query.pending == 0 {
		m.endQuery(w)
	}
	for _, at := range w.query.nodes {
		m.queryNode(w, at, m.c.nodeAt(at.URL))
	}
}

// endQuery lets the next round decide.
func (m *node) endQuery(w *runningJob) {
	m.deletionStep(w, func() {
		w.query.ended = true
		w.query.done(w.query.responses)
		m.requestRound()
	})
}

// queryNode queries one node directly.
func (m *node) queryNode(w *runningJob, at peer.Address, other *node) {
	ended := false
	end := func() {
		if ended || w.ended || w.stopped {
			return
		}
		ended = true
		if w.query.pending--; w.query.pending == 0 {
			m.endQuery(w)
		}
	}
	m.c.send(m, other, func() {
		other.afterMoment(func() {
			other.respond(w, func(state peer.State) {
				m.c.logf(other.name, "answers %s about %s: %s", m.name, w.key.ID.Name, formatState(state))
				m.c.send(other, m, func() {
					if !ended {
						if state.Node == at.Node { // peer.Client checks that
							w.query.responses[at.Node] = state
						}
						end()
					}
				})
			})
		})
	})
	m.after(reconcile.QueryTimeout, end)
}

// respond answers a direct query.
func (m *node) respond(w *runningJob, give func(peer.State)) {
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

// stopJobs ends the jobs that the last round stopped, in a moment, and the deletions that it
// cancelled, at once.
func (m *node) stopJobs() {
	runs := m.loop.Transfers()
	for _, w := range m.sortedJobs() {
		if _, ok := runs[w.key]; !ok && w.deletion != nil && !w.confirmed {
			m.c.logf(m.name, "keeps %s: %s", w.key, m.observed.Failures[w.key].Message)
			m.endCancelled(w)
			continue
		}
		if w.ctx.Err() == nil || w.stopped || w.confirmed || w.ended {
			continue
		}
		w.stopped = true
		m.c.logf(m.name, "stops %s of %s", w.action.Op, w.key)
		if w.query == nil {
			m.afterMoment(func() { m.endJob(w, context.Canceled) })
			continue
		}
		if plantest.IsSuspended(m.desired.Config, w.key.ID.Name, m.observed.Now) {
			m.c.pairs[pairSuspend]++
		}
		m.c.endDeletion(w.deletion)
		if !w.query.ended {
			w.query.ended = true
			m.afterMoment(func() {
				m.dropJob(w)
				w.query.done(maps.Clone(w.query.responses))
				m.requestRound()
			})
		}
	}
}

// endCancelled ends a deletion that was not confirmed.
func (m *node) endCancelled(w *runningJob) {
	if plantest.IsSuspended(m.applied.config, w.key.ID.Name, m.observed.Now) {
		m.c.pairs[pairSuspend]++
	}
	m.c.endDeletion(w.deletion)
	m.dropJob(w)
}

// dropJob ends a job without a report to the loop.
func (m *node) dropJob(w *runningJob) {
	w.ended = true
	if m.jobs[w.key] == w {
		delete(m.jobs, w.key)
	}
}

// deleteCopy is what disk.Disk.Remove does for a confirmed deletion, on a simulated drive.
func (m *node) deleteCopy(w *runningJob) {
	w.deletion.checkDecision(m.observed)
	m.c.logf(m.name, "is sure that %s may go", w.key)
	m.afterMoment(func() {
		m.c.spawn(&fiber{node: m}, func() {
			err := m.removeFolder(w)
			m.c.endDeletion(w.deletion)
			m.endJob(w, err)
		})
	})
}

// removeFolder deletes the folder of a copy.
func (m *node) removeFolder(w *runningJob) error {
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
	w *runningJob
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
	return r.m.c.copyOn(r.w.diskUUID, r.w.key) == r.s
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

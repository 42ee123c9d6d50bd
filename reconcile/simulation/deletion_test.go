package simulation

import (
	"context"
	"maps"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
)

// This file has what the network and package disk do between the steps of a deletion: queries,
// renames, checks for users, and the removal of the files. Each step takes time.

// withdraw begins the queries of a deletion. The copy is already withdrawn and published.
func (m *node) withdraw(job *runningJob) {
	m.checkSuspension(job)
	job.deletion = m.c.beginDeletion(m, job)
	m.c.injectDuringDeletion(job.deletion)
	m.c.logf(m.name, "withdraws %s: %s", job.key, job.action.Text)
	m.deletionStep(job, func() { m.queryNodes(job) })
}

// deletionStep continues a deletion after a moment, unless it was stopped.
func (m *node) deletionStep(job *runningJob, do func()) {
	m.afterMoment(func() {
		if !job.ended && !job.stopped {
			do()
		}
	})
}

// deletionQuery has the direct queries of a deletion, and the responses.
type deletionQuery struct {
	nodes     []peer.Address
	mark      string // the name of the mark that the nodes look for
	responses map[string]model.Node
	done      func(map[string]model.Node)
	pending   int    // queries without a response
	proving   bool   // the responses were reported, and proofs are requested
	stop      func() // ends the requests for proofs
	ended     bool   // everything was reported
}

// queryNodes queries all nodes of a deletion directly.
func (m *node) queryNodes(job *runningJob) {
	job.query.pending = len(job.query.nodes)
	m.c.logf(m.name, "queries %v about %s", job.query.nodes, job.key)
	if job.query.pending == 0 {
		m.endQuery(job)
	}
	for _, at := range job.query.nodes {
		m.queryNode(job, at, m.c.nodeAt(at.URL))
	}
}

// endQuery reports the responses. Then the node requests proofs, or the next round decides.
func (m *node) endQuery(job *runningJob) {
	m.deletionStep(job, func() {
		job.query.done(job.query.responses)
		if !job.query.proving {
			m.endProofs(job)
		}
	})
}

// endProofs ends the query phase, so that the next round decides.
func (m *node) endProofs(job *runningJob) {
	job.query.ended = true
	m.requestRound()
}

// requestProofs requests a chunk of each copy that has to prove that it has its bytes.
func (m *node) requestProofs(job *runningJob, tasks []system.ProofTask, on system.Disks, done func(map[ident.CopyRef]plan.Proof)) {
	job.query.proving = true
	proofs := map[ident.CopyRef]plan.Proof{}
	pending := len(tasks)
	job.query.stop = func() { done(proofs) }
	for _, t := range tasks {
		var local *Disk
		if t.Local != (ident.CopyRef{}) {
			local = Opened(on[t.Local.Disk.Disk].(watchedDisk).Disk)
		}
		manifest, answered := ProofManifest(t, local), false
		if t.Own {
			m.afterMoment(func() {
				proofs[t.Copy] = m.proveOwn(t, manifest, job)
				if pending--; pending == 0 && !job.ended && !job.stopped {
					done(proofs)
					m.endProofs(job)
				}
			})
			continue
		}
		end := func() {
			if answered || job.ended || job.stopped {
				return
			}
			answered = true
			if pending--; pending == 0 {
				done(proofs)
				m.endProofs(job)
			}
		}
		other := m.c.nodeAt(t.Source.URL)
		m.c.send(m, other, func() {
			other.afterMoment(func() {
				p, ok := other.prove(t, manifest, job)
				if !ok {
					return
				}
				m.c.logf(other.name, "sends the proof of %s to %s: %v", t.Copy, m.name, p)
				m.c.send(other, m, func() {
					if !answered {
						proofs[t.Copy] = p
						end()
					}
				})
			})
		})
		m.after(system.ProofTimeout, end)
	}
}

// proveOwn reads a chunk of a copy of the node itself from its medium.
func (m *node) proveOwn(t system.ProofTask, manifest ident.Digest, of *runningJob) plan.Proof {
	d := m.c.disks[t.Copy.Disk]
	if d == nil {
		return plan.Proof{Problem: errIO.Error()}
	}
	p := d.Prove(t.Copy.ID, manifest)
	if c := d.Copies[t.Copy.ID]; d.Attached && c.Ready() && c.File != c.Recorded {
		p.Result = plan.ProofWrong
	}
	if p.Result == plan.ProofPassed { // also of a copy that was withdrawn meanwhile: the decision does not count it
		of.deletion.proven[t.Copy] = true
	}
	return p
}

// prove is the response of the node to the request for a chunk.
// ok is false if it does not respond.
func (m *node) prove(t system.ProofTask, manifest ident.Digest, of *runningJob) (p plan.Proof, ok bool) {
	if m.liar != nil {
		return m.liar.prove(t, manifest, of)
	}
	if m.leaving(t.Copy) {
		return plan.Proof{Problem: "it is leaving"}, true
	}
	d := m.c.disks[t.Copy.Disk]
	if d == nil || m.c.sendsWrongBytes[m.name] && m.c.oneIn(2) {
		return plan.Proof{Result: plan.ProofWrong, Problem: peer.ErrWrongChunk.Error()}, true
	}
	p = d.Prove(t.Copy.ID, manifest)
	if p.Result == plan.ProofPassed {
		of.deletion.recordProof(t.Copy)
	}
	return p, true
}

// queryNode queries one node directly. Without a response the query ends after a timeout.
func (m *node) queryNode(job *runningJob, at peer.Address, other *node) {
	ended := false
	end := func() {
		if ended || job.ended || job.stopped {
			return
		}
		ended = true
		if job.query.pending--; job.query.pending == 0 {
			m.endQuery(job)
		}
	}
	m.c.send(m, other, func() {
		other.afterMoment(func() {
			other.respond(job, func(state model.Node) {
				m.c.logf(other.name, "responds to %s about %s: %s", m.name, job.key.ID.Name, formatState(state))
				m.c.send(other, m, func() {
					if !ended {
						if state.Node == at.Node { // peer.Client checks that
							job.query.responses[at.Node] = state
						}
						end()
					}
				})
			})
		})
	})
	m.after(system.QueryTimeout, end)
}

// respond responds to a direct query. It records which copies the node listed for the response.
func (m *node) respond(job *runningJob, send func(model.Node)) {
	if m.liar != nil {
		m.liar.respond(job, send)
		return
	}
	listed := map[readyCopy]bool{}
	f := &fiber{node: m, listed: func(ref ident.DiskRef) { job.deletion.addReady(m, ref, "", listed) }}
	m.c.spawn(f, func() {
		s, err := m.loop.PeerNode().Copies(m.ctx, job.key.ID.Name, job.query.mark)
		if err == nil {
			job.deletion.recordResponse(m, s.ConfigDigest, listed)
			send(s)
		}
	})
}

// stopJobs ends the jobs that the last round stopped. A deletion that the round cancelled ends at
// once, any other job after a moment.
func (m *node) stopJobs() {
	running := m.loop.Transfers()
	for _, job := range m.sortedJobs() {
		if _, ok := running[job.key]; !ok && job.deletion != nil && !job.confirmed {
			m.c.logf(m.name, "keeps %s: %s", job.key, m.observed.Failures[job.key].Message)
			m.endCancelled(job)
			continue
		}
		if job.ctx.Err() == nil || job.stopped || job.confirmed || job.ended {
			continue
		}
		job.stopped = true
		m.c.logf(m.name, "stops %s of %s", job.action.Op, job.key)
		m.checkEnd(job)
		if job.query == nil {
			m.afterMoment(func() { m.endJob(job, context.Canceled) })
			continue
		}
		if plantest.IsSuspended(m.desired.Config, job.key.ID.Name, m.observed.Now) {
			m.c.pairs[pairSuspend]++
		}
		m.c.endDeletion(job.deletion)
		if !job.query.ended {
			job.query.ended = true
			m.afterMoment(func() {
				m.dropJob(job)
				if job.query.proving {
					job.query.stop()
				} else {
					job.query.done(maps.Clone(job.query.responses))
				}
				m.requestRound()
			})
		}
	}
}

// endCancelled ends a deletion that the round did not confirm.
func (m *node) endCancelled(job *runningJob) {
	if plantest.IsSuspended(m.applied.config, job.key.ID.Name, m.observed.Now) {
		m.c.pairs[pairSuspend]++
	}
	m.c.endDeletion(job.deletion)
	m.dropJob(job)
}

// dropJob removes a job that the loop has already ended. The job reports nothing to the loop.
func (m *node) dropJob(job *runningJob) {
	job.ended = true
	if m.jobs[job.key] == job {
		delete(m.jobs, job.key)
	}
}

// deleteCopy is the job of a confirmed deletion.
func (m *node) deleteCopy(job *runningJob) {
	job.deletion.checkDecision(m.observed)
	m.c.logf(m.name, "has confirmed the deletion of %s", job.key)
	m.afterMoment(func() {
		m.c.spawn(&fiber{node: m}, func() {
			err := m.removeFolder(job)
			m.c.endDeletion(job.deletion)
			m.endJob(job, err)
		})
	})
}

// removeFolder deletes the folder of a copy.
func (m *node) removeFolder(job *runningJob) error {
	s := m.c.copyAt(job.key)
	if s == nil {
		return errNoFile
	}
	return disk.RemoveUnused(watchedRemoval{m.c.disks[job.key.Disk].Removal(job.key.ID, job.mark), m, job, s})
}

// watchedRemoval implements disk.Removal. Each step takes a moment, and the rules are checked before
// the deletion.
type watchedRemoval struct {
	disk.Removal
	m   *node
	job *runningJob
	s   *Copy
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
	return r.m.c.copyOn(r.job.diskUUID, r.job.key) == r.s
}

// SetAside implements disk.Removal. A volume may find the copy between the check for users and the
// rename: only the second check detects this user.
func (r watchedRemoval) SetAside() error {
	wait := r.m.c.moment()
	r.m.c.attachBeforeRename(r.job.key, wait)
	wait += r.m.c.restartSharing(r.job.key.Disk)
	r.m.c.pause(wait)
	if !r.present() {
		return errNoFile
	}
	err := r.Removal.SetAside()
	r.m.c.logf(r.m.name, "renames the folder of %s", r.job.key)
	r.m.c.pause(r.m.c.moment())
	return err
}

// Delete implements disk.Removal.
func (r watchedRemoval) Delete() error {
	r.m.c.pause(r.m.c.moment())
	if !r.present() || !r.s.Aside {
		return errNoFile
	}
	r.job.deletion.checkUnlink(r.s)
	r.m.c.logf(r.m.name, "deletes %s", r.job.key)
	return r.Removal.Delete()
}

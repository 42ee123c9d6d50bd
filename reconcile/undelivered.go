package reconcile

import (
	"errors"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// nodeBytes are bytes that a node claims to have, in one copy or several, of any image.
type nodeBytes struct {
	node   string
	digest disk.Digest // as it is declared
}

// undelivered says that a node has not delivered bytes that it claims to have. All its copies with these
// bytes are left aside for a time, under whatever names it publishes them.
type undelivered struct {
	failures int
	until    time.Time // steady
	holds    bool      // until is after the last round
}

// leaveAside leaves all copies aside that nodes claim to have of the bytes with a digest. The time doubles
// with each failure, from minDisproved to maxDisproved. It reports whether the copies of any of the nodes
// were not left aside yet.
func (s *claims) leaveAside(sources []peer.Source, digest disk.Digest, why error, now time.Time) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	done := map[string]bool{}
	for _, one := range sources {
		key := nodeBytes{one.Node, digest}
		last := s.undelivered[key]
		if done[one.Node] || last.holds {
			continue
		}
		done[one.Node], news = true, true
		s.undelivered[key] = undelivered{last.failures + 1, now.Add(disprovedFor(last.failures)), true}
		if last.failures == 0 {
			s.log.Warn("a node did not deliver bytes that it claims to have", "node", one.Node, "image", one.ID.Name, "digest", digest.String(), "error", why)
		}
	}
	return news
}

// applyUndelivered marks the copies in disks that are left aside. s.mu is locked.
func (s *claims) applyUndelivered(disks map[schema.DiskRef]plan.Disk) {
	if len(s.undelivered) == 0 {
		return
	}
	for ref, seen := range disks {
		var ids []disk.ID
		for id, c := range seen.Copies {
			if c.State == disk.Ready && (s.undelivered[nodeBytes{ref.Node, c.SHA512}].holds || s.undelivered[nodeBytes{ref.Node, c.SHA256}].holds) {
				ids = append(ids, id)
			}
		}
		if len(ids) > 0 {
			disks[ref] = withUnproven(seen, ids...)
		}
	}
}

// minSyncRate is the least rate, in bytes per second, at which a sync that fails again and again may go on
// with its sources. A slower one would take days for an image of some GiB.
const minSyncRate = 64 << 10

// failingSync are the failed attempts of a sync from other nodes since its last other outcome.
type failingSync struct {
	began    time.Time // steady; the beginning of the first attempt
	received int64     // bytes of all attempts
}

// after returns the failing sync after a job has failed with that fault. It is zero if the job is no sync from
// other nodes of an image with a checksum, or if it failed for a reason on this node.
func (f failingSync) after(run *activeJob, fault plan.Fault) failingSync {
	a := run.task.Action
	if a.Op != plan.Sync || a.LocalSource != (plan.CopyRef{}) || fault != plan.FaultNetwork || run.task.Image.Checksum.IsZero() || run.task.Image.Source.Upload != nil {
		return failingSync{}
	}
	if f.began.IsZero() {
		f.began = run.started.Steady
	}
	f.received += run.task.Progress.PeerBytes.Load()
	return f
}

// isHopeless reports whether the sync has failed for the recovery interval and received next to nothing.
func (f failingSync) isHopeless(run *activeJob, now time.Time) bool {
	lasted := now.Sub(f.began)
	least := int64(minSyncRate)
	if limit := run.task.Image.BandwidthLimit; limit > 0 {
		least = min(least, limit/2)
	}
	return !f.began.IsZero() && lasted >= run.task.RecoveryInterval && float64(f.received) < float64(least)*lasted.Seconds()
}

// leaveSourcesAside leaves the sources of a failed job aside if they sent wrong bytes, or nothing for the
// recovery interval, and reports whether another source can be used at once.
func (r *Reconciler) leaveSourcesAside(run *activeJob, err error, failing failingSync, now time.Time) (again bool) {
	claims, digest := r.peers.claims, run.task.Digest
	if wrong, ok := errors.AsType[*job.WrongSourcesError](err); ok {
		again = r.peers.disprove(wrong.Sources, wrong, now)
		if !run.task.Image.Checksum.IsZero() {
			again = claims.leaveAside(wrong.Sources, digest, err, now) || again
		}
		return again
	}
	return failing.isHopeless(run, now) && claims.leaveAside(run.task.PeerCopies(), digest, err, now)
}

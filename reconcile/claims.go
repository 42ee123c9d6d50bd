package reconcile

import (
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/backoff"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// disprove records that copies on other nodes have other bytes than their nodes claim: a job read these
// copies and failed with err. It reports whether this is new for at least one of them.
func (s *peers) disprove(sources []peer.Source, err error, now time.Time) (news bool) {
	for _, one := range sources {
		ref := ident.CopyRef{Disk: ident.DiskRef{Node: one.Node, Disk: one.Disk}, ID: one.ID}
		news = s.claims.disprove(ref, err.Error(), now) || news
	}
	return news
}

// claims are what this node knows about copies on other nodes against the claims of these nodes: the
// outcomes of proofs, manifests that were read, and nodes that do not deliver bytes to jobs. It is in
// memory only. Its methods may be called concurrently.
type claims struct {
	log *slog.Logger

	mu          sync.Mutex
	disproved   map[ident.CopyRef]disprovedClaim
	missing     map[ident.CopyRef]bool        // see plan.Observed.Unanswered
	manifests   map[ident.Digest]ident.Digest // see plan.Observed.ReadManifests
	undelivered map[nodeBytes]undelivered
}

func newClaims(log *slog.Logger) *claims {
	return &claims{log: log, disproved: map[ident.CopyRef]disprovedClaim{}, missing: map[ident.CopyRef]bool{}, manifests: map[ident.Digest]ident.Digest{}, undelivered: map[nodeBytes]undelivered{}}
}

// disprovedClaim is the claim that a copy is ready, whose node has sent other bytes: as a proof, or to a job.
type disprovedClaim struct {
	failures int       // how often it has sent other bytes
	until    time.Time // steady; the claim stays disproved until then, whatever the node publishes
	over     bool      // until has passed
}

// A claim stays disproved for a minute, and then counts again: the wrong bytes of an honest node may
// have come from its memory or its connection, so that it never publishes anything else. The time doubles
// with each further failure, up to a day: otherwise a node could repeat its claim as often as it likes.
var disprovedFor = backoff.Doubling{First: time.Minute, Max: 24 * time.Hour}

// record records the outcomes of the proofs of a deletion, and calls count with each. It returns whether
// all passed.
func (s *claims) record(responses map[string]plan.Response, now time.Time, count func(plan.ProofResult)) (passed bool) {
	passed = true
	for _, response := range responses {
		for ref, p := range response.Proofs {
			passed = passed && p.Result == plan.ProofPassed
			count(p.Result)
			if p.Result == plan.ProofWrong {
				s.disprove(ref, p.Problem, now)
				continue
			}
			s.recordOne(ref, p.Result)
		}
	}
	return passed
}

// recordOne records the outcome of a proof that does not disprove the claim.
func (s *claims) recordOne(ref ident.CopyRef, result plan.ProofResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if result == plan.ProofMissing {
		s.missing[ref] = true
		return
	}
	delete(s.missing, ref)
	delete(s.disproved, ref)
}

// disprove records that a copy on another node has sent other bytes. It logs that unless the claim is
// disproved already, and reports whether it was not.
func (s *claims) disprove(ref ident.CopyRef, problem string, now time.Time) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.missing, ref)
	last := s.disproved[ref]
	s.disproved[ref] = disprovedClaim{failures: last.failures + 1, until: now.Add(disprovedFor.After(last.failures))}
	if news = last.failures == 0 || last.over; news {
		s.log.Warn("a copy on another node did not prove that it has its bytes", "copy", ref.String(), "error", problem)
	}
	return news
}

// addManifest records the digest of the chunk manifest of bytes that this node has read.
func (s *claims) addManifest(manifest, sha512 ident.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.manifests[manifest] = sha512
}

// apply marks the copies in o whose claim is disproved, and ends that when its time is over. It forgets
// copies on disks that are not declared any more.
func (s *claims) apply(d plan.Desired, o *plan.Observed, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.missing, func(ref ident.CopyRef, _ bool) bool { return !o.HasCopy(ref) })
	o.ReadManifests, o.Unanswered = maps.Clone(s.manifests), maps.Clone(s.missing)
	for ref, one := range s.disproved {
		if _, declared := d.Disk(ref.Disk); !declared {
			delete(s.disproved, ref)
			continue
		}
		c := o.Disks[ref.Disk].Copies[ref.ID]
		if one.over = one.over || !one.until.After(now); one.over {
			s.disproved[ref] = one
			continue
		}
		if c.State == model.Ready {
			o.Disks[ref.Disk] = withUnproven(o.Disks[ref.Disk], ref.ID)
		}
	}
	for key, one := range s.undelivered {
		if _, declared := d.Config.Nodes[key.node]; !declared || now.Sub(one.until) > disprovedFor.Max {
			delete(s.undelivered, key)
			continue
		}
		one.holds = one.until.After(now)
		s.undelivered[key] = one
	}
	s.applyUndelivered(o.Disks)
}

// mark marks the copies in responses whose claim is disproved.
func (s *claims) mark(responses map[string]plan.Response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ref, one := range s.disproved {
		disks := responses[ref.Disk.Node].Disks
		if c := disks[ref.Disk].Copies[ref.ID]; c.State == model.Ready && !one.over {
			disks[ref.Disk] = withUnproven(disks[ref.Disk], ref.ID)
		}
	}
	for _, response := range responses {
		s.applyUndelivered(response.Disks)
	}
}

// withUnproven returns the disk with copies whose claims are disproved.
func withUnproven(d model.Disk, ids ...ident.ID) model.Disk {
	d.Copies = maps.Clone(d.Copies) // rounds and responses share it
	for _, id := range ids {
		c := d.Copies[id]
		c.State, c.Message, c.Unproven = model.Unknown, plan.Unproven.Text, true
		d.Copies[id] = c
	}
	return d
}

// isDisproved reports whether bytes with the digest must not be read from the copy.
func (s *claims) isDisproved(ref ident.CopyRef, digest ident.Digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	one, known := s.disproved[ref]
	return known && !one.over || s.undelivered[nodeBytes{ref.Disk.Node, digest}].holds
}

// unanswered returns plan.Observed.Unanswered.
func (s *claims) unanswered() map[ident.CopyRef]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.missing)
}

// readable returns the sources of the bytes with the digest without those whose claim is disproved.
func (s *claims) readable(from []peer.Source, digest ident.Digest) []peer.Source {
	var rest []peer.Source
	for _, one := range from {
		if !s.isDisproved(ident.CopyRef{Disk: ident.DiskRef{Node: one.Node, Disk: one.Disk}, ID: one.ID}, digest) {
			rest = append(rest, one)
		}
	}
	return rest
}

// nodeBytes are bytes that a node claims to have, in one copy or several, of any image.
type nodeBytes struct {
	node   string
	digest ident.Digest // as it is declared
}

// undelivered says that a node has not delivered bytes that it claims to have. All its copies with these
// bytes are left aside for a time, under whatever names it publishes them.
type undelivered struct {
	failures int
	until    time.Time // steady
	holds    bool      // until is after the last round
}

// leaveAside leaves all copies aside that nodes claim to have of the bytes with a digest. The time doubles
// with each failure, from minDisproved to disprovedFor.Max. It reports whether the copies of any of the nodes
// were not left aside yet.
func (s *claims) leaveAside(sources []peer.Source, digest ident.Digest, why error, now time.Time) (news bool) {
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
		s.undelivered[key] = undelivered{last.failures + 1, now.Add(disprovedFor.After(last.failures)), true}
		if last.failures == 0 {
			s.log.Warn("a node did not deliver bytes that it claims to have", "node", one.Node, "image", one.ID.Name, "digest", digest.String(), "error", why)
		}
	}
	return news
}

// applyUndelivered marks the copies in disks that are left aside. s.mu is locked.
func (s *claims) applyUndelivered(disks map[ident.DiskRef]model.Disk) {
	if len(s.undelivered) == 0 {
		return
	}
	for ref, seen := range disks {
		var ids []ident.ID
		for id, c := range seen.Copies {
			if c.State == model.Ready && (s.undelivered[nodeBytes{ref.Node, c.SHA512}].holds || s.undelivered[nodeBytes{ref.Node, c.SHA256}].holds) {
				ids = append(ids, id)
			}
		}
		if len(ids) > 0 {
			disks[ref] = withUnproven(seen, ids...)
		}
	}
}

// minReadRate is the least rate, in bytes per second, at which a sync or a repair that fails again and again may
// go on with its sources. A slower one would take days for an image of some GiB.
const minReadRate = 64 << 10

// failingReads are the failed attempts to sync or repair a copy from other nodes since their last other outcome.
// Both count together, because a repair that fails is replaced by a sync, and a sync that fails by a repair.
type failingReads struct {
	began    time.Time // steady; the beginning of the first attempt
	received int64     // bytes of all attempts
}

// after returns the failing reads after a job has failed with that fault. They are zero if the job did not read
// an image with a checksum from other nodes, or if it failed for a reason on this node.
func (f failingReads) after(run *activeJob, fault model.Fault) failingReads {
	image := run.task.Image
	if !readsPeers(run.task.Action) || fault != model.FaultNetwork || image.Checksum.IsZero() || image.Source.Upload != nil {
		return failingReads{}
	}
	if f.began.IsZero() {
		f.began = run.started.Steady
	}
	f.received += run.task.Progress.PeerBytes.Load()
	return f
}

// readsPeers reports whether an action creates or repairs a copy from copies on other nodes. A repair without
// any reads the upstream only.
func readsPeers(a plan.Action) bool {
	return (a.Op == model.Sync || a.Op == model.Repair) && a.From != (ident.CopyRef{}) && a.LocalSource == (ident.CopyRef{})
}

// areHopeless reports whether the attempts have failed for the recovery interval and received next to nothing.
func (f failingReads) areHopeless(run *activeJob, now time.Time) bool {
	lasted := now.Sub(f.began)
	least := float64(minReadRate)
	if limit := run.task.Image.BandwidthLimit; limit > 0 {
		least = min(least, float64(limit)/2)
	}
	return !f.began.IsZero() && lasted >= run.task.RecoveryInterval && float64(f.received) < least*lasted.Seconds()
}

// leaveSourcesAside leaves the sources of a failed job aside if they sent wrong bytes, or nothing for the
// recovery interval, and reports whether another source can be used at once.
func (s *peers) leaveSourcesAside(run *activeJob, err error, failing failingReads, now time.Time) (again bool) {
	claims, digest := s.claims, run.task.Digest
	if wrong, ok := errors.AsType[*job.WrongSourcesError](err); ok {
		again = s.disprove(wrong.Sources, wrong, now)
		if !run.task.Image.Checksum.IsZero() {
			again = claims.leaveAside(wrong.Sources, digest, err, now) || again
		}
		return again
	}
	return failing.areHopeless(run, now) && claims.leaveAside(run.task.PeerCopies(), digest, err, now)
}

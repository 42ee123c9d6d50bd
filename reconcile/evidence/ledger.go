// Package evidence has what a node remembers from round to round about trust and failure: which claims of other nodes have turned out
// to be wrong (Ledger), what failed on this node and when it is tried again (Failures), and for how long this node has waited for
// others (Awaited). All of it is in memory only: a restart begins anew.
package evidence

import (
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/backoff"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// Ledger has the evidence against claims of other nodes to have certain bytes, whatever the names and the number of their copies.
// The proofs of deletions and the jobs that read from these nodes write it. Its methods may be called concurrently.
type Ledger struct {
	log *slog.Logger
	now func() time.Time // steady

	mu     sync.Mutex
	claims map[claim]findings
	read   map[ident.Digest]ident.Digest // see plan.Observed.ReadManifests
}

// claim is the claim of a node to have the bytes with a digest. The digest is declared, or the node publishes it.
type claim struct {
	node   string
	digest ident.Digest
}

// findings are the evidence against a claim.
type findings struct {
	strikes int       // how often the node has sent other bytes, or none for a long time, since it last proved the claim
	until   time.Time // nobody on this node counts on the claim or reads the bytes until then, whatever the node publishes
	// silent: the last request for a proof had no outcome, or a copy was not sent in full: see plan.Observed.Unanswered.
	silent bool
	noted  time.Time // the time of the last evidence
}

// distrust is how long a claim does not count after a strike. After the first strike this is a minute. The wrong bytes of an honest
// node may have come from its memory or its connection: its claim is true, and counts again. The time doubles with each further strike,
// up to a day, because a dishonest node may repeat its claim as often as it likes. Evidence is forgotten after two days.
var distrust = backoff.Doubling{First: time.Minute, Max: 24 * time.Hour}

// NewLedger returns a Ledger without evidence. now is the steady clock of this process.
func NewLedger(log *slog.Logger, now func() time.Time) *Ledger {
	return &Ledger{log: log, now: now, claims: map[claim]findings{}, read: map[ident.Digest]ident.Digest{}}
}

// Strike records that a node has sent other bytes than it claims to have in a copy, or none for a long time. A report about a
// claim that does not count now is no further strike. news reports whether a claim has counted until now.
func (l *Ledger) Strike(copy ident.CopyRef, why string, digests ...ident.Digest) (news bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for _, digest := range digests {
		key := claim{copy.Disk.Node, digest}
		r := l.claims[key]
		if digest.IsZero() || r.until.After(now) {
			continue
		}
		l.claims[key] = findings{strikes: r.strikes + 1, until: now.Add(distrust.After(r.strikes)), noted: now}
		news = true
	}
	if news {
		l.log.Warn("a node did not show that it has the bytes of a copy", "copy", copy.String(), "error", why)
	}
	return news
}

// StrikeSources calls Strike for each source of bytes with the digest. news reports whether any claim has counted until now.
func (l *Ledger) StrikeSources(sources []peer.Source, digest ident.Digest, why string) (news bool) {
	for _, s := range sources {
		at := ident.DiskRef{Node: s.Node, Disk: s.Disk}
		news = l.Strike(ident.CopyRef{Disk: at, ID: s.ID}, why, digest) || news
	}
	return news
}

// Judge records the outcome of the proof of a copy, for each digest that the node publishes. At most one of them is the
// declared digest, and the node can change the other one as often as it likes. A proof that passed ends all distrust of these claims.
func (l *Ledger) Judge(copy ident.CopyRef, c model.Copy, p plan.Proof) {
	switch p.Result {
	case plan.ProofWrong:
		l.Strike(copy, p.Problem, c.SHA512, c.SHA256)
	case plan.ProofMissing:
		l.NoteSilence(copy.Disk.Node, c.SHA512, c.SHA256)
	case plan.ProofPassed:
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.claims, claim{copy.Disk.Node, c.SHA512})
		delete(l.claims, claim{copy.Disk.Node, c.SHA256})
	}
}

// NoteSilence records that a node did not send requested bytes that it claims to have. Other nodes are asked first.
func (l *Ledger) NoteSilence(node string, digests ...ident.Digest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, digest := range digests {
		r := l.claims[claim{node, digest}]
		r.silent, r.noted = true, l.now()
		l.claims[claim{node, digest}] = r
	}
}

// AddManifest records the digest of the chunk manifest of bytes that this node has read.
func (l *Ledger) AddManifest(manifest, sha512 ident.Digest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.read[manifest] = sha512
}

// Apply adds the evidence to an observation: copies whose claim does not count become unknown. It forgets old evidence.
func (l *Ledger) Apply(d plan.Desired, o *plan.Observed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	maps.DeleteFunc(l.claims, func(c claim, f findings) bool {
		_, declared := d.Config.Nodes[c.node]
		return !declared || now.Sub(f.noted) > 2*distrust.Max
	})
	o.ReadManifests, o.Unanswered = maps.Clone(l.read), map[ident.CopyRef]bool{}
	l.discount(o.Disks, o.Unanswered)
}

// ApplyToResponses makes a copy in responses unknown if its claim does not count.
func (l *Ledger) ApplyToResponses(responses map[string]plan.Response) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, response := range responses {
		l.discount(response.Disks, map[ident.CopyRef]bool{})
	}
}

// discount makes a copy unknown if its claim does not count. For that it replaces the disk in disks, because its maps are shared. It
// adds the copies of silent nodes to silent. l.mu is locked.
func (l *Ledger) discount(disks map[ident.DiskRef]model.Disk, silent map[ident.CopyRef]bool) {
	if len(l.claims) == 0 {
		return
	}
	for ref, seen := range disks {
		cloned := false
		for id, c := range seen.Copies {
			distrusted, isSilent := l.judge(ref.Node, c.SHA512, c.SHA256)
			if isSilent {
				silent[ident.CopyRef{Disk: ref, ID: id}] = true
			}
			if !distrusted || c.State != model.Ready {
				continue
			}
			if !cloned { // rounds and responses share the map
				seen.Copies, cloned = maps.Clone(seen.Copies), true
				disks[ref] = seen
			}
			c.State, c.Message, c.Unproven = model.Unknown, plan.Unproven.Text, true
			seen.Copies[id] = c
		}
	}
}

// judge returns the evidence against the claim that a node has the bytes with one of the digests. l.mu is locked.
func (l *Ledger) judge(node string, digests ...ident.Digest) (distrusted, silent bool) {
	for _, digest := range digests {
		if r, known := l.claims[claim{node, digest}]; known && !digest.IsZero() {
			distrusted, silent = distrusted || r.until.After(l.now()), silent || r.silent
		}
	}
	return distrusted, silent
}

// Readable returns the sources of the bytes with the digest from which they may be read.
func (l *Ledger) Readable(sources []peer.Source, digest ident.Digest) (readable []peer.Source) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range sources {
		if distrusted, _ := l.judge(s.Node, digest); !distrusted {
			readable = append(readable, s)
		}
	}
	return readable
}

package evidence

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// ledgerRig is a Ledger and a node that publishes copies.
type ledgerRig struct {
	*Ledger
	log    bytes.Buffer
	now    time.Time
	at     ident.DiskRef
	copies map[ident.ID]model.Copy
}

func newLedgerRig(copies ...model.Copy) *ledgerRig {
	r := &ledgerRig{now: time.Unix(0, 0), at: ident.DiskRef{Node: "n2", Disk: "a"}, copies: model.NewCopies(copies...)}
	r.Ledger = NewLedger(slog.New(slog.NewTextHandler(&r.log, nil)), func() time.Time { return r.now })
	return r
}

// observe returns a round that has the evidence.
func (r *ledgerRig) observe() plan.Observed {
	d := plan.Desired{Config: schema.Config{Nodes: map[string]schema.Node{"n2": {Disks: map[string]schema.Disk{"a": {}}}}}}
	o := plan.Observed{Disks: map[ident.DiskRef]model.Disk{r.at: {Copies: r.copies}}}
	r.Apply(d, &o)
	return o
}

// counts reports whether a round counts on a copy. Jobs read copies that count, and no others.
func (r *ledgerRig) counts(t *testing.T, id ident.ID) bool {
	t.Helper()
	c, now := r.copies[id], r.observe().Disks[r.at].Copies[id]
	source := peer.Source{Address: peer.Address{Node: r.at.Node}, Disk: r.at.Disk, ID: id}
	readable := len(r.Readable([]peer.Source{source}, c.SHA512)) == 1 && len(r.Readable([]peer.Source{source}, c.SHA256)) == 1
	if now.Unproven == (now.State == model.Ready) || readable == now.Unproven {
		t.Errorf("the copy is %+v, readable: %v", now, readable)
	}
	return now.State == model.Ready
}

func claimed(name, sha512, sha256 string) (model.Copy, ident.CopyRef) {
	id := ident.ID{Name: name, UUID: "00000001"}
	c := model.Copy{ID: id, State: model.Ready, SHA512: plantest.Digest(ident.SHA512, sha512), SHA256: plantest.Digest(ident.SHA256, sha256)}
	return c, ident.CopyRef{Disk: ident.DiskRef{Node: "n2", Disk: "a"}, ID: id}
}

// A node sent other bytes than it claims. The claim must not count for a while, and for longer each time, but not for ever: wrong
// bytes of an honest node may have come from its memory or its connection.
func TestDistrustGrowsAndEnds(t *testing.T) {
	c, ref := claimed("parrot", "a", "b")
	r := newLedgerRig(c)
	judge := func(result plan.ProofResult) { r.Judge(ref, c, plan.Proof{Result: result, Problem: "other bytes"}) }
	if judge(plan.ProofMissing); !r.counts(t, ref.ID) || !r.observe().Unanswered[ref] {
		t.Error("after a missing proof the claim does not count, or the proof is forgotten")
	}
	for strikes, wait := range []time.Duration{1, 2, 4} {
		if judge(plan.ProofWrong); r.counts(t, ref.ID) || r.observe().Unanswered[ref] || strings.Count(r.log.String(), "level=WARN") != strikes+1 {
			t.Errorf("strike %d: the claim counts", strikes)
		}
		if judge(plan.ProofMissing); r.counts(t, ref.ID) {
			t.Errorf("strike %d: a missing proof ends the distrust", strikes)
		}
		if judge(plan.ProofWrong); strings.Count(r.log.String(), "level=WARN") != strikes+1 {
			t.Errorf("strike %d: it is two strikes", strikes)
		}
		r.now = r.now.Add(distrust.First*wait - 1)
		if r.counts(t, ref.ID) {
			t.Errorf("strike %d: the claim counts after %v", strikes, distrust.First*wait-1)
		}
		r.now = r.now.Add(1)
		if !r.counts(t, ref.ID) {
			t.Errorf("strike %d: the claim does not count after %v", strikes, distrust.First*wait)
		}
	}
	judge(plan.ProofWrong)
	if judge(plan.ProofPassed); !r.counts(t, ref.ID) {
		t.Error("a copy that has proven that it has its bytes does not count")
	}
	judge(plan.ProofWrong)
	r.now = r.now.Add(48*time.Hour + 1)
	if r.observe(); len(r.claims) > 0 {
		t.Errorf("after two days there is still %+v", r.claims)
	}
}

// A node publishes bytes that it does not have under another name, on another disk, or with another second digest. The declared
// digest is the claim, whatever the rest is.
func TestDistrustFollowsTheBytes(t *testing.T) {
	c, ref := claimed("parrot", "a", "b")
	renamed, _ := claimed("macaw", "a", "c")
	again, _ := claimed("kea", "d", "b")
	other, _ := claimed("lory", "d", "c")
	r := newLedgerRig(c, renamed, again, other)
	r.Judge(ref, c, plan.Proof{Result: plan.ProofWrong})
	for name, want := range map[string]bool{"parrot": false, "macaw": false, "kea": false, "lory": true} {
		id := ident.ID{Name: name, UUID: "00000001"}
		if got := r.observe().Disks[r.at].Copies[id].State == model.Ready; got != want {
			t.Errorf("%s counts: %v, want %v", name, got, want)
		}
	}
}

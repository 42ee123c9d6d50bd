package plan_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// withoutProofs returns the responses without their proofs.
func withoutProofs(responses map[string]plan.Response) map[string]plan.Response {
	for node, r := range responses {
		r.Proofs = nil
		responses[node] = r
	}
	return responses
}

// proofRequests returns the copies that must prove that they have their bytes before the deletion.
func proofRequests(d plan.Desired, o plan.Observed, a plan.Action, others []ident.DiskRef, last map[ident.CopyRef]bool) []plan.ProofRequest {
	return plan.NewRound(d, o.WithResponses("parrot", plan.NewRound(d, o).NodesToQuery(a), withoutProofs(responsesOf(o, others)))).ProofRequests(a, last)
}

// A copy on another node counts only if it has proven that it has its bytes. Its claim does not suffice.
func TestConfirmNeedsProofs(t *testing.T) {
	d, o, cleanup, others := surplusCopy(t)
	best := ident.CopyRef{Disk: others[0], ID: cleanup.CopyRef().ID}
	for _, test := range []struct {
		name  string
		proof plan.Proof
		want  string // in the reason against the deletion; "": it is confirmed
	}{
		{"passed", plan.Proof{Result: plan.ProofPassed}, ""},
		{"no chunk", plan.Proof{Problem: "404 Not Found"}, "did not prove that it has its bytes: 404 Not Found"},
		{"another chunk", plan.Proof{Result: plan.ProofWrong, Problem: "other bytes were received"}, "other bytes were received"},
	} {
		responses := withoutProofs(responsesOf(o, others))
		response := responses[best.Disk.Node]
		response.Proofs = map[ident.CopyRef]plan.Proof{best: test.proof}
		responses[best.Disk.Node] = response
		err := plan.NewRound(d, o.WithResponses("parrot", plan.NewRound(d, o).NodesToQuery(cleanup), responses)).ConfirmDeletion(cleanup)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	if err := plan.NewRound(d, o.WithResponses("parrot", plan.NewRound(d, o).NodesToQuery(cleanup), withoutProofs(responsesOf(o, others)))).ConfirmDeletion(cleanup); err == nil {
		t.Error("the deletion is confirmed without any proof")
	}
}

// A deletion asks as many copies as it counts on, the best ranked ones first. A copy that did not
// answer before is asked last, so that it cannot prevent the deletion for ever.
func TestProofRequestsAreTheFewestPossible(t *testing.T) {
	d, o, cleanup, others := surplusCopy(t)
	id := cleanup.CopyRef().ID
	for _, test := range []struct {
		copies int
		last   map[ident.CopyRef]bool
		want   []ident.DiskRef
	}{
		{1, nil, others[:1]},
		{1, map[ident.CopyRef]bool{{Disk: others[0], ID: id}: true}, others[1:]},
		{2, nil, others},
		{3, nil, nil}, // the copy is not surplus any more
	} {
		image := d.Config.Images["parrot"]
		image.Copies = test.copies
		d.Config.Images["parrot"] = image
		var got []ident.DiskRef
		for _, r := range proofRequests(d, o, cleanup, others, test.last) {
			got = append(got, r.Copy.Disk)
			if r.Local != cleanup.CopyRef() || r.Untrusted {
				t.Errorf("%d copies: the request %+v does not use the manifest of the copy that is deleted", test.copies, r)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%d copies, last %v: got %v, want %v", test.copies, test.last, got, test.want)
		}
	}
}

// The deletion of an orphan counts on no copy, and that of a partial file loses no copy.
func TestDeletionsWithoutProofs(t *testing.T) {
	d, o, cleanup, others := surplusCopy(t)
	ref := cleanup.CopyRef()
	own := o.Disks[ref.Disk].Copies[ref.ID]
	own.State, own.PartBytes, own.SHA512, own.ManifestDigest = model.Pending, 1, ident.Digest{}, ident.Digest{}
	o.Disks[ref.Disk].Copies[ref.ID] = own
	if got := proofRequests(d, o, cleanup, others, nil); len(got) > 0 {
		t.Errorf("for a partial file: %+v", got)
	}
	if err := plan.NewRound(d, o.WithResponses("parrot", plan.NewRound(d, o).NodesToQuery(cleanup), withoutProofs(responsesOf(o, others)))).ConfirmDeletion(cleanup); err != nil {
		t.Errorf("of a partial file: %v", err)
	}
	d, o, cleanup, others = surplusCopy(t)
	delete(d.Config.Images, "parrot")
	if got := proofRequests(d, o, cleanup, others, nil); len(got) > 0 {
		t.Errorf("for an orphan: %+v", got)
	}
}

// This node has no copy of the declared generation, so it has no chunk manifest to compare with. It
// trusts the manifest of another node only if a third one has the same, or if it has read the bytes.
func TestProofOfAnotherGenerationNeedsATrustedManifest(t *testing.T) {
	d, o, cleanup, others := surplusCopy(t)
	image := d.Config.Images["parrot"]
	image.ID.UUID, image.Checksum = "0000000b", plantest.Digest(ident.SHA512, "b")
	d.Config.Images["parrot"] = image
	same := plantest.ReadyCopy(image, image.Checksum)
	different := same
	different.ManifestDigest = plantest.Digest(ident.SHA256, "another")
	damaged := different
	damaged.State = model.Failed
	for _, test := range []struct {
		name      string
		copies    []model.Copy
		read      bool
		undeclare bool
		untrusted bool
	}{
		{"one node", []model.Copy{same}, false, false, true},
		{"two nodes agree", []model.Copy{same, same}, false, false, false},
		{"two nodes disagree", []model.Copy{same, different}, false, false, true},
		{"the bytes were read", []model.Copy{same}, true, false, false},
		{"without a checksum the node is trusted with the content", []model.Copy{same}, false, true, false},
		{"without a checksum two nodes disagree about the same bytes", []model.Copy{same, different}, false, true, true},
		{"without a checksum a damaged copy of the same bytes has another manifest", []model.Copy{same, damaged}, false, true, true},
	} {
		for i, ref := range others {
			delete(o.Disks[ref].Copies, image.ID)
			if i < len(test.copies) {
				o.Disks[ref].Copies[image.ID] = test.copies[i]
			}
		}
		o.ReadManifests = nil
		if test.read {
			o.ReadManifests = map[ident.Digest]ident.Digest{same.ManifestDigest: same.SHA512}
		}
		declared := image
		if test.undeclare {
			declared.Checksum = ident.Digest{}
		}
		d.Config.Images["parrot"] = declared
		got := proofRequests(d, o, cleanup, others, nil)
		var want model.Op = model.Cleanup
		if test.untrusted {
			want = model.Verify
		}
		for _, a := range plan.NewRound(d, o).Plan().Actions {
			if a.CopyRef() == cleanup.CopyRef() && (a.Op != want || a.VerifiesPeer() != test.untrusted) {
				t.Errorf("%s: the plan has %s from %s, want %s", test.name, a.Op, a.From, want)
			}
		}
		if len(got) != 1 || got[0].Local != (ident.CopyRef{}) || got[0].Untrusted != test.untrusted {
			t.Errorf("%s: got %+v, want untrusted %v", test.name, got, test.untrusted)
		}
	}
}

// Two nodes claim the only copies of the declared generation, with different manifests. If the first one does
// not send its copy, the other one is read.
func TestUnansweredCopyIsReadLast(t *testing.T) {
	d, o, _, others := surplusCopy(t)
	image := d.Config.Images["parrot"]
	image.ID.UUID, image.Checksum = "0000000b", plantest.Digest(ident.SHA512, "b")
	d.Config.Images["parrot"] = image
	for i, ref := range others {
		claimed := plantest.ReadyCopy(image, image.Checksum)
		claimed.ManifestDigest = plantest.Digest(ident.SHA256, []string{"c", "d"}[i])
		o.Disks[ref].Copies[image.ID] = claimed
	}
	for i, unanswered := range []map[ident.CopyRef]bool{nil, {{Disk: others[0], ID: image.ID}: true}} {
		o.Unanswered = unanswered
		want := ident.CopyRef{Disk: others[i], ID: image.ID}
		if !slices.ContainsFunc(plan.NewRound(d, o).Plan().Actions, func(a plan.Action) bool { return a.VerifiesPeer() && a.From == want }) {
			t.Errorf("%s is not read although %v did not answer", want, unanswered)
		}
	}
}

// A surplus copy has no chunk manifest, and its verification has failed. Without a checksum, the only other
// node could have made up the manifest that it publishes for these bytes, so its copy must be read first.
func TestCopyWithoutManifestDoesNotTrustASingleNode(t *testing.T) {
	d, o, cleanup, others := surplusCopy(t)
	image, ref := d.Config.Images["parrot"], cleanup.CopyRef()
	image.Checksum = ident.Digest{}
	d.Config.Images["parrot"] = image
	own := o.Disks[ref.Disk].Copies[ref.ID]
	own.ManifestDigest = ident.Digest{}
	o.Disks[ref.Disk].Copies[ref.ID] = own
	delete(o.Disks[others[1]].Copies, image.ID)
	o.Failures[ref] = model.Failure{Op: model.Verify, Attempts: 1, Since: o.Now, RetryAt: o.Now, Message: "input/output error"}
	if got := plan.NewRound(d, o).Plan().Actions; len(got) != 1 || !got[0].VerifiesPeer() {
		t.Errorf("the plan is %+v", got)
	}
}

// A surplus copy has no chunk manifest. It must be verified first, which makes one, because without it
// no other node can prove anything. If that fails, the deletion must not wait for it.
func TestSurplusCopyWithoutManifestIsVerifiedFirst(t *testing.T) {
	d, o, cleanup, _ := surplusCopy(t)
	ref := cleanup.CopyRef()
	own := o.Disks[ref.Disk].Copies[ref.ID]
	own.ManifestDigest = ident.Digest{}
	o.Disks[ref.Disk].Copies[ref.ID] = own
	planned := func() model.Op { return plan.NewRound(d, o).Plan().Actions[0].Op }
	if got := planned(); got != model.Verify {
		t.Errorf("the copy without a manifest: %s", got)
	}
	o.Failures[ref] = model.Failure{Op: model.Verify, Attempts: 1, Since: o.Now, RetryAt: o.Now, Message: "input/output error"}
	if got := planned(); got != model.Cleanup {
		t.Errorf("after a failed verification: %s", got)
	}
}

// A copy that was disproved counts for nothing. Its disk takes no copy, so that the copy on the next
// ranked disk is no surplus copy any more.
func TestUnprovenCopyDoesNotCount(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	o := plantest.EmptyDisks(c)
	claimed := plantest.ReadyCopy(image, image.Checksum)
	claimed.State, claimed.Unproven = model.Unknown, true
	o.Disks[refs[0]].Copies[image.ID] = claimed
	own := plantest.ReadyCopy(image, image.Checksum)
	own.SurplusSince = plantest.Now.Add(-99 * c.Settings.CleanupWaitInterval)
	o.Disks[refs[1]].Copies[image.ID] = own
	d, o := plantest.AsNode(refs[1].Node, c, o)
	if got := plan.NewRound(d, o).Plan().Actions; len(got) > 0 {
		t.Errorf("got %+v", got)
	}
}

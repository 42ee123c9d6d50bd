package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// A copy is deleted in these steps (rules D1, D2, H3, D3 and D4). The pure parts are in this file, the rest is in
// package reconcile:
//
//	withdraw   the holder publishes the copy as leaving; no node counts it any more
//	query      the holder queries the nodes that NodesToQuery returns, directly, and then
//	           requests the proofs that ProofRequests returns
//	confirm    WithResponses replaces earlier observations by the responses, and
//	           ConfirmDeletion plans once more with the result
//	delete     the holder deletes the copy, or cancels the withdrawal
//
// Each holder withdraws before it queries. If two holders withdraw at the same time, at least
// one of them therefore observes that the other copy is leaving, and cancels.

// NodesToQuery returns the nodes that must confirm a deletion, sorted. For an orphan, and for an older
// generation with a complete file, these are all other nodes, because a replica there may need the generation. For any other copy,
// they are the nodes whose copies the deletion counts on.
func (r *Round) NodesToQuery(a Action) []string {
	d, o := r.Desired, r.Observed
	image, declared := d.Config.Images[a.Image]
	if !declared || image.ID != a.CopyRef().ID && needsProofs(o, a) {
		return r.others
	}
	nodes := map[string]bool{}
	s := newImageState(r, image)
	for _, ref := range s.ready {
		if !d.Owns(ref.Disk) && s.countable(ref) {
			nodes[ref.Disk.Node] = true
		}
	}
	return slices.Sorted(maps.Keys(nodes))
}

// Response is the response of a node to a query about the images of one name.
type Response struct {
	ConfigDigest string // as Peer.ConfigDigest
	// Disks are the disks of that node with the copies of that name only.
	Disks map[ident.DiskRef]model.Disk
	// Proofs are the outcomes of the requested proofs. A copy without an outcome has proven nothing.
	Proofs map[ident.CopyRef]Proof
}

// WithResponses returns o with the responses to queries about the images of one name. The queries must
// have started after the withdrawal. Earlier observations cannot support the deletion any more:
// a queried node that did not respond is unreachable, and a node that was not queried confirms
// nothing. A copy counts only if it has proven that it has its bytes. What any node said earlier against the deletion,
// such as a use, still counts. responses also has the proofs of copies on this node.
func (o Observed) WithResponses(name string, queried []string, responses map[string]Response) Observed {
	o.Peers, o.Disks = maps.Clone(o.Peers), maps.Clone(o.Disks)
	o.proofs, o.unconfirmed = map[ident.CopyRef]Proof{}, map[string]bool{}
	for _, response := range responses {
		maps.Copy(o.proofs, response.Proofs)
	}
	for node, peer := range o.Peers {
		response, responded := responses[node]
		switch {
		case responded:
			peer = model.Peer{Queried: true, ConfigDigest: response.ConfigDigest, Omitted: peer.Omitted}
		case slices.Contains(queried, node):
			peer = model.Peer{Queried: true, Problem: "it did not respond to a query", UnreachableSince: peer.UnreachableSince, LastResponse: peer.LastResponse, Omitted: peer.Omitted}
		default:
			o.unconfirmed[node] = true
		}
		o.Peers[node] = peer
	}
	for ref, seen := range o.Disks {
		if _, other := o.Peers[ref.Node]; !other || o.unconfirmed[ref.Node] {
			continue
		}
		response, responded := responses[ref.Node]
		now, published := response.Disks[ref]
		if responded && !published {
			delete(o.Disks, ref)
			continue
		}
		o.Disks[ref] = withResponse(seen, name, now, responded)
	}
	o.FindDisputedDisks()
	return o
}

// withResponse returns disk d after a query about one image name. A response replaces the copies of
// that name by the copies in now. Without a response, the earlier copies of that name count as leaving.
func withResponse(d model.Disk, name string, now model.Disk, responded bool) model.Disk {
	if responded {
		d.UUID, d.Problem, d.ReadOnly, d.UsageUnknown = now.UUID, now.Problem, now.ReadOnly, now.UsageUnknown
		d.Needs = needsAfter(now, d.Needs, name)
	}
	earlier := d.Copies
	d.Copies = maps.Clone(d.Copies)
	for id, c := range d.Copies {
		if id.Name != name {
			continue
		}
		if responded {
			delete(d.Copies, id)
			continue
		}
		c.Leaving = true
		d.Copies[id] = c
	}
	for id, c := range now.Copies {
		if d.Copies == nil {
			d.Copies = map[ident.ID]model.Copy{}
		}
		c.ReadBackAt = earlier[id].ReadBackAt // translated to the clock of this node, unlike the response
		d.Copies[id] = c
	}
	return d
}

// needsAfter returns the needs on a disk after a response d about one image name. For other names the earlier needs
// stay. If the disk cannot be read, all earlier needs stay.
func needsAfter(d model.Disk, earlier map[ident.ID]model.Need, name string) map[ident.ID]model.Need {
	if d.Problem != "" {
		return earlier
	}
	needs := maps.Clone(d.Needs)
	if needs == nil {
		needs = map[ident.ID]model.Need{}
	}
	for id, one := range earlier {
		if id.Name != name {
			needs[id] = one
		}
	}
	return needs
}

// ConfirmDeletion returns nil if the deletion of a withdrawn copy may go on. Otherwise the error says why not. The
// observed state of the round must be a result of WithResponses.
func (r *Round) ConfirmDeletion(a Action) error {
	d, o := r.Desired, r.Observed
	if d.Allowed == schema.ObserveOnly {
		return errors.New("not deleted: the manager is in observe-only mode")
	}
	if !needsProofs(o, a) {
		r.Observed.proofs = nil
	}
	var actions []Action
	if image, declared := d.Config.Images[a.Image]; declared {
		actions = newImagePlanner(r, image).plan()
	} else {
		actions = planOrphans(r)
	}
	for _, now := range actions {
		switch {
		case now.CopyRef() != a.CopyRef():
		case now.Op == a.Op:
			return nil
		case now.Op.Deletes():
			return fmt.Errorf("not deleted: the reason changed to: %s", now.Text)
		default:
			return fmt.Errorf("not deleted: %s", now.Text)
		}
	}
	return errors.New("not deleted: the copy is no longer surplus")
}

// What another node says about its own copies is a claim. Before a deletion, each copy on which the deletion
// counts therefore proves that it has its bytes (H3), also a copy on this node. After the
// withdrawal the holder chooses a chunk at random, requests it, and compares it with a
// chunk manifest that it trusts. The holder does not send the withdrawn copy any more, so another node cannot
// get the chunk from it. The chunk is read past the page cache, also from a copy on this node: a medium may
// have lost bytes that the cache still has.

// Proof is how a copy answered the request to prove that it has its bytes.
type Proof struct {
	Result ProofResult
	// Problem is why the copy has not proven it; "" if it has.
	Problem string
}

// ProofResult is the outcome of a proof.
type ProofResult uint8

const (
	// ProofMissing: no chunk was received, for whatever reason. It says nothing about the copy.
	ProofMissing ProofResult = iota
	// ProofPassed: the copy has the requested chunk.
	ProofPassed
	// ProofWrong: other bytes were received. The copy does not have the bytes that it claims.
	ProofWrong
)

// ProofRequest is the request that a copy proves that it has its bytes.
type ProofRequest struct {
	Copy ident.CopyRef
	// Local is a copy on this node with the same bytes. The chunk is compared with its chunk
	// manifest; its file is not read. Zero: this node has no manifest of these bytes, and the
	// chunk is compared with the manifest that the other node serves.
	Local ident.CopyRef
	// Untrusted: the manifest that the other node serves may be made up. The proof cannot be made
	// before this node has read the copy in full.
	Untrusted bool
}

// needsProofs reports whether copies must prove that they have their bytes before a deletion. A partial file
// is no copy that can be lost. The deletion of an orphan needs no proofs either: the callers check that.
func needsProofs(o Observed, a Action) bool {
	return o.Disks[a.CopyRef().Disk].Copies[a.CopyRef().ID].State != model.Pending
}

// ProofRequests returns the fewest requests for proofs that are enough for a deletion, nil if the responses do not allow
// the deletion. The observed state of the round must be a result of WithResponses for responses without proofs. last has the
// copies that did not answer an earlier request. They are asked only if no other copies are left.
func (r *Round) ProofRequests(a Action, last map[ident.CopyRef]bool) []ProofRequest {
	d, o := r.Desired, r.Observed
	image, declared := d.Config.Images[a.Image]
	if !declared || !needsProofs(o, a) {
		return nil
	}
	r.Observed.proofs = nil
	return newImagePlanner(r, image).proofRequests(a.CopyRef(), last)
}

// proofRequests returns the requests for the deletion of a copy of this node: see Round.ProofRequests.
// It prefers copies on this node, and copies whose chunk manifest is trusted.
func (p imagePlanner) proofRequests(deleted ident.CopyRef, last map[ident.CopyRef]bool) []ProofRequest {
	var counted []ProofRequest // best ranked first
	for _, ref := range p.state.ready {
		if ref != deleted && p.state.countable(ref) {
			counted = append(counted, p.proofRequest(ref, deleted))
		}
	}
	for _, isWorse := range []func(ProofRequest) bool{ // the last criterion decides first
		func(r ProofRequest) bool { return r.Untrusted },
		func(r ProofRequest) bool { return !p.ix.Desired.Owns(r.Copy.Disk) },
		func(r ProofRequest) bool { return last[r.Copy] },
		func(r ProofRequest) bool { return !p.state.isEligible(r.Copy.Disk) },
	} {
		counted = moveBack(counted, isWorse)
	}
	missing := p.requiredWithout(deleted)
	var requests []ProofRequest
	for _, r := range counted {
		eligible := p.state.isEligible(r.Copy.Disk)
		if missing.total <= 0 && missing.placed <= 0 || missing.placed > 0 && !eligible {
			break
		}
		requests = append(requests, r)
		missing.total--
		if eligible {
			missing.placed--
		}
	}
	if missing.placed > 0 || missing.total > 0 {
		return nil
	}
	return requests
}

// readFirst returns the deletion of a surplus copy, or the action that must come before it. A proof needs
// a chunk manifest. If this node has no chunk manifest for the bytes of the other copy, and the other node
// may have made up the manifest that it publishes, a proof shows nothing. Then this node first reads that
// copy in full, once.
func (p *surplusPlanner) readFirst(deletion Action) Action {
	ref := deletion.CopyRef()
	if !needsProofs(p.ix.Observed, deletion) {
		return deletion
	}
	for _, r := range p.proofRequests(ref, p.ix.Observed.Unanswered) {
		c := p.ix.copyAt(r.Copy)
		switch {
		case !r.Untrusted:
		case c.ManifestDigest.IsZero(): // its node makes one
			return wait(ref, deletion.With(CodeUnproven, ", but the copy on %s has no chunk manifest yet", r.Copy.Disk)).asWaitFor(deletion.Op, false)
		default:
			reason := deletion.With(CodeUnproven, "; before that the copy on %s is read in full, because no chunk can prove that it has its bytes", r.Copy.Disk)
			return p.ix.withSource(p.ix.attempt(model.Verify, ref, reason, c.Size), r.Copy).asWaitFor(deletion.Op, false)
		}
	}
	return deletion
}

// requiredWithout returns how many copies must remain after the deletion of a copy of this node.
func (p imagePlanner) requiredWithout(deleted ident.CopyRef) readyCount {
	required := readyCount{placed: p.placement.requiredCopies()}
	if slices.Contains(p.state.ready, deleted) {
		required.total = p.placement.copies
	}
	return required
}

// missingOnOwnDisks returns requiredWithout minus the ready copies that this node keeps. The deletion must
// count on that many copies on other nodes.
func (p imagePlanner) missingOnOwnDisks(deleted ident.CopyRef) readyCount {
	required := p.requiredWithout(deleted)
	own := p.state.countReady(func(ref ident.CopyRef) bool { return ref != deleted && p.ix.Desired.Owns(ref.Disk) })
	return readyCount{total: required.total - own.total, placed: required.placed - own.placed}
}

// proofRequest returns the request for the proof of a copy, on which the deletion of another copy
// counts.
func (p imagePlanner) proofRequest(ref, deleted ident.CopyRef) ProofRequest {
	digest := p.ix.copyAt(ref).SHA512
	r := ProofRequest{Copy: ref, Local: p.ownManifest(digest, deleted)}
	r.Untrusted = r.Local == (ident.CopyRef{}) && !p.trustsManifest(ref, deleted)
	return r
}

// ownManifest returns a copy of this node whose chunk manifest describes the bytes with the digest,
// zero if there is none. The manifest of a damaged copy describes its bytes from before the damage.
func (p imagePlanner) ownManifest(digest ident.Digest, deleted ident.CopyRef) ident.CopyRef {
	sameBytes, _ := p.ix.readyWith(digest)
	for _, ref := range slices.Concat([]ident.CopyRef{deleted}, p.ix.ownCopies(deleted.ID.Name), sameBytes) {
		c := p.ix.copyAt(ref)
		if (c.State == model.Ready || c.State == model.Failed) && c.SHA512 == digest && !c.ManifestDigest.IsZero() {
			return ref
		}
	}
	return ident.CopyRef{}
}

// trustsManifest reports whether this node trusts that the chunk manifest of the copy at ref describes the bytes with its digest.
// It does if another node has the same manifest for this digest, or if this node has read the bytes. Without a declared checksum,
// it trusts every node with the content, and so with the manifest, except in two cases. If another node has another manifest for
// this digest, one of the two is made up. If the deleted copy has this digest, it may be the last copy with these bytes.
func (p imagePlanner) trustsManifest(ref, deleted ident.CopyRef) bool {
	c := p.ix.copyAt(ref)
	if c.ManifestDigest.IsZero() {
		return false
	}
	if p.ix.Observed.ReadManifests[c.ManifestDigest] == c.SHA512 {
		return true
	}
	contradicted := false
	for _, other := range p.ix.peerCopies(ref.ID.Name) {
		second := p.ix.copyAt(other)
		switch {
		case other.Disk.Node == ref.Disk.Node || second.SHA512 != c.SHA512 || second.ManifestDigest.IsZero() || second.Unproven:
		case second.ManifestDigest != c.ManifestDigest:
			contradicted = true // also by a damaged copy: its manifest describes its bytes from before
		case second.State == model.Ready:
			return true
		}
	}
	return !p.state.digestDeclared() && !contradicted && p.ix.copyAt(deleted).SHA512 != c.SHA512
}

// hasProven reports whether a copy has proven that it has its bytes. While no deletion is confirmed, no
// proof is needed.
func (v *view) hasProven(ref ident.CopyRef) bool {
	return v.Observed.proofs == nil || v.Observed.proofs[ref].Result == ProofPassed
}

// Unproven is why this node neither counts on nor reads a copy on another node: that node has sent wrong
// bytes, or none for a long time.
var Unproven = model.Reason{Code: CodeUnproven, Text: "it did not prove that it has its bytes: other bytes were received, or none"}

// unprovenCopies returns why a deletion does not count on copies of the declared generation that claim to be
// ready.
func (s *imageState) unprovenCopies() (reasons []string) {
	for _, ref := range s.ix.copiesNamed(s.image.ID.Name) {
		c := s.ix.copyAt(ref)
		switch {
		case ref.ID != s.image.ID || !s.ix.Desired.Owns(ref.Disk) && !s.ix.sameConfig(ref.Disk.Node):
		case c.SameAs != (ident.DiskRef{}):
			reasons = append(reasons, fmt.Sprintf("the copy on %s does not count: it is the copy on %s, because both disks show its folder", ref.Disk, c.SameAs))
		case c.Unproven:
			reasons = append(reasons, fmt.Sprintf("the copy on %s does not count: %s", ref.Disk, Unproven.Text))
		case c.State == model.Ready && !c.Leaving && !s.ix.hasProven(ref) && s.ix.Observed.proofs[ref].Problem != "":
			reasons = append(reasons, fmt.Sprintf("the copy on %s does not count: it did not prove that it has its bytes: %s", ref.Disk, s.ix.Observed.proofs[ref].Problem))
		}
	}
	return reasons
}

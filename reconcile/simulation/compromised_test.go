package simulation

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// liar runs on a compromised node instead of its manager (H3). It has valid credentials, and no bytes of
// any image: its disks are detached. It responds to each node in a random way, which changes after a
// random time. The protocol prevents only two things: the liar cannot publish a state in the name of
// another node, and it cannot read a copy that is leaving.
type liar struct {
	node  *node
	rng   rng
	moods map[string]*mood // by the node that receives the responses
	// chunks are the numbers of the chunks that it has, by the digest of the chunk manifest: the chunks
	// that a node requested from it before, and chunk 0 of each image.
	chunks map[ident.Digest]map[uint64]bool
	// bounded: no claim of the liar may delay an image for longer than a node that does not respond.
	bounded bool
	// neverReady: while it is bounded, it claims no ready copies.
	neverReady bool
	// steady: it does not change its moods any more.
	steady bool
	alike  *mood      // the mood for every node; nil: each node has a mood of its own
	only   *claimKind // the only kind of claim that it makes; nil: any kind
}

// mood decides how a liar responds to one node for a random time.
type mood struct {
	claims  map[string]claimKind // by image name
	digest  digestKind
	delay   time.Duration // of each response
	silent  bool          // no response
	bytes   bytesKind
	forged  bool // it publishes forged chunk manifests, and serves bytes that match them
	flood   bool // a new state for each request, with many copies
	mirror  *node
	ready   time.Duration // when the claimed copies were verified; a new time changes the published state
	uuids   map[string]string
	problem string // of its disks
	foreign bool   // it also publishes disks that are not declared for it

	published *publication
	of        string // the config digest in published
	polls     []*poll
}

// claimKind is what a liar claims about an image on one of its disks.
type claimKind int

const (
	claimNothing claimKind = iota
	claimReady
	claimUsed     // ready, and in use
	claimConflict // ready, with another digest
	claimLeaving
	claimUnknown
	claimDamaged
	claimPartial
	claimNeed  // replicas on the disk need it
	claimFinal // a failure without another attempt
	claimRetry // a failure with another attempt in many years
	claimDiskFailure
	claimRejects
	claimRejectsForNow
	// claimWorking claims a running job. Other nodes wait for such a job for up to 24 hours
	// (docs/security.md).
	claimWorking
	claimKinds
)

// isReady reports whether the claim is a ready copy with any digest.
func (k claimKind) isReady() bool {
	return k == claimReady || k == claimUsed || k == claimConflict || k == claimLeaving
}

// isFile reports whether the claim is a file that is ready, or that the node still verifies. A disk with
// such a file remains a desired disk even if it takes no new copies (P3).
func (k claimKind) isFile() bool { return k.isReady() || k == claimUnknown }

// digestKind is the kind of config digest that a liar publishes.
type digestKind int

const (
	sameDigest digestKind = iota
	noDigest
	otherDigest
)

// bytesKind is how a liar responds to requests for bytes.
type bytesKind int

const (
	noBytes bytesKind = iota
	wrongBytes
	relayedBytes // bytes that the liar requests from another node
)

// compromise replaces the manager of a node by a liar. The copies of the node are lost.
func (c *cluster) compromise(m *node) {
	m.crash()
	c.logf(m.name, "is compromised")
	c.detachAll(m)
	m.starts++
	m.up, m.process = true, process{}
	m.liar = &liar{node: m, rng: c.adversity, moods: map[string]*mood{}, chunks: map[ident.Digest]map[uint64]bool{}}
	c.liar = m.liar
}

// detachAll detaches the disks of a node.
func (c *cluster) detachAll(m *node) {
	for _, ref := range c.diskRefs() {
		if d := c.disks[ref]; ref.Node == m.name && d.Attached {
			c.recordLosses(ref, d)
			d.Attached = false
		}
	}
}

// repairCompromised replaces the liar by a manager. The node starts again, with its old disks or with
// empty ones.
func (c *cluster) repairCompromised() {
	m, empty := c.liar.node, c.oneIn(2)
	c.logf(m.name, "is repaired, %s", map[bool]string{false: "with its disks", true: "with empty disks"}[empty])
	for _, ref := range c.diskRefs() {
		if ref.Node != m.name {
			continue
		}
		if empty {
			c.diskCount++
			c.disks[ref] = NewDisk(newUUID(c.diskCount), c.library, diskSize)
			c.disks[ref].OtherFiles = -100 * gib
		}
		c.disks[ref].reattach(true)
	}
	c.liar, m.liar = nil, nil
	m.up, m.process = false, process{}
	m.starts++
	m.start()
}

// moodFor returns the present mood of the liar for a node.
func (l *liar) moodFor(to *node) *mood {
	if l.moods[to.name] == nil {
		l.changeMood(to)
	}
	return l.moods[to.name]
}

// changeMood draws a new mood for a node now, and again after a random time.
func (l *liar) changeMood(to *node) {
	c, last := l.node.c, l.moods[to.name]
	m, wait := l.drawMood()
	if l.alike != nil {
		*m = *l.alike
	}
	l.moods[to.name] = m
	if last != nil {
		for _, p := range last.polls {
			l.handlePoll(p)
		}
	}
	c.after(wait, func() {
		if c.liar == l && l.moods[to.name] == m && !l.steady {
			l.changeMood(to)
		}
	})
}

// drawMood draws a mood, and how long it lasts.
func (l *liar) drawMood() (m *mood, lasts time.Duration) {
	c := l.node.c
	m = &mood{claims: map[string]claimKind{}, uuids: map[string]string{}, ready: c.now}
	for _, name := range plantest.ImageNames {
		m.claims[name] = l.drawClaim()
	}
	if l.rng.oneIn(3) { // the same for all images
		k := l.drawClaim()
		for name := range m.claims {
			m.claims[name] = k
		}
	}
	m.digest = pick(l.rng, sameDigest, sameDigest, sameDigest, noDigest, otherDigest)
	m.bytes = pick(l.rng, noBytes, wrongBytes, relayedBytes)
	m.forged, m.foreign, m.silent = l.rng.oneIn(2), l.rng.oneIn(3), l.rng.oneIn(12)
	if l.rng.oneIn(6) {
		m.delay = time.Duration(l.rng.Int64N(int64(90 * time.Second)))
	}
	if l.rng.oneIn(8) {
		m.problem = "no disk here"
	}
	if l.rng.oneIn(3) {
		m.mirror = c.nodes[pick(l.rng, c.names...)]
	}
	for name := range l.node.ownDisks {
		if l.rng.oneIn(4) {
			m.uuids[name] = c.disks[pick(l.rng, c.diskRefs()...)].UUID
		}
	}
	lasts = c.randomTime(0, 4*time.Minute)
	if m.flood = l.rng.oneIn(40) && !l.steady; m.flood { // a flood causes a round of each node with each request
		lasts = c.randomTime(0, 10*time.Second)
	}
	return m, lasts
}

func (l *liar) drawClaim() claimKind {
	if l.only != nil {
		return *l.only
	}
	for {
		k := claimKind(l.rng.IntN(int(claimKinds)))
		if l.rng.oneIn(3) {
			k = claimReady
		}
		if !l.bounded || k != claimWorking && !(l.neverReady && k.isReady()) {
			return k
		}
	}
}

// mayClaim reports whether the bounded liar can make a claim about an image for which such is true.
func (l *liar) mayClaim(image string, such func(claimKind) bool) bool {
	if l.only == nil && !l.steady {
		return true // it changes its claims
	}
	for _, m := range l.moods {
		mirrors := m.mirror != nil || !l.steady // without a claim of its own, it repeats the copies of another node
		if k := m.claims[image]; such(k) || k == claimNothing && mirrors {
			return true
		}
	}
	return false
}

// bound limits the liar from now on: none of its claims may delay an image for longer than a node that
// does not respond. So a bounded liar does not claim that a job runs: other nodes wait for such a job for
// 24 hours, because they cannot distinguish it from a slow download. Other nodes wait for an hour for a
// node that always responds 429. No liar in the simulation does this.
func (l *liar) bound() {
	l.bounded, l.neverReady = true, l.rng.oneIn(2)
	if l.rng.oneIn(2) {
		l.only = new(pick(l.rng, claimFinal, claimRetry, l.drawClaim(), l.drawClaim()))
	}
	if l.steady = l.rng.oneIn(2); l.steady && l.rng.oneIn(2) {
		l.alike, _ = l.drawMood()
		l.alike.digest, l.alike.silent, l.alike.delay, l.alike.problem = sameDigest, false, 0, ""
	}
	for _, name := range l.node.c.names {
		if m := l.moods[name]; m != nil {
			l.changeMood(l.node.c.nodes[name])
		}
	}
}

// handlePoll responds to the request of a node for the published state.
func (l *liar) handlePoll(p *poll) {
	c := l.node.c
	m := l.moodFor(p.from)
	s := l.publication(m, p.from)
	switch {
	case m.silent:
	case s.number != p.known:
		c.after(m.delay, func() { p.respond(s) })
	default:
		m.polls = append(m.polls, p)
		c.after(pollWait, func() {
			if i := slices.Index(m.polls, p); i >= 0 {
				m.polls = slices.Delete(m.polls, i, i+1)
				p.respond(nil)
			}
		})
	}
}

// publication returns the state that the liar publishes to a node.
func (l *liar) publication(m *mood, to *node) *publication {
	digest := l.digest(m, to)
	if m.published == nil || m.of != digest || m.flood {
		l.node.c.publications++
		m.published, m.of = &publication{l.node.c.publications, l.state(m, to, digest)}, digest
	}
	return m.published
}

func (l *liar) digest(m *mood, to *node) string {
	switch m.digest {
	case noDigest:
		return ""
	case otherDigest:
		return "another configuration"
	}
	return to.appliedDigest()
}

// respond sends the response to a direct query.
func (l *liar) respond(w *runningJob, send func(model.Node)) {
	c, to := l.node.c, w.deletion.node
	m := l.moodFor(to)
	if m.silent {
		return
	}
	s := l.state(m, to, l.digest(m, to))
	s.Mark = w.query.mark
	for _, one := range s.Disks {
		maps.DeleteFunc(one.Copies, func(id ident.ID, _ model.Copy) bool { return id.Name != w.key.ID.Name })
	}
	w.deletion.responded[l.node.name], w.deletion.deceived = true, true
	c.after(m.delay, func() { send(s) })
}

// config returns the configuration that a node has applied. If there is none, it returns the latest one.
func (l *liar) config(to *node) schema.Config {
	if to.applied != nil {
		return to.applied.config
	}
	return l.node.c.latest().config
}

// state returns what the liar claims to a node.
func (l *liar) state(m *mood, to *node, digest string) model.Node {
	c, config := l.node.c, l.config(to)
	s := model.Node{Version: model.Version, Node: l.node.name, ConfigDigest: digest, Clock: to.wallNow(), Disks: map[string]model.Disk{}}
	names := slices.Sorted(maps.Keys(config.Nodes[l.node.name].Disks))
	if m.foreign {
		for i, ref := range c.diskRefs() { // the uuid of each disk of the cluster
			name := fmt.Sprintf("foreign%d", i)
			names, m.uuids[name] = append(names, name), c.disks[ref].UUID
		}
	}
	for _, name := range names {
		one := model.Disk{UUID: m.uuids[name], Problem: m.problem, Space: model.Space{Total: 1 << 50, Free: 1 << 50}}
		if one.UUID == "" {
			one.UUID = "disk of " + l.node.name + "/" + name
		}
		if one.Problem == "" {
			one.Copies = model.NewCopies(l.copies(m, to, config)...)
			for id, v := range one.Copies { // a time in the future is not believed
				if now := to.wallNow(); v.ReadBackAt.After(now) {
					v.ReadBackAt = now
					one.Copies[id] = v
				}
			}
		}
		s.Disks[name] = one
	}
	return s
}

// longTime is longer than any wait.
const longTime = 9e8 * time.Second

// copies returns the copies that the liar claims to have on each of its disks.
func (l *liar) copies(m *mood, to *node, config schema.Config) []model.Copy {
	copies := map[ident.ID]model.Copy{}
	if m.mirror != nil && m.mirror.published != nil { // the copies of another node, also orphans and old generations
		for _, one := range m.mirror.published.state.Disks {
			for _, v := range one.Copies {
				v.Leaving, v.Job, v.Failure, v.Rejection = false, "", nil, ""
				if l.neverReady && v.State == model.Ready {
					continue
				}
				copies[v.ID] = v
			}
		}
	}
	for _, name := range plantest.ImageNames {
		image, declared := config.Images[name]
		if !declared {
			continue
		}
		if v, any := l.claim(m, to, config, image); any {
			copies[image.ID] = v
		}
	}
	if m.flood {
		for i := range 30 {
			id := ident.ID{Name: fmt.Sprintf("flood%d", i), UUID: fmt.Sprintf("%08x", l.rng.Uint32())}
			copies[id] = model.Copy{ID: id, State: model.Ready, Owned: true, SHA512: l.node.c.digest(id.UUID)}
		}
	}
	return slices.SortedFunc(maps.Values(copies), func(a, b model.Copy) int { return ident.ID.Compare(a.ID, b.ID) })
}

// forgery returns the content that a liar invents for an image. The liar has these bytes.
func (l *liar) forgery(image schema.Image) string { return "made up for " + image.ID.String() }

// isForgery reports whether a liar invented the content.
func isForgery(content string) bool { return strings.HasPrefix(content, "made up for ") }

// claim returns what the liar claims about a declared image.
func (l *liar) claim(m *mood, to *node, config schema.Config, image schema.Image) (v model.Copy, any bool) {
	c := l.node.c
	v = model.Copy{ID: image.ID, State: model.Pending, Owned: true}
	content := l.forgery(image)
	if ready := c.readyCopies(config, image); len(ready) > 0 {
		content = c.copyAt(ready[0]).Recorded
	}
	if !image.Checksum.IsZero() {
		content = c.contentOf(image.Checksum)
	}
	kind, source := m.claims[image.ID.Name], firstCopyOf(image)
	failure := &model.Failure{Op: source, Message: "not found", Attempts: 3, Since: to.wallNow()}
	switch kind {
	case claimNothing:
		return v, false
	case claimConflict:
		l.fill(&v, m, l.forgery(image), image)
	case claimReady, claimUsed, claimLeaving:
		l.fill(&v, m, content, image)
		v.Leaving = kind == claimLeaving
		if kind == claimUsed {
			v.UsedBy = "used by a replica"
		}
	case claimUnknown:
		v.State, v.Message = model.Unknown, "changed"
	case claimDamaged:
		l.fill(&v, m, content, image)
		v.State, v.Message, v.DamagedAt = model.Failed, "damaged", startTime.Add(m.ready)
	case claimWorking:
		v.Job, v.PartBytes, v.PartTotal, v.State = source, gib/4, gib, model.InProgress
	case claimNeed:
		v.Owned, v.Need = false, &model.Need{By: "replica vol-1"}
	case claimPartial:
		v.PartBytes, v.PartTotal = gib/4, gib
	case claimFinal:
		failure.Final, v.Failure = true, failure
	case claimRetry:
		failure.RetryAt, v.Failure = to.wallNow().Add(longTime), failure
	case claimDiskFailure:
		failure.Fault, failure.RetryAt, failure.Since, v.Failure = model.FaultDisk, to.wallNow().Add(longTime), to.wallNow().Add(-longTime), failure
	case claimRejects:
		v.Rejection = "not enough space"
	case claimRejectsForNow:
		v.Rejection, v.RejectionTemporary = "no replica", true
	}
	return v, true
}

// firstCopyOf returns the operation that creates the first copy of an image.
func firstCopyOf(image schema.Image) model.Op {
	switch s := image.Source; {
	case s.Restore != nil:
		return model.Restore
	case s.ExportFromVolume != nil:
		return model.Export
	case s.Clone != nil:
		return model.Clone
	case s.Upload != nil:
		return model.Upload
	}
	return model.Download
}

// fill sets v to a ready copy with the given content.
func (l *liar) fill(v *model.Copy, m *mood, content string, image schema.Image) {
	p := l.node.c.library.Properties(content)
	v.ReadBackAt = startTime.Add(1000 * time.Hour)
	v.State, v.Format, v.Size, v.RealSize, v.VirtualSize, v.SHA512 = model.Ready, p.Format, p.Size, p.RealSize, p.VirtualSize, p.SHA512
	v.VerifiedAt = startTime.Add(m.ready)
	if v.ManifestDigest = p.ManifestDigest; m.forged {
		v.ManifestDigest = l.node.c.library.Properties(l.forgery(image)).ManifestDigest
	}
}

// relaySource returns a content for which is returns true, and that the liar can read from another node.
// The copy there may also belong to another image with the same bytes.
func (l *liar) relaySource(is func(content string) bool) (content string, ok bool) {
	c := l.node.c
	for _, ref := range c.diskRefs() {
		if ref.Node == l.node.name || !c.reachable(l.node.name, ref.Node) || c.sendsWrongBytes[ref.Node] {
			continue
		}
		for _, id := range c.disks[ref].IDs() {
			key := ident.CopyRef{Disk: ref, ID: id}
			if s := c.copyAt(key); s.Ready() && s.File == s.Recorded && is(s.Recorded) && c.nodes[ref.Node].loop != nil && !c.nodes[ref.Node].leaving(key) {
				return s.Recorded, true
			}
		}
	}
	return "", false
}

// prove responds to the request for a chunk of a copy that has the given chunk manifest. ok is false if
// the liar does not respond.
func (l *liar) prove(t system.ProofTask, manifest ident.Digest, of *runningJob) (p plan.Proof, ok bool) {
	c, m := l.node.c, l.moodFor(of.deletion.node)
	hasManifest := func(content string) bool { return c.library.Properties(content).HasManifest(manifest) }
	if l.chunks[manifest] == nil {
		l.chunks[manifest] = map[uint64]bool{0: true}
	}
	had := l.chunks[manifest][t.Secret]
	l.chunks[manifest][t.Secret] = true // the liar reads the chunk later from another node
	if image := l.config(of.deletion.node).Images[t.Copy.ID.Name]; hasManifest(l.forgery(image)) {
		of.deletion.recordClaim(t.Copy, l.forgery(image), of.deletion.node.appliedDigest())
		return plan.Proof{Result: plan.ProofPassed}, true
	}
	if had {
		return plan.Proof{Result: plan.ProofPassed}, true
	}
	switch m.bytes {
	case relayedBytes:
		if content, ok := l.relaySource(hasManifest); ok {
			of.deletion.recordClaim(t.Copy, content, of.deletion.node.appliedDigest())
			return plan.Proof{Result: plan.ProofPassed}, true
		}
	case wrongBytes:
		return plan.Proof{Result: plan.ProofWrong, Problem: peer.ErrWrongChunk.Error()}, true
	}
	return plan.Proof{Problem: "not found"}, !m.silent
}

// sources returns the copies on the node of the liar that a job may read.
func (l *liar) sources(w *runningJob) (from []peer.Source) {
	if l == nil || w.sources == nil {
		return nil
	}
	for _, s := range w.sources() {
		if s.Node == l.node.name && l.node.c.reachable(w.key.Disk.Node, s.Node) {
			from = append(from, s)
		}
	}
	return from
}

// send decides what a job receives that transfers a content with the liar as a source. right is the number
// of other sources with the right bytes, and upstream is true if the upstream serves ranges of the right
// bytes. send returns the content that the job receives.
func (l *liar) send(w *runningJob, from []peer.Source, right int, upstream bool) (content string, err error) {
	c, m := l.node.c, l.moodFor(l.node.c.nodes[w.key.Disk.Node])
	wrong := func(err error) error { return &job.WrongSourcesError{Sources: from, Err: err} }
	digest := c.digest(w.content)
	forged := !c.library.Properties(w.content).HasManifest(from[0].ManifestDigest)
	if isForgery(w.content) { // the liar has these bytes
		return w.content, nil
	}
	switch {
	case forged && m.bytes != noBytes && (right == 0 || right == 1 && c.oneIn(2)):
		// The job chose the chunk manifest of the liar, and the chunks of the liar match this manifest.
		return "", wrong(&disk.ChecksumError{Want: digest, Got: c.digest(l.forgery(w.image))})
	case right > 0, upstream && !forged && m.bytes != noBytes: // with the right manifest, the job gets the bytes from another source
		return w.content, nil
	case m.bytes == relayedBytes && !forged:
		if _, ok := l.relaySource(func(content string) bool { return content == w.content }); ok {
			return w.content, nil
		}
	case m.bytes == wrongBytes:
		return "", wrong(&fetch.Error{Class: fetch.Network, Err: errors.New("a chunk does not match its manifest")})
	}
	return "", &fetch.Error{Class: fetch.Network, Err: errors.New("the peer that has the bytes does not send them")}
}

// verify responds to a node that reads the whole copy of the liar.
func (l *liar) verify(w *runningJob) error {
	m := l.moodFor(l.node.c.nodes[w.key.Disk.Node])
	relayed := false
	if m.bytes == relayedBytes {
		_, relayed = l.relaySource(func(content string) bool { return content == w.content })
	}
	switch {
	case isForgery(w.content), relayed:
		w.verifiedAll(l.node.c.library.Properties(w.content))
		if m.forged && !isForgery(w.content) { // it publishes another chunk manifest
			return &fetch.Error{Class: fetch.Network, Err: job.ErrOtherBytes}
		}
		return nil
	case m.bytes == wrongBytes:
		return &fetch.Error{Class: fetch.Network, Err: job.ErrOtherBytes}
	}
	return &fetch.Error{Class: fetch.Network, Err: errors.New("the copy is not sent")}
}

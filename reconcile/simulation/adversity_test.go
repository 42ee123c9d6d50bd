package simulation

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/schema"
)

var clusterKind = flag.String("cluster.kind", "", "nodes that the others cannot rely on: none, peer (one is compromised), skew (some do not follow the configuration) or both; by default, each seed has one of the four")

// adversity is which nodes of a cluster the others cannot rely on.
type adversity struct {
	peer bool // one node is compromised
	skew bool // some nodes respond, and do not follow the configuration
}

var adversities = map[string]adversity{"none": {}, "peer": {peer: true}, "skew": {skew: true}, "both": {true, true}}

// drawAdversity draws the adversity of a cluster, and when it begins. A cluster of fewer than three nodes has
// none: with two, no image can become ready without the one that the other cannot rely on.
func (c *cluster) drawAdversity() adversity {
	kind := *clusterKind
	if kind == "" {
		kind = pick(c.adversity, "none", "none", "none", "none", "peer", "peer", "peer", "skew", "skew", "skew", "both")
	}
	a, known := adversities[kind]
	if !known {
		panic("-cluster.kind is " + kind)
	}
	if len(c.names) < 3 {
		return adversity{}
	}
	if a.skew && c.adversity.oneIn(3) { // from the start of the cluster
		m := c.nodes[pick(c.adversity, c.names...)]
		m.dirEmpty = true
		c.skewed[m.name] = true
		c.after(c.randomTime(0, 30*time.Minute), func() { c.endSkew(m) })
	}
	if a.peer {
		c.after(c.randomTime(0, 15*time.Minute), func() {
			if m := c.nodes[pick(c.adversity, c.names...)]; !c.skewed[m.name] && c.liar == nil && !c.healed {
				c.compromise(m)
			}
		})
	}
	return a
}

// randomTime is between for decisions about adversity.
func (c *cluster) randomTime(least, most time.Duration) time.Duration {
	return least + time.Duration(c.adversity.Int64N(int64(most-least)+1))
}

// skewRandomly lets a node not follow the configuration for a while, or until the end of all faults. At most
// a third of the nodes do that.
func (c *cluster) skewRandomly() {
	m := c.nodes[pick(c.adversity, c.names...)]
	if m.liar != nil || c.skewed[m.name] || len(c.skewed) >= max(1, len(c.names)/3) {
		return
	}
	c.skew(m)
	if c.adversity.oneIn(2) {
		c.after(c.randomTime(time.Minute, 30*time.Minute), func() { c.endSkew(m) })
	}
}

// skew lets a node not follow the configuration: its directory is stale, broken or emptied, or it starts
// with a broken or an empty one. It goes on to respond.
func (c *cluster) skew(m *node) {
	c.skewed[m.name] = true
	how := pick(c.adversity, "stale", "broken", "emptied", "broken at its start", "empty at its start")
	c.logf(m.name, "does not follow the configuration: %s", how)
	m.dirStale = true
	switch how {
	case "broken":
		m.breakDir()
	case "emptied":
		m.dirEmpty = true
		m.reread = true
		m.requestRound()
	case "broken at its start":
		m.dirBroken = true
		m.crash()
		m.start()
	case "empty at its start":
		m.dirEmpty = true
		m.crash()
		m.start()
	}
}

// endSkew lets a node follow the configuration again.
func (c *cluster) endSkew(m *node) {
	if !c.skewed[m.name] {
		return
	}
	delete(c.skewed, m.name)
	c.logf(m.name, "follows the configuration again")
	m.dirStale = false
	if m.dirEmpty {
		m.dirEmpty, m.next = false, m.directory
		m.requestRound()
	}
	m.repairDir()
	m.receive(c.latest())
}

// checkAdversity checks, when all faults are over, that the nodes that can be relied on do not wait for the
// others: each image becomes ready on them, and their disks stay in service. Then it ends the adversity: the
// skewed nodes follow, and the compromised node is repaired or removed from the configuration.
func (c *cluster) checkAdversity() {
	if !c.adverse.peer && !c.adverse.skew {
		return
	}
	if c.adverse.skew && len(c.skewed) == 0 {
		if m := c.nodes[pick(c.adversity, c.names...)]; m.liar == nil {
			c.skew(m)
		}
	}
	if c.liar != nil {
		c.liar.bound()
	}
	c.runUntil(c.now + c.randomTime(0, 5*time.Minute))
	c.declareFresh()
	c.checkProgress()
	if len(c.violations) == 0 {
		c.checkService()
	}
	for _, name := range c.names {
		c.endSkew(c.nodes[name])
	}
	if c.liar == nil || len(c.violations) > 0 {
		return
	}
	if name := c.liar.node.name; c.adversity.oneIn(3) && len(c.latest().config.Nodes) > 3 {
		c.logf("", "%s, which is compromised, is removed from the configuration", name)
		c.declare(c.editedConfig(func(config *schema.Config) { delete(config.Nodes, name) }))
	} else {
		c.repairCompromised()
	}
	c.healedAt = c.now
}

// declareFresh declares new generations of some images, and new images, with sources that every node can
// read.
func (c *cluster) declareFresh() {
	c.quick = true
	c.declare(c.editedConfig(func(config *schema.Config) {
		for i, name := range plantest.ImageNames {
			if c.adversity.oneIn(2) && (c.liar == nil || c.adversity.oneIn(2)) {
				continue
			}
			at := fmt.Sprintf("https://example.com/fresh%d/%s", i, name)
			c.served[at] = pick(c.adversity, plantest.Letters...)
			source := schema.Source{Download: &schema.Download{URL: at, Unpack: schema.UnpackNone}}
			if c.adversity.oneIn(2) {
				source = schema.Source{Restore: &schema.Restore{BackupURL: at}}
			}
			m := schema.Image{Copies: pick(c.adversity, 1, 1, 2, 3), Source: source}
			if c.liar != nil || c.adversity.oneIn(2) {
				m.Checksum = c.digest(c.served[at])
			}
			m.ID = ident.ID{Name: name, UUID: schema.UUID(name, m.Checksum, m.Source)}
			config.Images[name] = m
		}
	}))
	c.quick = false
}

// Limits of the time until an image is ready on the nodes that can be relied on, after all other faults.
const (
	transferTime = 10 * time.Minute
	// A skewed node is waited for during the recovery interval.
	skewLimit = 3*time.Minute + transferTime
	// A compromised one can fail a transfer, whose next attempt is within 5 minutes, and be waited for
	// during the recovery interval as a disk that has its turn, and as a source.
	liarLimit = 3 * skewLimit
)

// checkProgress waits until each image is ready on the nodes that can be relied on.
func (c *cluster) checkProgress() {
	limit := skewLimit
	if c.liar != nil {
		limit = liarLimit
	}
	for began := c.now; len(c.violations) == 0; {
		c.runUntil(c.now + 2*time.Minute)
		lacking := c.lackingImage()
		switch {
		case lacking == "" && c.now-began >= 4*time.Minute:
			return
		case c.now-began > limit:
			c.violation("progress", "%s after %v", lacking, c.now-began)
		}
	}
}

// lackingImage returns an image that has too few ready copies on the nodes that can be relied on, "" if there
// is none. With a compromised node, only images with a declared checksum count.
func (c *cluster) lackingImage() string {
	config := c.latest().config
	for _, name := range slices.Sorted(maps.Keys(config.Images)) {
		image := config.Images[name]
		if image.Source.Download == nil && image.Source.Restore == nil || c.liar != nil && image.Checksum.IsZero() {
			continue
		}
		required, have := c.requiredReady(config, image)
		if have < required {
			return fmt.Sprintf("%s has %d of %d copies on nodes that can be relied on", image.ID, have, required)
		}
	}
	return ""
}

// requiredReady returns how many ready copies an image must have, and how many it has. A copy on a skewed node
// counts. A compromised node may claim to have its copies, or to be about to create them, so that nobody creates
// these elsewhere. On a disk that takes no new copies, only a claim to have a file does that. Such a place can be
// that of a failed disk: see failedLast. But an image of which it claims no ready copy must get one, unless a
// disk whose eviction is requested has one: then the eviction waits for the claimed copy. If only first copies
// are created, one ready copy that it claims suffices, as that of a silent node does.
func (c *cluster) requiredReady(config schema.Config, image schema.Image) (required, have int) {
	ranked := c.rankedDisks(c.latest(), image)
	copies, _ := copyCounts(image, len(ranked))
	if config.Settings.ConcurrentReplenishPerNodeLimit == 0 {
		if c.isReadyAnywhere(image.ID) { // also on a disk that is not ranked
			return 0, 0
		}
		copies = 1
		if c.liar != nil && !c.liar.neverReady {
			copies = 0
		}
	}
	places, usable := 0, false // places are the desired disks so far
	for _, ref := range c.failedLast(config, ranked, image.ID) {
		m, s := c.nodes[ref.Node], c.copyAt(ident.CopyRef{Disk: ref, ID: image.ID})
		accepts := config.Nodes[ref.Node].AllowScheduling && config.Nodes[ref.Node].Disks[ref.Disk].AllowScheduling
		switch {
		case m.liar != nil && (accepts || m.liar.mayClaim(image.ID.Name, claimKind.isFile)):
			places++
			continue
		case s.Ready():
			have++
		case !accepts || m.liar != nil || c.skewed[ref.Node] || s != nil && c.users(ident.CopyRef{Disk: ref, ID: image.ID}) > 0:
			continue
		}
		if usable = true; places < copies {
			places, required = places+1, required+1
		}
	}
	if c.liar != nil && usable && !c.isReadyUnranked(ranked, image.ID) && (c.liar.neverReady || !c.liar.mayClaim(image.ID.Name, claimKind.isReady)) {
		required = max(required, 1)
	}
	return required, have
}

// failedLast returns the disks in the order in which they get a copy: a disk whose own node has seen it fail for
// the recovery interval comes after all others. Another disk has its place then, so that nothing is tried on it
// again, also if it could be written by now.
func (c *cluster) failedLast(config schema.Config, ranked []ident.DiskRef, id ident.ID) []ident.DiskRef {
	var sound, failed []ident.DiskRef
	for _, ref := range ranked {
		key, o := ident.CopyRef{Disk: ref, ID: id}, c.nodes[ref.Node].observed
		f := o.Failures[key]
		if f.Attempts > 0 && f.Fault == model.FaultDisk && o.Now.Sub(f.Since) >= config.Settings.RecoveryWaitInterval && !c.copyAt(key).Ready() {
			failed = append(failed, ref)
		} else {
			sound = append(sound, ref)
		}
	}
	return append(sound, failed...)
}

// isReadyUnranked reports whether a node that can be relied on has a ready copy on a disk that is not ranked: one
// whose eviction is requested, or that does not match the selectors any more, or on which a replica needed it.
func (c *cluster) isReadyUnranked(ranked []ident.DiskRef, id ident.ID) bool {
	return slices.ContainsFunc(c.diskRefs(), func(ref ident.DiskRef) bool {
		return !slices.Contains(ranked, ref) && c.nodes[ref.Node].liar == nil && c.copyAt(ident.CopyRef{Disk: ref, ID: id}).Ready()
	})
}

// checkService checks that each disk of a node that can be relied on is in service, and that a compromised
// node disputes no more disks than are declared for it.
func (c *cluster) checkService() {
	disputed := map[ident.DiskRef]bool{}
	for _, name := range c.names {
		m := c.nodes[name]
		if !m.up || m.liar != nil {
			continue
		}
		for ref, seen := range m.observed.Disks {
			if ref.Node != name {
				continue
			}
			if seen.Problem != "" {
				c.violation("H3", "%s is out of service: %s", ref, seen.Problem)
			}
			if seen.Disputed != "" {
				disputed[ref] = true
			}
		}
	}
	claims := 0
	if c.liar != nil {
		claims = len(c.latest().config.Nodes[c.liar.node.name].Disks) * len(c.names) // another one to each node
	}
	if len(disputed) > claims {
		c.violation("H3", "%d disks are disputed; the compromised node has claims on %d", len(disputed), claims)
	}
}

// checkObservedDisks checks that a node believes nothing about disks that are not declared for the node
// that publishes them.
func (m *node) checkObservedDisks() {
	for ref := range m.observed.Disks {
		if _, declared := m.desired.Config.Nodes[ref.Node].Disks[ref.Disk]; !declared && ref.Node != m.name {
			m.c.violation("H3", "%s believes that %s exists, which is not declared", m.name, ref)
		}
	}
}

package simulation

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// declaration is one content of the config directory.
type declaration struct {
	config schema.Config
	digest string
	number int  // counts the declarations
	revert bool // an earlier declaration was the same
}

func (c *cluster) latest() *declaration { return c.declarations[len(c.declarations)-1] }

// declare makes config the latest configuration. It arrives at each node after a random time, and may
// overtake earlier ones.
func (c *cluster) declare(config schema.Config) {
	c.suspendRandomly(&config)
	c.keepRandomly(&config)
	c.followRandomly(&config)
	c.indexRandomly(&config)
	d := &declaration{config: config, digest: c.configDigest(config), number: len(c.declarations)}
	for _, before := range c.declarations {
		d.revert = d.revert || before.digest == d.digest
	}
	c.declarations = append(c.declarations, d)
	c.logf("", "configuration %d is declared, digest %s%s", d.number, d.digest, textIf(d.revert, ", as before"))
	slow, most := !c.quick && c.oneIn(3), 5*time.Second
	if c.oneIn(3) {
		most = 300 * time.Millisecond
	}
	for _, name := range c.names {
		wait := c.between(0, most)
		if slow && c.oneIn(2) {
			wait = c.between(0, 8*time.Minute)
		}
		c.after(wait, func() { c.nodes[name].receive(d) })
	}
}

// suspendRandomly adds and removes suspensions in a configuration before its declaration. It has its
// own random numbers, so that a suspension does not change the other events of a seed.
func (c *cluster) suspendRandomly(config *schema.Config) {
	config.Images = maps.Clone(config.Images)
	suspended := map[string]bool{}
	if !c.healed && c.suspensions.oneIn(3) {
		for _, name := range slices.Sorted(maps.Keys(config.Images)) {
			suspended[name] = c.suspensions.oneIn(2)
		}
		suspended[""] = c.suspensions.oneIn(4)
	}
	one := func() *schema.Suspension {
		s := &schema.Suspension{Reason: "a reason"}
		if c.suspensions.oneIn(2) {
			s.Until = startTime.Add(c.now + time.Duration(c.suspensions.IntN(600))*time.Second)
		}
		return s
	}
	for _, name := range slices.Sorted(maps.Keys(config.Images)) {
		image := config.Images[name]
		switch {
		case suspended[name]:
			image.Suspend = one()
		case c.healed || c.suspensions.oneIn(2):
			image.Suspend = nil
		}
		config.Images[name] = image
	}
	switch {
	case suspended[""]:
		config.Settings.Suspend = one()
	case c.healed || c.suspensions.oneIn(2):
		config.Settings.Suspend = nil
	}
}

func textIf(so bool, text string) string {
	if so {
		return text
	}
	return ""
}

func (c *cluster) configDigest(config schema.Config) string {
	b, err := json.Marshal(config)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(b)
	text := hex.EncodeToString(sum[:])
	if c.digests[text] == "" {
		c.digests[text] = fmt.Sprintf("config%d", len(c.digests)+1)
	}
	return c.digests[text]
}

// firstConfig returns the first configuration.
func (c *cluster) firstConfig() schema.Config {
	config := schema.Config{Nodes: map[string]schema.Node{}, Images: map[string]schema.Image{}, Settings: schema.Settings{
		CleanupWaitInterval: pick(c.rng, 0, 3*time.Minute, 10*time.Minute), RecoveryWaitInterval: 3 * time.Minute,
		MinNumberOfCopies: 1, ConcurrentReplenishPerNodeLimit: 5, PruneLimit: schema.PrunePercent(50),
	}}
	for _, name := range c.names {
		node := schema.Node{AllowScheduling: true, Address: urlOf(name), Tags: plantest.RandomTags(c.Rand), Disks: map[string]schema.Disk{}}
		for i := range 1 + c.IntN(3)*c.IntN(2) {
			d := fmt.Sprintf("disk%d", i+1)
			node.Disks[d] = schema.Disk{Path: "/" + d, AllowScheduling: true, Tags: plantest.RandomTags(c.Rand)}
		}
		config.Nodes[name] = node
	}
	for _, name := range plantest.ImageNames[:1+c.IntN(3)] {
		config.Images[name] = c.randomImage(config, name)
	}
	return config
}

// randomImage returns a declaration of an image, of the declared generation or of a new one.
func (c *cluster) randomImage(config schema.Config, name string) schema.Image {
	last, known := config.Images[name]
	if !known || c.oneIn(4) {
		return c.imageWithSource(config, name, c.randomSource(config, name))
	}
	return c.imageWithSource(config, name, last.Source)
}

func (c *cluster) imageWithSource(config schema.Config, name string, source schema.Source) schema.Image {
	m := schema.Image{ID: ident.ID{Name: name}, Copies: pick(c.rng, 1, 1, 2, 2, 3), Source: source}
	if content := c.expectedBytes(config, m); content != "" && c.oneIn(2) {
		m.Checksum = c.digest(content)
	}
	m.ID.UUID = schema.UUID(name, m.Checksum, m.Source)
	if m.AllDisks = c.oneIn(12); m.AllDisks {
		m.Copies = 1
	}
	if c.oneIn(5) {
		m.NodeSelector = []string{"a"}
	}
	if c.oneIn(6) {
		m.DiskSelector = pick(c.rng, []string{"a"}, []string{"a", "b"})
	}
	if c.oneIn(8) && len(c.disks) > 0 {
		m.Disks = []ident.DiskRef{pick(c.rng, c.diskRefs()...)}
	}
	return m
}

// editedConfig returns a deep copy of the latest configuration, edited.
func (c *cluster) editedConfig(edit func(*schema.Config)) schema.Config {
	config := c.latest().config
	config.Images, config.Nodes = maps.Clone(config.Images), maps.Clone(config.Nodes)
	for name, node := range config.Nodes {
		node.Disks = maps.Clone(node.Disks)
		config.Nodes[name] = node
	}
	edit(&config)
	dropBadClones(&config)
	return config
}

// editConfig declares a changed configuration, or an earlier one again.
func (c *cluster) editConfig() {
	edits := []func(*schema.Config){
		c.editImages, c.editImages, c.editImages, c.removeImages, c.addImage,
		c.editDisks, c.editDisks, c.editNodes, c.editNodes, c.editSetting,
	}
	if len(c.declarations) > 1 && c.oneIn(4) {
		c.declare(c.declarations[max(0, len(c.declarations)-2-c.IntN(2))].config)
		return
	}
	c.declare(c.editedConfig(pick(c.rng, edits...)))
	if c.oneIn(4) { // it is reverted soon
		before := c.declarations[len(c.declarations)-2].config
		c.after(c.between(0, 5*time.Minute), func() { c.unlessHealed(func() { c.declare(before) }) })
	}
}

func (c *cluster) editImages(config *schema.Config) {
	for range 1 + c.IntN(2) {
		if name, ok := c.randomImageName(config); ok {
			m := c.randomImage(*config, name)
			if old := config.Images[name]; c.oneIn(2) {
				m.ID, m.Source, m.Checksum = old.ID, old.Source, old.Checksum // only the placement changes
			}
			config.Images[name] = m
		}
	}
}

func (c *cluster) randomImageName(config *schema.Config) (string, bool) {
	names := slices.Sorted(maps.Keys(config.Images))
	if len(names) == 0 {
		return "", false
	}
	return pick(c.rng, names...), true
}

func (c *cluster) removeImages(config *schema.Config) {
	if c.oneIn(3) {
		config.Images = map[string]schema.Image{}
		return
	}
	if name, ok := c.randomImageName(config); ok {
		delete(config.Images, name)
	}
}

func (c *cluster) addImage(config *schema.Config) {
	name := pick(c.rng, plantest.ImageNames...)
	for _, before := range c.declarations {
		if m, was := before.config.Images[name]; was && c.oneIn(2) {
			config.Images[name] = m
			return
		}
	}
	config.Images[name] = c.randomImage(*config, name)
}

func (c *cluster) editDisks(config *schema.Config) {
	ref := pick(c.rng, c.diskRefs()...)
	one, ok := config.Nodes[ref.Node].Disks[ref.Disk]
	if !ok {
		return
	}
	switch c.IntN(5) {
	case 0, 1:
		one.EvictionRequested = !one.EvictionRequested
	case 2:
		one.AllowScheduling = !one.AllowScheduling
	case 3:
		one.Tags = plantest.RandomTags(c.Rand)
	case 4:
		one.StorageReserved = pick(c.rng, int64(0), 2*gib)
	}
	config.Nodes[ref.Node].Disks[ref.Disk] = one
}

// editNodes changes a node, removes it or one of its disks from the configuration, or adds what is
// missing.
func (c *cluster) editNodes(config *schema.Config) {
	name := pick(c.rng, c.names...)
	node, ok := config.Nodes[name]
	switch choice := c.IntN(7); {
	case !ok:
		config.Nodes[name] = c.declarations[0].config.Nodes[name]
		return
	case choice <= 1:
		node.EvictionRequested = !node.EvictionRequested
	case choice == 2:
		node.AllowScheduling = !node.AllowScheduling
	case choice == 3:
		node.Tags = plantest.RandomTags(c.Rand)
	case choice == 4 && len(config.Nodes) > 3:
		delete(config.Nodes, name)
		return
	case choice == 5 && len(node.Disks) > 1:
		delete(node.Disks, slices.Sorted(maps.Keys(node.Disks))[0])
	default:
		maps.Copy(node.Disks, c.declarations[0].config.Nodes[name].Disks)
	}
	config.Nodes[name] = node
}

func (c *cluster) editSetting(config *schema.Config) {
	s := &config.Settings
	switch c.IntN(3) {
	case 0:
		s.CleanupWaitInterval = pick(c.rng, 0, 3*time.Minute, 10*time.Minute)
	case 1:
		s.PruneLimit = pick(c.rng, schema.PrunePercent(50), schema.PruneCount(1), schema.PrunePercent(100))
	case 2:
		s.ConcurrentReplenishPerNodeLimit = pick(c.rng, 0, 5, 5)
	}
}

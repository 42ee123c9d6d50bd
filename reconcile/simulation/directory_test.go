package simulation

import (
	"maps"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/config"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// receive writes a configuration into the config directory, unless a newer one is there.
func (m *node) receive(d *declaration) {
	if m.dirStale || m.directory != nil && d.number < m.directory.number {
		return
	}
	m.directory = d
	if m.up && !m.dirBroken && !m.dirEmpty {
		m.next = d
		m.requestRound()
	}
}

// breakDir writes an error into the config directory.
func (m *node) breakDir() {
	m.dirBroken = true
	m.c.logf(m.name, "the configuration breaks")
	m.requestRound()
}

// repairDir corrects the error.
func (m *node) repairDir() {
	if m.dirBroken {
		m.c.logf(m.name, "the configuration is repaired")
		m.dirBroken, m.next = false, m.directory
		m.requestRound()
	}
}

// configure lets the loop apply the config directory. It returns false if the process ended.
func (m *node) configure() bool {
	reading := config.Reading{Began: m.steady(), Ended: m.steady()}
	changed := m.dirEmpty != m.appliedEmpty
	m.appliedEmpty = m.dirEmpty
	if m.dirEmpty {
		reading.Fault = "the config directory is empty"
	} else if m.takeConfig() {
		changed, reading.Result = true, m.result()
	}
	if !changed && !m.reread {
		return true
	}
	m.reread = false
	if _, err := m.loop.Apply(m.ctx, reading); err != nil {
		m.c.logf(m.name, "cannot start: %v", err)
		m.crash()
		m.c.after(m.c.between(5*time.Second, 30*time.Second), m.start)
		return false
	}
	return true
}

// takeConfig makes the content of the config directory the applied one. It reports whether there is
// a change.
func (m *node) takeConfig() (changed bool) {
	next := m.next
	m.next = nil
	if m.dirBroken != m.appliedBroken {
		m.appliedBroken, changed = m.dirBroken, true
		m.c.logf(m.name, "finds the configuration %s", textIf(m.appliedBroken, "broken"))
	}
	if next == nil || next == m.applied && !m.brokenAtStart {
		return changed
	}
	m.brokenAtStart, m.invalidImage = m.applied == nil && m.appliedBroken, ""
	if m.brokenAtStart && m.c.oneIn(2) {
		m.invalidImage, _ = m.c.randomImageName(&next.config)
	}
	if m.applied != nil {
		for name := range m.applied.config.Images {
			m.removedAt[name] = m.c.now
		}
	}
	m.applied, m.appliedAt = next, m.c.now
	if node, ok := next.config.Nodes[m.name]; ok || m.ownDisks == nil {
		m.ownDisks = node.Disks
	}
	m.c.logf(m.name, "applies configuration %d (%s)%s", next.number, next.digest, textIf(m.appliedBroken, ", which has an error"))
	return true
}

// allowed returns how much of a plan the applied configuration allows.
func (m *node) allowed() schema.Allowed {
	_, declared := m.applied.config.Nodes[m.name]
	switch {
	case !declared, m.appliedBroken && m.brokenAtStart && m.invalidImage == "":
		return schema.ObserveOnly
	case m.appliedBroken, m.appliedEmpty:
		return schema.NoDeletions
	}
	return schema.Everything
}

// result returns the applied configuration as package load loads it.
func (m *node) result() *load.Result {
	r := &load.Result{Loaded: schema.Loaded{Config: m.applied.config, Digest: m.applied.digest, Allowed: schema.Everything}}
	if !m.appliedBroken {
		return r
	}
	r.Digest, r.Allowed = "", schema.NoDeletions
	if m.brokenAtStart && m.invalidImage == "" {
		r.Allowed = schema.ObserveOnly
	}
	if m.invalidImage != "" {
		r.Config.Images = maps.Clone(r.Config.Images)
		delete(r.Config.Images, m.invalidImage)
		r.Invalid = []schema.InvalidImage{{Name: m.invalidImage}}
	}
	return r
}

// appliedDigest returns the config digest of the applied configuration, "" while it has an error or
// does not declare the node.
func (m *node) appliedDigest() string {
	if m.applied == nil || m.appliedBroken {
		return ""
	}
	if _, declared := m.applied.config.Nodes[m.name]; !declared {
		return ""
	}
	return m.applied.digest
}

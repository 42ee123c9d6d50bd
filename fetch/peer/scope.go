package peer

import (
	"maps"
	"strings"
)

// Scope is the part of a state that its reader can use, according to the configuration of the reader. It
// bounds what a reader keeps of a peer, whatever the peer publishes. The memory for all peers together
// thus depends only on the configuration.
type Scope struct {
	// Disks has the names of the disks that are declared for the node. The copies on its other disks
	// are not read. nil: any disk.
	Disks map[string]bool
	// Images has the uuid of each declared image by name. nil: the declared images are not known, so each
	// copy counts as a copy of another generation.
	Images map[string]string
	// Listed is the number of undeclared images that the configuration names because they may be
	// deleted (pruneConfirmed).
	Listed int
	// Kept is the number of older generations that the configuration keeps on each disk, of all
	// images together.
	Kept int
}

const (
	// maxIdle limits the copies that are kept for a node although nobody needs them: unmanaged copies of
	// undeclared images that are not in use. A node may have more such copies than all other copies.
	maxIdle = 1024
	// otherGenerations is how many other generations each declared image may have on each disk, on
	// average. minOthers is how many copies of other generations and of orphans are kept for a node in any
	// case: a configuration may have declared thousands of images that it no longer declares.
	otherGenerations, minOthers = 3, 4096
	// minStateSize is the least limit for the JSON of a state, in bytes: some 25,000 unmanaged copies.
	// sizePerCopy is added for each copy for which the configuration has a place.
	minStateSize, sizePerCopy = 8 << 20, 1 << 10
)

// hasImage reports whether an image is declared. It returns true for "", which stands for the whole configuration.
func (s Scope) hasImage(name string) bool {
	_, declared := s.Images[name]
	return declared || name == "" || s.Images == nil
}

// maxConditions returns how many conditions of a node are kept. There are fewer kinds of conditions than conditionsOfImage.
func (s Scope) maxConditions() int { return conditionsOfImage * (len(s.Images) + 1) }

const conditionsOfImage = 8

// places returns the number of copies for which the configuration has a place on the node.
func (s Scope) places() int { return len(s.Disks) * (len(s.Images) + s.Listed) }

// maxOthers returns how many copies are kept in addition to the copies of the declared generations.
func (s Scope) maxOthers() int { return minOthers + otherGenerations*s.places() + len(s.Disks)*s.Kept }

// maxStateSize returns the limit of the JSON of a state, both compressed and decompressed.
func (s Scope) maxStateSize() int64 {
	return min(largestState, minStateSize+sizePerCopy*int64((1+otherGenerations)*s.places()+len(s.Disks)*s.Kept))
}

// largestState limits the JSON for any configuration. It bounds the time, not the memory.
const largestState = 64 << 20

// equal reports whether two scopes are equal.
func (s Scope) equal(o Scope) bool {
	return s.Listed == o.Listed && s.Kept == o.Kept && (s.Disks == nil) == (o.Disks == nil) && (s.Images == nil) == (o.Images == nil) &&
		maps.Equal(s.Disks, o.Disks) && maps.Equal(s.Images, o.Images)
}

// texts keeps one instance of each text of a state: most copies share a few messages. All texts of a
// state together are bounded.
type texts struct {
	known map[string]string
	left  int // bytes of texts that may still be kept in full
}

const (
	maxTexts  = 1 << 20 // bytes of different texts of one state
	shortText = 64      // bytes of a text when these are used up
)

// keep returns the instance of a text. It truncates a long text if the texts of the state are nearly maxTexts.
func (t *texts) keep(text string) string {
	if known, ok := t.known[text]; ok || text == "" {
		return known
	}
	if len(text) > max(t.left, shortText) {
		text = shortLine(text, shortText)
	}
	text = strings.Clone(text) // text may be a part of a longer string
	t.left -= len(text)
	t.known[text] = text
	return text
}

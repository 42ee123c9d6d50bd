package faultfs

import (
	"maps"
	"math/rand/v2"
	"path"
	"syscall"
	"time"
)

// node is a file or a folder. Its plain fields have its current state, durable its state at its
// last sync, and log the changes since.
type node struct {
	v      *Volume
	id     uint64 // for the kernel
	ino    uint64 // for programs; survives a power cut
	mode   uint32
	parent *node
	name   string

	now     state
	durable state
	log     []change
}

type state struct {
	content content
	entries map[string]*node // of a folder
	mtime   time.Time
	ctime   time.Time
}

func (s state) clone() state {
	s.content = s.content.clone()
	s.entries = maps.Clone(s.entries)
	return s
}

// change is one change of a node. Exactly one kind of change is set.
type change struct {
	data   []byte // written at offset
	offset int64

	truncate bool
	size     int64

	link      string // a new name for child
	unlink    string // a removed name; together with link a rename
	child     *node
	exchanged *node // in an exchange, the new node of the name in unlink
}

func (n *node) isFolder() bool { return n.mode&syscall.S_IFMT == syscall.S_IFDIR }

// path returns the path of the node in its volume.
func (n *node) path() string {
	if n.parent == nil {
		return "."
	}
	return path.Join(n.parent.path(), n.name)
}

// do makes a change that is not durable.
func (n *node) do(c change) {
	n.log = append(n.log, c)
	n.now.apply(c)
	n.touch(true)
}

func (n *node) touch(data bool) {
	n.now.ctime = n.v.fs.tick()
	if data {
		n.now.mtime = n.now.ctime
	}
}

func (s *state) apply(c change) {
	switch {
	case c.data != nil:
		s.content.write(c.offset, c.data)
	case c.truncate:
		s.content.truncate(c.size)
	default:
		delete(s.entries, c.unlink)
		if c.exchanged != nil {
			s.entries[c.unlink] = c.exchanged
		}
		if c.link != "" {
			s.entries[c.link] = c.child
		}
	}
}

// sync makes the current state durable.
func (n *node) sync() {
	n.durable, n.log = n.now.clone(), nil
}

// failSync is a sync that fails: some changes are durable, the others are lost, and no later sync
// writes them. A folder loses nothing, because a file system that cannot write its journal stops.
func (n *node) failSync(random *rand.Rand) {
	if n.isFolder() {
		return
	}
	was := n.now
	n.now = n.survivor(random, random.IntN(modes))
	n.now.mtime, n.now.ctime = was.mtime, was.ctime
	if n.v.pageCache { // the inode is written nevertheless
		n.now.content.truncate(was.content.size)
	}
	n.sync()
}

// How many of the changes that are not durable survive.
const (
	none = iota
	all
	first // so many, in order
	some
	most
	modes
)

// survivor returns the node after a power cut.
func (n *node) survivor(random *rand.Rand, mode int) state {
	switch mode {
	case none:
		return n.durable.clone()
	case all:
		return n.now.clone()
	}
	s := n.durable.clone()
	if random.IntN(2) == 0 {
		s.mtime, s.ctime = n.now.mtime, n.now.ctime
	}
	if mode == first {
		for _, c := range n.log[:random.IntN(len(n.log)+1)] {
			s.apply(c)
		}
		return s
	}
	lost := 2 // one of so many
	if mode == most {
		lost = 10
	}
	for _, c := range n.log {
		for _, piece := range c.pieces() {
			switch {
			case random.IntN(lost) != 0:
				s.apply(piece)
			case piece.data != nil && random.IntN(2) == 0:
				s.content.grow(piece.offset + int64(len(piece.data)))
			}
		}
	}
	return s
}

// pieces are the parts of a change that can survive separately.
func (c change) pieces() []change {
	if c.data == nil {
		return []change{c}
	}
	var pieces []change
	for at, data := c.offset, c.data; len(data) > 0; {
		n := min(len(data), int(pageSize-at%pageSize))
		pieces = append(pieces, change{offset: at, data: data[:n:n]})
		at, data = at+int64(n), data[n:]
	}
	return pieces
}

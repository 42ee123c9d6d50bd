package faultfs

import (
	"maps"
	"math/rand/v2"
	"path"
	"syscall"
	"time"
)

// node is a file or a folder. Its embedded state is the current one, durable is the state at the last
// sync, and log contains the changes since then.
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

// change is one change of a node. Only the fields of one kind of change are set.
type change struct {
	data   []byte // written at offset
	offset int64

	truncate bool
	size     int64

	link      string // new name for child
	unlink    string // removed name; together with link it is a rename
	child     *node
	exchanged *node // for an exchange: the node that gets the name in unlink
}

func (n *node) isFolder() bool { return n.mode&syscall.S_IFMT == syscall.S_IFDIR }

// path returns the path of the node in its volume.
func (n *node) path() string {
	if n.parent == nil {
		return "."
	}
	return path.Join(n.parent.path(), n.name)
}

// do makes a change, which is not durable before the next sync.
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

// failSync performs a sync that fails: some changes become durable, and the others are lost, so that
// no later sync writes them. A folder loses no changes, because a real file system stops if it cannot
// write its journal.
func (n *node) failSync(random *rand.Rand) {
	if n.isFolder() {
		return
	}
	was := n.now
	n.now = n.survivor(random, random.IntN(modes))
	n.now.mtime, n.now.ctime = was.mtime, was.ctime
	if n.v.pageCache { // the inode is written in any case
		n.now.content.truncate(was.content.size)
	}
	n.sync()
}

// Modes that determine which of the changes that are not durable survive.
const (
	none = iota
	all
	first // a number of changes, in order
	some
	most
	modes
)

// survivor returns the state of the node after a power failure.
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
	lost := 2 // one of this number of changes is lost
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

// pieces divides a change into the parts that can survive separately.
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

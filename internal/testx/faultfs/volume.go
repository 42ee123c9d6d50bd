package faultfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Op is an operation that a volume is about to execute.
type Op struct {
	Kind         string // "write", "sync", "truncate", "create", "mkdir", "rename", "exchange", "noreplace", "unlink", "rmdir", "chmod"; "open", "read", "list", "stat", "statfs"
	Path         string // path in the volume; for a rename, the old name
	Count        int    // number among the operations of the same kind and path, starting at 1
	ChangeNumber int    // number among the operations that change or sync data, starting at 1; 0 if the operation only reads
}

func (o Op) String() string { return fmt.Sprintf("%s %s %d", o.Kind, o.Path, o.Count) }

// ErrStop stops the volume: this and every later operation fails with EIO and has no effect, as after
// a kill of the process.
var ErrStop = errors.New("stop")

// Volume is one disk. It is safe for concurrent use.
type Volume struct {
	fs           *FS
	name         string
	root         *node
	plan         func(Op) error
	counts       map[string]int
	changes      int
	trace        []Op
	stopped      bool
	random       *rand.Rand // for syncs that fail
	pageCache    bool
	wholeSeconds bool
}

// Path returns the mount point of the volume.
func (v *Volume) Path() string { return filepath.Join(v.fs.dir, v.name) }

// Plan sets a function that is called before every operation. If f returns nil, the operation is
// executed; if it returns a syscall.Errno, the operation fails; if it returns ErrStop, the volume
// stops. f may call methods of the volume, but must not make system calls on it.
func (v *Volume) Plan(f func(Op) error) {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	v.plan = f
}

// Trace returns all operations so far.
func (v *Volume) Trace() []Op {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	return append([]Op(nil), v.trace...)
}

// Restart ends a stop. The volume is in the state that the next process finds after kill -9, with all
// data in memory. Plan, counts and trace are reset.
func (v *Volume) Restart() {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	v.plan, v.stopped, v.trace, v.changes = nil, false, nil, 0
	v.counts = map[string]int{}
}

// Survive returns the state after a power failure as a separate volume at another path. The volume
// itself does not change, and Survive can be called repeatedly.
func (v *Volume) Survive(seed uint64) *Volume {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	after := v.fs.newVolume(seed)
	random := rand.New(rand.NewPCG(seed, 1))
	mode := -1 // each node has a different mode
	if n := random.IntN(2 * modes); n < modes {
		mode = n
	}
	after.root = v.root.survivorIn(after, nil, random, mode)
	return after
}

// SurviveSynced is like Survive, but loses all changes that are not durable.
func (v *Volume) SurviveSynced() *Volume {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	after := v.fs.newVolume(0)
	after.root = v.root.survivorIn(after, nil, nil, none)
	return after
}

// Close removes the volume. It must not be used after that.
func (v *Volume) Close() {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	delete(v.fs.volumes, v.name)
	for id, n := range v.fs.nodes {
		if n.v == v {
			delete(v.fs.nodes, id)
		}
	}
}

// survivorIn copies the surviving state of n and of all nodes below it to another volume.
func (n *node) survivorIn(to *Volume, parent *node, random *rand.Rand, mode int) *node {
	how := mode
	if how < 0 {
		how = random.IntN(modes)
	}
	left := to.fs.newNode(to, n.mode)
	left.ino, left.parent, left.name = n.ino, parent, n.name
	left.now = n.survivor(random, how)
	for _, name := range sorted(left.now.entries) {
		child := left.now.entries[name].survivorIn(to, left, random, mode)
		child.name = name
		left.now.entries[name] = child
	}
	left.sync()
	return left
}

// begin calls the plan for an operation on the node at path. The caller must not hold the lock.
func (v *Volume) begin(kind, path string, changes bool) syscall.Errno {
	v.fs.mu.Lock()
	op := Op{Kind: kind, Path: path}
	v.counts[kind+" "+path]++
	op.Count = v.counts[kind+" "+path]
	if changes && !v.stopped {
		v.changes++
		op.ChangeNumber = v.changes
	}
	v.trace = append(v.trace, op)
	plan, stopped := v.plan, v.stopped
	v.fs.mu.Unlock()
	if stopped {
		return syscall.EIO
	}
	if plan == nil {
		return 0
	}
	err := plan(op)
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	if err != nil {
		v.fs.mu.Lock()
		v.stopped = true
		v.fs.mu.Unlock()
		return syscall.EIO
	}
	return 0
}

// SyncAll makes everything durable, like sync(2). It does not count as an operation.
func (v *Volume) SyncAll() {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	v.root.walk((*node).sync)
}

func (n *node) walk(visit func(*node)) {
	visit(n)
	for _, child := range n.now.entries {
		child.walk(visit)
	}
}

// Put creates a file and all its parent folders, like another process. The file is immediately
// durable. Put does not count as an operation.
func (v *Volume) Put(path string, data []byte) {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	n := v.root
	elements := strings.Split(path, "/")
	for i, name := range elements {
		child := n.now.entries[name]
		if child == nil {
			mode := uint32(syscall.S_IFDIR | 0o755)
			if i == len(elements)-1 {
				mode = syscall.S_IFREG | 0o644
			}
			child, _ = n.make(name, mode) // the file does not exist yet
			n.sync()
		}
		n = child
	}
	n.do(change{truncate: true})
	if len(data) > 0 {
		n.do(change{data: bytes.Clone(data)})
	}
	n.sync()
}

// FlipBit changes one bit of the byte at offset of a file, like a write of another process. The
// change is immediately durable. FlipBit does not count as an operation.
func (v *Volume) FlipBit(path string, offset int64) error {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	n := v.root
	for _, name := range strings.Split(path, "/") {
		if n = n.now.entries[name]; n == nil {
			return fs.ErrNotExist
		}
	}
	b := make([]byte, 1)
	if n.now.content.read(b, offset) == 0 {
		return io.EOF
	}
	b[0] ^= 1
	n.do(change{data: b, offset: offset})
	n.sync()
	return nil
}

// UsePageCache makes files that are opened later use the page cache, as on file systems without
// O_DIRECT. Changes that a failed sync lost can then be read until the cache is dropped.
func (v *Volume) UsePageCache() {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	v.pageCache = true
}

// openFlags returns the flags with which the kernel must open a file.
func (v *Volume) openFlags(flags uint32) (uint32, fuse.Status) {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	switch {
	case !v.pageCache:
		return fuse.FOPEN_DIRECT_IO, fuse.OK // this package implements the page cache itself
	case flags&syscall.O_DIRECT != 0:
		return 0, fuse.EINVAL
	}
	return fuse.FOPEN_KEEP_CACHE, fuse.OK
}

// UseWholeSeconds truncates times to whole seconds, as on old file systems.
func (v *Volume) UseWholeSeconds() {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	v.wholeSeconds = true
}

// times returns the times that programs see.
func (n *node) times() (mtime, ctime time.Time) {
	if n.v.wholeSeconds {
		return n.now.mtime.Truncate(time.Second), n.now.ctime.Truncate(time.Second)
	}
	return n.now.mtime, n.now.ctime
}

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

// Op is one request that a volume is about to execute.
type Op struct {
	Kind         string // "write", "sync", "truncate", "create", "mkdir", "rename", "exchange", "noreplace", "unlink", "rmdir", "chmod"; "open", "read", "list", "stat", "statfs"
	Path         string // in the volume; the old name of a rename
	Count        int    // number among the operations of its kind and path, from 1
	ChangeNumber int    // number among the operations that change or sync something, from 1; 0 if it only reads
}

func (o Op) String() string { return fmt.Sprintf("%s %s %d", o.Kind, o.Path, o.Count) }

// ErrStop stops the volume: this and every later operation fails with EIO and has no effect, as if
// the process had been killed before it.
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
	random       *rand.Rand // for failing syncs
	pageCache    bool
	wholeSeconds bool
}

// Path returns the mount point of the volume.
func (v *Volume) Path() string { return filepath.Join(v.fs.dir, v.name) }

// Plan calls f before every operation. On nil the operation happens, on a syscall.Errno it fails,
// and on ErrStop the volume stops. f may call methods of the volume, but make no system calls on
// it.
func (v *Volume) Plan(f func(Op) error) {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	v.plan = f
}

// Trace returns the operations so far.
func (v *Volume) Trace() []Op {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	return append([]Op(nil), v.trace...)
}

// Restart ends a stop, as the next process finds the volume after kill -9: with all data in
// memory. Plan, counts and trace begin again.
func (v *Volume) Restart() {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	v.plan, v.stopped, v.trace, v.changes = nil, false, nil, 0
	v.counts = map[string]int{}
}

// Survive returns the state after a power cut, as a volume of its own at another path. The volume
// itself does not change, and Survive can be called repeatedly.
func (v *Volume) Survive(seed uint64) *Volume {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	after := v.fs.newVolume(seed)
	random := rand.New(rand.NewPCG(seed, 1))
	mode := -1 // each node has its own
	if n := random.IntN(2 * modes); n < modes {
		mode = n
	}
	after.root = v.root.survivorIn(after, nil, random, mode)
	return after
}

// SurviveSynced is Survive without any change that is not durable.
func (v *Volume) SurviveSynced() *Volume {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	after := v.fs.newVolume(0)
	after.root = v.root.survivorIn(after, nil, nil, none)
	return after
}

// Close removes the volume. Nothing may use it afterwards.
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

// survivorIn copies the remains of n and of everything below it to another volume.
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

// begin calls the plan for an operation on the node at path. The caller does not hold the lock.
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

// SyncAll makes everything durable, as sync(2) does. It does not count as an operation.
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

// Put makes a file with all folders above it, as another process would. It is durable at once, and
// does not count as an operation.
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
			child, _ = n.make(name, mode) // it is not there
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

// FlipBit changes a bit of the byte at offset of a file, as a write of another process would. It is
// durable at once, and does not count as an operation.
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

// UsePageCache makes the files that are opened from now on use the page cache, as on file systems
// without O_DIRECT. Changes that a failed sync lost then stay readable until somebody drops the
// cache.
func (v *Volume) UsePageCache() {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	v.pageCache = true
}

// openFlags returns how the kernel has to treat an opened file.
func (v *Volume) openFlags(flags uint32) (uint32, fuse.Status) {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	switch {
	case !v.pageCache:
		return fuse.FOPEN_DIRECT_IO, fuse.OK // this package has its own page cache
	case flags&syscall.O_DIRECT != 0:
		return 0, fuse.EINVAL
	}
	return fuse.FOPEN_KEEP_CACHE, fuse.OK
}

// UseWholeSeconds makes times whole seconds, as on old file systems.
func (v *Volume) UseWholeSeconds() {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	v.wholeSeconds = true
}

// times are the times that programs see.
func (n *node) times() (mtime, ctime time.Time) {
	if n.v.wholeSeconds {
		return n.now.mtime.Truncate(time.Second), n.now.ctime.Truncate(time.Second)
	}
	return n.now.mtime, n.now.ctime
}

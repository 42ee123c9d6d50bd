package faultfs

import (
	"bytes"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// requests implements the requests of the kernel. Its methods are those of fuse.RawFileSystem.
type requests struct {
	fuse.RawFileSystem
	fs *FS
}

// find returns a node and its path. For a node of a closed volume it returns nil.
func (r *requests) find(id uint64) (*node, string) {
	r.fs.mu.Lock()
	defer r.fs.mu.Unlock()
	n := r.fs.nodes[id]
	if n == nil {
		return nil, ""
	}
	return n, n.path()
}

// begin returns the node for an operation on it.
func (r *requests) begin(id uint64, kind string, changes bool) (*node, fuse.Status) {
	n, path := r.find(id)
	if n == nil {
		return nil, fuse.Status(syscall.ESTALE)
	}
	return n, fuse.Status(n.v.begin(kind, path, changes))
}

// beginChild is like begin, for an operation on a name in the folder id.
func (r *requests) beginChild(id uint64, name, kind string, changes bool) (*node, fuse.Status) {
	n, path := r.find(id)
	if n == nil {
		return nil, fuse.Status(syscall.ESTALE)
	}
	if path != "." {
		name = path + "/" + name
	}
	return n, fuse.Status(n.v.begin(kind, name, changes))
}

func (n *node) attr(a *fuse.Attr) {
	a.Ino, a.Mode, a.Size, a.Blocks = n.ino, n.mode, uint64(n.now.content.size), n.now.content.blocks()
	a.Nlink, a.Blksize = 1, pageSize
	mtime, ctime := n.times()
	a.SetTimes(&mtime, &mtime, &ctime)
}

func (n *node) entry(out *fuse.EntryOut) {
	out.NodeId, out.Generation = n.id, 1
	out.SetEntryTimeout(time.Hour) // names change only through the kernel
	n.attr(&out.Attr)
}

func (r *requests) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if h.NodeId == fuse.FUSE_ROOT_ID {
		r.fs.mu.Lock()
		defer r.fs.mu.Unlock()
		v := r.fs.volumes[name]
		if v == nil {
			return fuse.ENOENT
		}
		v.root.entry(out)
		return fuse.OK
	}
	n, status := r.beginChild(h.NodeId, name, "stat", false)
	if status != fuse.OK {
		return status
	}
	r.fs.mu.Lock()
	defer r.fs.mu.Unlock()
	child := n.now.entries[name]
	if child == nil {
		return fuse.ENOENT
	}
	child.entry(out)
	return fuse.OK
}

func (r *requests) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	if in.NodeId == fuse.FUSE_ROOT_ID {
		out.Attr.Mode, out.Attr.Nlink = syscall.S_IFDIR|0o755, 2
		return fuse.OK
	}
	n, status := r.begin(in.NodeId, "stat", false)
	if status != fuse.OK {
		return status
	}
	r.fs.mu.Lock()
	defer r.fs.mu.Unlock()
	n.attr(&out.Attr)
	return fuse.OK
}

func (r *requests) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	size, truncate := in.GetSize()
	kind := "chmod"
	if truncate {
		kind = "truncate"
	}
	n, status := r.begin(in.NodeId, kind, true)
	if status != fuse.OK {
		return status
	}
	r.fs.mu.Lock()
	defer r.fs.mu.Unlock()
	if truncate {
		n.do(change{truncate: true, size: int64(size)})
	}
	if mode, ok := in.GetMode(); ok {
		n.mode = n.mode&syscall.S_IFMT | mode&0o7777
		n.touch(false)
	}
	if mtime, ok := in.GetMTime(); ok {
		n.touch(false)
		n.now.mtime = mtime
	}
	n.attr(&out.Attr)
	return fuse.OK
}

func (r *requests) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n, status := r.begin(in.NodeId, "open", false)
	if status == fuse.OK {
		out.OpenFlags, status = n.v.openFlags(in.Flags)
	}
	if status != fuse.OK || in.Flags&syscall.O_TRUNC == 0 {
		return status
	}
	n, status = r.begin(in.NodeId, "truncate", true)
	if status != fuse.OK {
		return status
	}
	r.fs.mu.Lock()
	defer r.fs.mu.Unlock()
	n.do(change{truncate: true})
	return fuse.OK
}

// misaligned reports whether a real disk would reject direct I/O with these arguments.
func misaligned(flags uint32, offset uint64, size int) bool {
	return flags&syscall.O_DIRECT != 0 && (offset%512 != 0 || size%512 != 0)
}

func (r *requests) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	n, status := r.begin(in.NodeId, "read", false)
	if status != fuse.OK {
		return nil, status
	}
	if misaligned(in.Flags, in.Offset, int(in.Size)) {
		return nil, fuse.EINVAL
	}
	r.fs.mu.Lock()
	defer r.fs.mu.Unlock()
	buf = buf[:min(len(buf), int(in.Size))]
	return fuse.ReadResultData(buf[:n.now.content.read(buf, int64(in.Offset))]), fuse.OK
}

func (r *requests) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	n, status := r.begin(in.NodeId, "write", true)
	if status != fuse.OK {
		return 0, status
	}
	if misaligned(in.Flags, in.Offset, len(data)) {
		return 0, fuse.EINVAL
	}
	r.fs.mu.Lock()
	defer r.fs.mu.Unlock()
	n.do(change{data: bytes.Clone(data), offset: int64(in.Offset)})
	return uint32(len(data)), fuse.OK
}

func (r *requests) Lseek(_ <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	n, status := r.begin(in.NodeId, "stat", false)
	if status != fuse.OK {
		return status
	}
	r.fs.mu.Lock()
	defer r.fs.mu.Unlock()
	at, errno := n.now.content.seek(int64(in.Offset), in.Whence)
	out.Offset = uint64(at)
	return fuse.Status(errno)
}

func (r *requests) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	n, status := r.begin(in.NodeId, "sync", true)
	if n == nil {
		return status
	}
	r.fs.mu.Lock()
	defer r.fs.mu.Unlock()
	switch {
	case status == fuse.OK:
		n.sync()
	case !n.v.stopped:
		n.failSync(n.v.random)
	}
	return status
}

func (r *requests) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return r.Fsync(cancel, in)
}

func (r *requests) StatFs(_ <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	if h.NodeId != fuse.FUSE_ROOT_ID {
		if _, status := r.begin(h.NodeId, "statfs", false); status != fuse.OK {
			return status
		}
	}
	// The counts are in units of Frsize. Bsize is only a hint. It has another value, as on network
	// file systems.
	out.Bsize, out.Frsize, out.NameLen = 1<<20, pageSize, 255
	out.Blocks, out.Bfree, out.Bavail = Total/pageSize, Free/pageSize, Free/pageSize
	return fuse.OK
}

// Total and Free are the space that every volume reports, in bytes.
const (
	Total = 64 << 30
	Free  = 16 << 30
)

// Flush is not implemented: if the process that serves the file system ended with open files, the
// kernel would wait for a response to Flush.
func (r *requests) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.ENOSYS }

func (r *requests) Release(<-chan struct{}, *fuse.ReleaseIn) {}

func (r *requests) ReleaseDir(*fuse.ReleaseIn) {}

func (r *requests) Access(<-chan struct{}, *fuse.AccessIn) fuse.Status { return fuse.ENOSYS }

// The following operations change and list the names in a folder.

func (r *requests) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	n, status := r.beginChild(in.NodeId, name, "create", true)
	if status == fuse.OK {
		out.OpenFlags, status = n.v.openFlags(in.Flags)
	}
	if status != fuse.OK {
		return status
	}
	r.fs.mu.Lock()
	defer r.fs.mu.Unlock()
	child, errno := n.make(name, syscall.S_IFREG|in.Mode&0o7777)
	if errno != 0 {
		return fuse.Status(errno)
	}
	child.entry(&out.EntryOut)
	return fuse.OK
}

func (r *requests) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	n, status := r.beginChild(in.NodeId, name, "mkdir", true)
	if status != fuse.OK {
		return status
	}
	r.fs.mu.Lock()
	defer r.fs.mu.Unlock()
	child, errno := n.make(name, syscall.S_IFDIR|in.Mode&0o7777)
	if errno != 0 {
		return fuse.Status(errno)
	}
	child.entry(out)
	return fuse.OK
}

func (n *node) make(name string, mode uint32) (*node, syscall.Errno) {
	if n.now.entries[name] != nil {
		return nil, syscall.EEXIST
	}
	child := n.v.fs.newNode(n.v, mode)
	child.parent, child.name = n, name
	n.do(change{link: name, child: child})
	return child, 0
}

func (r *requests) Unlink(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return r.drop(h, name, "unlink")
}

func (r *requests) Rmdir(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return r.drop(h, name, "rmdir")
}

func (r *requests) drop(h *fuse.InHeader, name, kind string) fuse.Status {
	n, status := r.beginChild(h.NodeId, name, kind, true)
	if status != fuse.OK {
		return status
	}
	r.fs.mu.Lock()
	defer r.fs.mu.Unlock()
	child := n.now.entries[name]
	switch {
	case child == nil:
		return fuse.ENOENT
	case child.isFolder() && len(child.now.entries) > 0:
		return fuse.Status(syscall.ENOTEMPTY)
	}
	n.do(change{unlink: name})
	child.touch(false)
	return fuse.OK
}

func (r *requests) Rename(_ <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	kind := "rename"
	switch in.Flags {
	case unix.RENAME_EXCHANGE:
		kind = "exchange"
	case unix.RENAME_NOREPLACE:
		kind = "noreplace"
	}
	n, status := r.beginChild(in.NodeId, from, kind, true)
	if status != fuse.OK {
		return status
	}
	r.fs.mu.Lock()
	defer r.fs.mu.Unlock()
	child, there := n.now.entries[from], n.now.entries[to]
	switch {
	case in.Flags&^(unix.RENAME_EXCHANGE|unix.RENAME_NOREPLACE) != 0:
		return fuse.EINVAL
	case in.Newdir != in.NodeId:
		return fuse.Status(syscall.EXDEV)
	case child == nil, there == nil && kind == "exchange":
		return fuse.ENOENT
	case there != nil && in.Flags == unix.RENAME_NOREPLACE:
		return fuse.Status(syscall.EEXIST)
	case kind == "exchange":
		n.do(change{unlink: from, link: to, child: child, exchanged: there})
		child.name, there.name = to, from
		there.touch(false)
		child.touch(false)
		return fuse.OK
	case there != nil && there.isFolder() && len(there.now.entries) > 0:
		return fuse.Status(syscall.ENOTEMPTY)
	}
	n.do(change{unlink: from, link: to, child: child})
	child.name = to
	child.touch(false)
	return fuse.OK
}

func (r *requests) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, _ *fuse.OpenOut) fuse.Status {
	if in.NodeId == fuse.FUSE_ROOT_ID {
		return fuse.OK
	}
	_, status := r.begin(in.NodeId, "open", false)
	return status
}

func (r *requests) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	if in.NodeId == fuse.FUSE_ROOT_ID {
		return fuse.OK // lookups of volumes work by name
	}
	n, status := r.begin(in.NodeId, "list", false)
	if status != fuse.OK {
		return status
	}
	r.fs.mu.Lock()
	defer r.fs.mu.Unlock()
	for i, name := range sorted(n.now.entries) {
		child := n.now.entries[name]
		if uint64(i) >= in.Offset && !out.AddDirEntry(fuse.DirEntry{Name: name, Mode: child.mode, Ino: child.ino, Off: uint64(i) + 1}) {
			break
		}
	}
	return fuse.OK
}

package faultfs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// What changes and lists the names in a folder.

func (r *requests) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	n, status := r.beginChild(in.NodeId, name, "create", true)
	if status == fuse.OK {
		out.OpenFlags, status = n.v.opened(in.Flags)
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
		n.do(change{unlink: from, link: to, child: child, back: there})
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
		return fuse.OK // volumes are found by name
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

package faultfs

import (
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Cached lets the files that are opened from now on be read and written through the page
// cache alone, as on file systems that cannot do O_DIRECT. What a failed sync lost is
// then still there for who reads it, as long as nobody drops the cache.
func (v *Volume) Cached() {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	v.cached = true
}

// opened returns how the kernel has to treat a file that is opened.
func (v *Volume) opened(flags uint32) (uint32, fuse.Status) {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	switch {
	case !v.cached:
		return fuse.FOPEN_DIRECT_IO, fuse.OK // the only page cache is ours
	case flags&syscall.O_DIRECT != 0:
		return 0, fuse.EINVAL
	}
	return fuse.FOPEN_KEEP_CACHE, fuse.OK
}

// Coarse has times of whole seconds, as old file systems have.
func (v *Volume) Coarse() {
	v.fs.mu.Lock()
	defer v.fs.mu.Unlock()
	v.coarse = true
}

// times are what programs see.
func (n *node) times() (mtime, ctime time.Time) {
	if n.v.coarse {
		return n.now.mtime.Truncate(time.Second), n.now.ctime.Truncate(time.Second)
	}
	return n.now.mtime, n.now.ctime
}

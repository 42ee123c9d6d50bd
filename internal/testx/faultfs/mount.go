package faultfs

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// FS is a mounted file system with a folder for each volume.
type FS struct {
	dir string

	mu      sync.Mutex
	volumes map[string]*Volume
	nodes   map[uint64]*node
	last    uint64 // number of the last node or volume
	clock   time.Time
}

// Mount mounts a file system for one test. It skips the test if this process cannot mount FUSE.
func Mount(t testing.TB) *FS {
	t.Helper()
	need.FUSE(t)
	dir := t.TempDir()
	f := &FS{dir: dir, volumes: map[string]*Volume{}, nodes: map[uint64]*node{}, last: fuse.FUSE_ROOT_ID}
	server, err := fuse.NewServer(&requests{RawFileSystem: fuse.NewDefaultRawFileSystem(), fs: f}, dir, &fuse.MountOptions{
		DirectMount:        true,
		DisableReadDirPlus: true,
		DisableXAttrs:      true,
		DisableSplice:      true,

		ExplicitDataCacheControl: true, // needed for Volume.UsePageCache
		MaxWrite:                 1 << 20,
		FsName:                   "faultfs",
		Name:                     "faultfs",
	})
	if err != nil {
		t.Fatalf("mount FUSE: %v", err)
	}
	go server.Serve()
	if err := server.WaitMount(); err != nil {
		t.Fatalf("mount: %v", err)
	}
	stop := startUnmounter(t, dir)
	t.Cleanup(func() {
		err := server.Unmount()
		// While another test starts a process, the new process temporarily has copies of all
		// descriptors.
		for began := time.Now(); err != nil && time.Since(began) < time.Minute; {
			err = server.Unmount()
		}
		if err != nil {
			t.Errorf("unmount %s: %v; open: %q", dir, err, openBelow(dir))
			_ = syscall.Unmount(dir, syscall.MNT_FORCE|syscall.MNT_DETACH) // the first error is reported above
		}
		stop()
	})
	return f
}

// openBelow returns the files and folders below dir that processes have open, as "process: path".
func openBelow(dir string) (open []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	folders, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range append(links, folders...) {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, dir) {
			open = append(open, strings.Split(link, "/")[2]+": "+target)
		}
	}
	return open
}

// startUnmounter starts a process that unmounts dir if this process dies early. Otherwise a thread
// that waits for a response of its own process could not be killed, not even by kill -9.
func startUnmounter(t testing.TB, dir string) (stop func()) {
	t.Helper()
	script := `while grep -qs "^State:.[^ZX]" /proc/$0/status && ! grep -qs "^SigPnd:.*1..$" /proc/$0/status; do sleep 1; done; exec umount -f -l "$1"`
	watcher := exec.Command("sh", "-c", script, strconv.Itoa(os.Getpid()), dir)
	if err := watcher.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		_ = watcher.Process.Kill() // it exists until Wait
		_ = watcher.Wait()         // returns an error because Kill ended the process
	}
}

// NewVolume returns an empty volume.
func (f *FS) NewVolume() *Volume {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.newVolume(0)
	v.root = f.newNode(v, syscall.S_IFDIR|0o755)
	v.root.ino = v.root.id
	v.root.sync()
	return v
}

func (f *FS) newVolume(seed uint64) *Volume {
	f.last++
	v := &Volume{fs: f, name: fmt.Sprint("volume", f.last), counts: map[string]int{}, random: rand.New(rand.NewPCG(seed, 2))}
	f.volumes[v.name] = v
	return v
}

func (f *FS) newNode(v *Volume, mode uint32) *node {
	f.last++
	n := &node{v: v, id: f.last, ino: f.last, mode: mode}
	if n.isFolder() {
		n.now.entries = map[string]*node{}
	}
	n.touch(true)
	n.durable = n.now.clone()
	f.nodes[n.id] = n
	return n
}

// tick returns a time that is later than all previous ones.
func (f *FS) tick() time.Time {
	now := time.Now()
	if !now.After(f.clock) {
		now = f.clock.Add(1)
	}
	f.clock = now
	return now
}

func sorted(entries map[string]*node) []string { return slices.Sorted(maps.Keys(entries)) }

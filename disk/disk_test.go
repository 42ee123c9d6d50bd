package disk

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// TestMain runs more tests in parallel than there are CPUs, because the tests mostly wait for the
// disk. The flag -parallel has precedence.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	m.Run()
}

// tree returns every name below dir, with the content of a file or the target of a link.
func tree(t testing.TB, dir string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(name string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		line := e.Type().String() + " " + rel
		switch {
		case e.Type().IsRegular():
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d %s", len(data), digest256(data).Short())
		case e.Type()&os.ModeSymlink != 0:
			target, _ := os.Readlink(name)
			line += " -> " + target
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestInitKeepsExistingIdentity(t *testing.T) {
	dir := t.TempDir()
	first, err := Init(dir)
	if err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	if again, err := Init(dir); err != nil || again != first {
		t.Errorf("the second Init returned %s, error %v; the first returned %s", again, err, first)
	}
	if after := tree(t, dir); !slices.Equal(after, before) {
		t.Errorf("the identity after the second Init is %q, want %q", after, before)
	}
}

// TestOpenRefusesPathWithoutIdentity also checks that Open changes no file below the path.
func TestOpenRefusesPathWithoutIdentity(t *testing.T) {
	tests := []struct {
		name     string
		identity string // "-": none
		canInit  bool
	}{
		{"an empty mount point", "-", true},
		{"an identity of zero bytes", "", false},
		{"a truncated identity", `{"diskName":"a","diskUU`, false},
		{"an identity without a uuid", `{"diskName":"a"}`, false},
		{"a uuid that is a path", `{"diskUUID":"../../etc"}`, false},
		{"a uuid of a wrong type", `{"diskUUID":7}`, false},
		{"binary", "\x00\xff\x00", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if test.identity != "-" {
				if err := os.WriteFile(filepath.Join(dir, identityFile), []byte(test.identity), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			before := tree(t, dir)
			if _, err := Open(dir); !errors.Is(err, ErrNotInitialised) {
				t.Errorf("error is %v, want ErrNotInitialised", err)
			}
			if after := tree(t, dir); !slices.Equal(after, before) {
				t.Errorf("the files are %q, want %q", after, before)
			}
			if _, err := Init(dir); (err == nil) != test.canInit {
				t.Errorf("Init returned error %v", err)
			}
		})
	}
	if _, err := Open(filepath.Join(t.TempDir(), "nowhere")); !errors.Is(err, ErrNotInitialised) {
		t.Errorf("error is %v, want ErrNotInitialised", err)
	}
}

func TestOpenRefusesIdentityThatIsNoRegularFile(t *testing.T) {
	other := t.TempDir()
	if _, err := Init(other); err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func(string) error{
		"a link to another disk": func(at string) error { return os.Symlink(filepath.Join(other, identityFile), at) },
		"a link within the disk": func(at string) error {
			return errors.Join(os.WriteFile(at+"2", []byte(`{"diskUUID":"a-b"}`), 0o644), os.Symlink(identityFile+"2", at))
		},
		"a pipe":   func(at string) error { return unix.Mkfifo(at, 0o644) },
		"a folder": func(at string) error { return os.Mkdir(at, 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := plant(filepath.Join(dir, identityFile)); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(dir); !errors.Is(err, ErrNotInitialised) {
				t.Errorf("error is %v, want ErrNotInitialised", err)
			}
		})
	}
}

func TestCheckDetectsAnotherDiskAtPath(t *testing.T) {
	d := newDisk(t)
	if err := d.Check(); err != nil {
		t.Fatal(err)
	}
	need.Root(t, "mount a file system")
	if err := syscall.Mount("none", d.Path(), "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(d.Path(), syscall.MNT_DETACH) })
	if err := d.Check(); !errors.Is(err, errDiskChanged) {
		t.Errorf("below an empty mount: error is %v, want errDiskChanged", err)
	}
	if _, err := Init(d.Path()); err != nil {
		t.Fatal(err)
	}
	if err := d.Check(); !errors.Is(err, errDiskChanged) {
		t.Errorf("below another disk: error is %v, want errDiskChanged", err)
	}
	if err := syscall.Unmount(d.Path(), 0); err != nil {
		t.Fatal(err)
	}
	if err := d.Check(); err != nil {
		t.Errorf("after unmount: %v", err)
	}
}

// TestLockHolder is not a test: it is the second process of TestLock.
func TestLockHolder(t *testing.T) {
	path := os.Getenv("DISK_TEST_LOCK")
	if path == "" {
		t.Skip("TestLock runs it")
	}
	d, err := Open(path)
	if err == nil {
		_, err = d.Lock()
	}
	fmt.Println("holder:", err)
	_, _ = os.Stdin.Read(make([]byte, 1)) // blocks until the process is killed
}

func TestLock(t *testing.T) {
	d := newDisk(t)
	holder := exec.Command(os.Args[0], "-test.run", "^TestLockHolder$")
	holder.Env = append(os.Environ(), "DISK_TEST_LOCK="+d.Path())
	stdin, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := holder.StdoutPipe()
	if err == nil {
		err = holder.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "holder: <nil>\n" {
		t.Fatalf("the holder printed %q, error %v", line, err)
	}
	if _, err := d.Lock(); !errors.Is(err, ErrLocked) {
		t.Errorf("with a lock of another process: error is %v, want ErrLocked", err)
	}
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = holder.Wait() // returns an error because the process was killed
	unlock, err := d.Lock()
	if err != nil {
		t.Fatalf("after the holder was killed: %v", err)
	}
	if _, err := d.Lock(); !errors.Is(err, ErrLocked) {
		t.Errorf("second lock of one process: error is %v, want ErrLocked", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	if unlock, err = d.Lock(); err != nil {
		t.Fatalf("after unlock: %v", err)
	}
	defer unlock()
}

// TestUnlockReleasesInheritedLock unlocks a disk while another descriptor shares its lock. A process
// that this one is just starting has such descriptors until it executes its program.
func TestUnlockReleasesInheritedLock(t *testing.T) {
	d := newDisk(t)
	unlock, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	descriptors, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	shared := 0
	for _, link := range descriptors {
		if info, err := os.Stat(link); err != nil || !os.SameFile(info, d.identity) {
			continue
		}
		fd, err := strconv.Atoi(filepath.Base(link))
		if err == nil {
			fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		shared++
	}
	if shared == 0 {
		t.Fatal("no descriptor has the lock")
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	if unlock, err = d.Lock(); err != nil {
		t.Fatalf("after unlock: %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
}

// TestLockRestoresOnlyImageFolders checks that Lock restores folders whose removal was interrupted,
// and no other files with the same prefix.
func TestLockRestoresOnlyImageFolders(t *testing.T) {
	d := newDisk(t)
	readyImage(t, d, sparseImage(ChunkSize))
	images := filepath.Join(d.Path(), imagesFolder)
	aside := filepath.Join(images, removingPrefix)
	for _, err := range []error{
		os.Rename(filepath.Join(images, testID.String()), aside+testID.String()),
		os.Mkdir(aside+"willow-00000224", 0o755), // an empty folder
		os.Mkdir(aside+"not an image", 0o755),
		os.Symlink("/etc", aside+"oak-00000001"),
		os.WriteFile(aside+"elm-00000001", nil, 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	unlock, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if c := d.Stat(testID); c.State != model.Ready && c.State != model.Unknown {
		t.Errorf("restored: %+v", c)
	}
	if c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); err != nil || c.State != model.Ready {
		t.Errorf("restored and verified: %+v, error %v", c, err)
	}
	l, err := d.List()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(l.Unmanaged, ", ")
	if want := "backing-images/.removing-elm-00000001, backing-images/.removing-not an image, backing-images/.removing-oak-00000001"; got != want {
		t.Errorf("unmanaged: %s, want %s", got, want)
	}
}

// TestSpaceUsesFragmentSize checks Space on a file system whose preferred request size (Bsize)
// differs from the unit of its block counts (Frsize).
func TestSpaceUsesFragmentSize(t *testing.T) {
	v := newVolumeDisk(t, faultfs.Mount(t))
	d, err := Open(v.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if s, err := d.Space(); err != nil || s != (model.Space{Total: faultfs.Total, Free: faultfs.Free}) {
		t.Errorf("space is %+v, error %v, want %d and %d", s, err, int64(faultfs.Total), int64(faultfs.Free))
	}
}

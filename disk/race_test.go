package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/faultfs"
	"github.com/seed-26586806/backing-image-manager/disk/race"
)

var metaOfUser = []byte(`{"Size":1048576,"BackingFilePath":"/host/disk/backing-images/` + testID.String() + `/backing"}`)

// TestReplicaThatComesDuringRemove makes a replica before each operation of a
// removal. One that was there at the last look keeps its image.
func TestReplicaThatComesDuringRemove(t *testing.T) {
	t.Parallel()
	f := faultfs.Mount(t)
	image := sparseImage(4096)
	setUp := func(t *testing.T) (*Disk, *faultfs.Volume) {
		v := newVolumeDisk(t, f)
		v.Put(replicaFolder+"/other-00000001/volume.meta", []byte(`{"Size":1048576}`))
		d, err := Open(v.Path())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		readyImage(t, d, image)
		v.Restart()
		return d, v
	}
	d, v := setUp(t)
	if err := d.Remove(testID); err != nil {
		t.Fatal(err)
	}
	ops := v.Trace()
	lastLook := 0
	for i, op := range ops {
		if op.Kind == "list" && op.Path == replicaFolder && op.N%2 == 1 { // the even ones ask whether there is more
			lastLook = i
		}
	}
	if !slices.ContainsFunc(ops[:lastLook], func(op faultfs.Op) bool { return op.Kind == "rename" }) {
		t.Fatalf("the last look is before the folder is aside: %v", ops)
	}
	var kept atomic.Int64
	before := 0 // the last look
	t.Run("during", func(t *testing.T) {
		for i, op := range ops {
			if race.Enabled && i%8 != lastLook%8 {
				continue
			}
			if i <= lastLook {
				before++
			}
			t.Run(op.String(), func(t *testing.T) {
				t.Parallel()
				d, v := setUp(t)
				v.Plan(func(now faultfs.Op) error {
					if now == op {
						v.Put(replicaFolder+"/user-00000002/volume.meta", metaOfUser)
					}
					return nil
				})
				err := d.Remove(testID)
				c := d.Look(testID)
				switch {
				case i > lastLook: // nobody could know
				case !isA[*InUseError](err) || c.State == Pending:
					t.Errorf("error is %v, and the copy is %+v", err, c)
				default:
					kept.Add(1)
				}
				if err == nil != (c.State == Pending) {
					t.Errorf("error is %v, but the copy is %+v", err, c)
				}
			})
		}
	})
	if n := kept.Load(); n < int64(before-1) {
		t.Errorf("kept %d times of %d", n, before)
	}
}

// TestUserThatComesDuringRemove does what a replica does that starts: it writes its
// metadata and then opens the image. Once it has it open, the image stays.
func TestUserThatComesDuringRemove(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	image := sparseImage(4096)
	rounds, got, removed := 150, 0, 0
	if testing.Short() || race.Enabled {
		rounds = 30
	}
	for i := range rounds {
		readyImage(t, d, image)
		folder := filepath.Join(d.Path(), replicaFolder, fmt.Sprintf("user-%08x", i))
		begin, opened := make(chan struct{}), make(chan *os.File)
		go func() {
			<-begin
			for range i * 6 { // a little later each time
				_, _ = os.Lstat(d.Path())
			}
			tmp := filepath.Join(d.Path(), "tmp-replica")
			err := errors.Join(os.Mkdir(tmp, 0o755), os.WriteFile(filepath.Join(tmp, "volume.meta"), metaOfUser, 0o644),
				os.MkdirAll(filepath.Dir(folder), 0o755), os.Rename(tmp, folder))
			f, openErr := os.Open(imagePath(d, imageFile))
			if err != nil || openErr != nil && !errors.Is(openErr, fs.ErrNotExist) {
				t.Error(err, openErr)
			}
			opened <- f
		}()
		close(begin)
		err := d.Remove(testID)
		f := <-opened
		c := d.Look(testID)
		switch {
		case f != nil && (c.State == Pending || !isA[*InUseError](err)):
			t.Errorf("round %d: a user has it open, error is %v, copy is %+v", i, err, c)
		case err != nil && !isA[*InUseError](err):
			t.Errorf("round %d: %v", i, err)
		}
		if f != nil {
			got++
			f.Close()
		} else {
			removed++
		}
		if err := os.RemoveAll(folder); err != nil {
			t.Fatal(err)
		}
		if c.State != Pending {
			if err := d.Remove(testID); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d users got the image, %d came too late", got, removed)
}

// TestRemoveLeavesForeignFiles has something in the folder that is not ours.
func TestRemoveLeavesForeignFiles(t *testing.T) {
	d := newDisk(t)
	readyImage(t, d, sparseImage(ChunkSize))
	if err := os.MkdirAll(imagePath(d, "theirs/backing"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(imagePath(d, "backing.tmp"), []byte("Longhorn's"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(testID); err == nil {
		t.Error("nothing is said about the files that stay")
	}
	got := strings.Join(tree(t, filepath.Join(d.Path(), imagesFolder)), "\n")
	for _, name := range []string{"theirs/backing", "backing.tmp"} {
		if !strings.Contains(got, testID.String()+"/"+name) {
			t.Errorf("%s is gone:\n%s", name, got)
		}
	}
	if c := d.Look(testID); c.State != Pending || c.Owned {
		t.Errorf("copy is %+v", c)
	}
}

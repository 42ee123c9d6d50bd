package disk

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
)

// faultyDisk returns a disk whose file operations can be made to fail.
func faultyDisk(t *testing.T) (*Disk, *faultfs.Volume) {
	t.Helper()
	v := newVolumeDisk(t, faultfs.Mount(t))
	d, err := Open(v.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d, v
}

// fails returns a plan that lets every operation of a kind on a file of the image fail.
func fails(kind, file string, errno syscall.Errno) func(faultfs.Op) error {
	return func(op faultfs.Op) error {
		if op.Kind == kind && strings.HasSuffix(op.Path, "/"+file) {
			return errno
		}
		return nil
	}
}

// TestVerifyReadErrorKeepsCopyReady: a read error does not prove that the bytes are wrong.
func TestVerifyReadErrorKeepsCopyReady(t *testing.T) {
	d, v := faultyDisk(t)
	readyImage(t, d, sparseImage(3*ChunkSize))
	before := tree(t, d.Path())
	v.Plan(fails("read", imageFile, syscall.EIO))
	if _, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); !errors.Is(err, syscall.EIO) {
		t.Errorf("error is %v, want EIO", err)
	}
	v.Plan(nil)
	if c := d.Stat(testID); c.State != model.Ready {
		t.Errorf("copy is %+v", c)
	}
	if after := tree(t, d.Path()); strings.Join(after, "\n") != strings.Join(before, "\n") {
		t.Errorf("the files are %q, want %q", after, before)
	}
}

// TestResumeStopsAtUnreadableChunk checks that a chunk in a bad sector of a partial file is fetched
// again.
func TestResumeStopsAtUnreadableChunk(t *testing.T) {
	d, v := faultyDisk(t)
	image := bytes.Repeat(sparseImage(ChunkSize), 3)
	p := openPart(t, d, PartOptions{})
	fill(t, p, image)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	v.Restart()
	v.Plan(func(op faultfs.Op) error {
		if op.Kind == "read" && strings.HasSuffix(op.Path, partFile) && op.Count == 2 {
			return syscall.EIO
		}
		return nil
	})
	p = openPart(t, d, PartOptions{})
	if p.Offset() != ChunkSize {
		t.Fatalf("resumed at %d, want the chunk that cannot be read", p.Offset())
	}
	if _, err := p.ReadFrom(bytes.NewReader(image[p.Offset():])); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Commit(digest512(image)); err != nil {
		t.Fatal(err)
	}
}

// TestUnreadableRecordIsNotReplaced checks that a temporary read error of the record does not lose
// its content.
func TestUnreadableRecordIsNotReplaced(t *testing.T) {
	d, v := faultyDisk(t)
	readyImage(t, d, sparseImage(ChunkSize))
	if err := v.FlipBit(filePath(testID, imageFile), 5); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(imagePath(d, cfgFile)); err != nil { // otherwise Verify could use its checksum
		t.Fatal(err)
	}
	v.Plan(fails("read", recordFile, syscall.EIO))
	if c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); err == nil {
		t.Errorf("verified without its record: %+v", c)
	}
	if err := d.Update(testID, func(*Record) {}); !errors.Is(err, syscall.EIO) {
		t.Errorf("update: error is %v, want EIO", err)
	}
	if p, err := d.OpenPart(context.Background(), testID, PartOptions{}); err == nil {
		p.Close()
		t.Error("a partial file was opened without the record")
	}
	v.Plan(nil)
	if c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); err != nil || c.State != model.Failed {
		t.Errorf("verified with its record: %+v, error %v; want failed", c, err)
	}
}

// TestUnreadableCfgIsNotReplaced checks that a temporary read error of backing.cfg does not lose its
// content. For a damaged image of Longhorn, only backing.cfg contains the checksum.
func TestUnreadableCfgIsNotReplaced(t *testing.T) {
	d, v := faultyDisk(t)
	readyImage(t, d, sparseImage(ChunkSize))
	if err := errors.Join(os.Remove(imagePath(d, recordFile)), v.FlipBit(filePath(testID, imageFile), 5)); err != nil {
		t.Fatal(err)
	}
	v.Plan(fails("read", cfgFile, syscall.EIO))
	if c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); !errors.Is(err, syscall.EIO) {
		t.Errorf("verified without its cfg: %+v, error %v", c, err)
	}
	v.Plan(nil)
	if c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); err != nil || c.State != model.Failed {
		t.Errorf("verified with its cfg: %+v, error %v; want failed", c, err)
	}
}

// TestVerifyStatErrorIsNotDamage: a stat error because of too many open files does not prove that the
// bytes are wrong.
func TestVerifyStatErrorIsNotDamage(t *testing.T) {
	d, v := faultyDisk(t)
	readyImage(t, d, sparseImage(ChunkSize))
	if err := os.Remove(imagePath(d, recordFile)); err != nil {
		t.Fatal(err)
	}
	opened, failed := false, false
	v.Plan(func(op faultfs.Op) error {
		opened = opened || op.Kind == "open" && op.Path == filePath(testID, imageFile)
		if opened && !failed && op.Kind == "stat" && op.Path == imagesFolder {
			failed = true
			return syscall.EMFILE
		}
		return nil
	})
	c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {})
	if !failed || c.State == model.Failed {
		t.Errorf("stat failed: %v; the copy is %+v, error %v", failed, c, err)
	}
}

// TestFailedBeginLeavesNoSource checks that a partial file has no source after Begin failed to sync
// the record. Begin may or may not have written the new source.
func TestFailedBeginLeavesNoSource(t *testing.T) {
	d, v := faultyDisk(t)
	p := openPart(t, d, PartOptions{})
	fill(t, p, sparseImage(2*ChunkSize))
	v.Plan(fails("sync", recordFile+".tmp", syscall.EIO))
	if err := p.Begin(PartSource{ID: "new", Size: 512}); !errors.Is(err, syscall.EIO) {
		t.Fatalf("error is %v, want EIO", err)
	}
	if p.Offset() != 0 || p.Source() != (PartSource{}) {
		t.Errorf("the partial file is at %d of %+v, want an empty one without a source", p.Offset(), p.Source())
	}
}

// TestCommitKeepsRecordUpdatesMadeMeanwhile checks that Commit keeps changes of the record that were
// made while the partial file was written.
func TestCommitKeepsRecordUpdatesMadeMeanwhile(t *testing.T) {
	d := newDisk(t)
	p := openPart(t, d, PartOptions{})
	fill(t, p, sparseImage(ChunkSize))
	used := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	if err := d.Update(testID, func(r *Record) { r.LastUsed, r.InUseRecorded, r.SurplusSince = used, true, used }); err != nil {
		t.Fatal(err)
	}
	c, err := p.Commit(ident.Digest{})
	if err != nil {
		t.Fatal(err)
	}
	if !c.LastUsed.Equal(used) || !c.InUseRecorded || !c.SurplusSince.Equal(used) {
		t.Errorf("copy is %+v", c)
	}
}

// TestCommitWithoutSHA256IsNotChecksumError checks that Commit keeps the bytes if it must compare a
// SHA-256 that was not computed.
func TestCommitWithoutSHA256IsNotChecksumError(t *testing.T) {
	d := newDisk(t)
	image := sparseImage(2 * ChunkSize)
	p := openPart(t, d, PartOptions{})
	fill(t, p, image)
	if _, err := p.Commit(digest256(image)); err == nil || isA[*ChecksumError](err) {
		t.Errorf("error is %v", err)
	}
	p = openPart(t, d, PartOptions{SHA256: true})
	if p.Offset() != int64(len(image)) {
		t.Errorf("%d bytes were kept", p.Offset())
	}
	if _, err := p.Commit(digest256(image)); err != nil {
		t.Error(err)
	}
}

// TestUnlistableReplicasCountAsUse checks that every image counts as in use while the replicas cannot
// be listed.
func TestUnlistableReplicasCountAsUse(t *testing.T) {
	d, v := faultyDisk(t)
	replica(t, d, "vol-12345678", "")
	if why, inUse := d.Users().mayBeInUse(testID); inUse {
		t.Fatalf("in use: %s", why)
	}
	v.Plan(func(op faultfs.Op) error {
		if op.Kind == "list" && op.Path == replicaFolder {
			return syscall.EIO
		}
		return nil
	})
	if _, inUse := d.Users().mayBeInUse(testID); !inUse {
		t.Error("after a read error no image counts as in use")
	}
	v.Plan(nil)
	at := filepath.Join(d.Path(), replicaFolder)
	if err := errors.Join(os.Rename(at, at+"-moved")); err != nil {
		t.Fatal(err)
	}
	if why, inUse := d.Users().mayBeInUse(testID); inUse {
		t.Errorf("without replicas: in use: %s", why)
	}
}

// TestStatKeepsDamageFoundMeanwhile checks that the copy is not ready if a job finds it damaged while
// another goroutine calls Stat.
func TestStatKeepsDamageFoundMeanwhile(t *testing.T) {
	d, v := faultyDisk(t)
	readyImage(t, d, sparseImage(2*ChunkSize))
	info, err := os.Lstat(imagePath(d, imageFile))
	if err != nil {
		t.Fatal(err)
	}
	d.metadata.invalidate(testID)
	v.Plan(func(op faultfs.Op) error {
		if op.Path == filePath(testID, recordFile) {
			d.metadata.markDamaged(testID, evidenceOf(info))
		}
		return nil
	})
	d.Stat(testID)
	if c := d.Stat(testID); c.State != model.Unknown {
		t.Errorf("the copy is %s", c.State)
	}
}

// TestUnrecordedDamageIsNotReady checks that a damaged copy is not ready even if the damage cannot be
// recorded, because the disk is not writable any more.
func TestUnrecordedDamageIsNotReady(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EROFS} {
		d, v := faultyDisk(t)
		image := sparseImage(ChunkSize)
		readyImage(t, d, image)
		flip(t, v)
		info, err := os.Stat(imagePath(d, imageFile))
		if err != nil {
			t.Fatal(err)
		}
		now := evidenceOf(info) // bit rot does not change the inode
		if err := d.Update(testID, func(r *Record) { r.Evidence = &now }); err != nil {
			t.Fatal(err)
		}
		v.Plan(fails("write", recordFile+".tmp", errno))
		if c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); !errors.Is(err, errno) {
			t.Errorf("verified: %+v, error %v", c, err)
		}
		if c := d.Stat(testID); c.State != model.Unknown {
			t.Errorf("while the damage is not recorded: %+v", c)
		}
		if f, _, err := d.OpenBackingFile(testID); err == nil {
			f.Close()
			t.Error("a damaged image was opened as a backing file")
		}
		if l, err := d.List(); err != nil || l.Copies[0].State != model.Unknown {
			t.Errorf("in a list: %+v, error %v", l.Copies, err)
		}
		v.Plan(nil)
		if c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); err != nil || c.State != model.Failed {
			t.Errorf("when the disk is writable again: %+v, error %v", c, err)
		}
		var fetched []int64
		if c, err := d.Repair(context.Background(), testID, ident.Digest{}, fetchFrom(image, &fetched), func(int64) {}); err != nil || c.State != model.Ready {
			t.Errorf("repaired: %+v, error %v", c, err)
		}
	}
}

func flip(t *testing.T, v *faultfs.Volume) {
	t.Helper()
	if err := v.FlipBit(filePath(testID, imageFile), 5); err != nil {
		t.Fatal(err)
	}
}

// TestFailedSyncDropsPageCache checks that Commit and Verify drop the page cache after a failed sync.
// Otherwise the right bytes would still be in the page cache, and the next sync would succeed without
// writing them.
func TestFailedSyncDropsPageCache(t *testing.T) {
	image := bytes.Repeat(sparseImage(ChunkSize), 2)
	once := func(op faultfs.Op) error {
		if op.Kind == "sync" && strings.HasSuffix(op.Path, "/"+imageFile) && op.Count == 1 {
			return syscall.EIO
		}
		return nil
	}
	verify := func(d *Disk) error {
		_, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {})
		return err
	}
	repair := func(d *Disk) error {
		var fetched []int64
		_, err := d.Repair(context.Background(), testID, ident.Digest{}, fetchFrom(image, &fetched), func(int64) {})
		return err
	}
	for name, c := range map[string]struct {
		prepare func(d *Disk) error
		work    func(d *Disk) error
	}{
		"verify": {func(d *Disk) error {
			return errors.Join(os.MkdirAll(filepath.Dir(imagePath(d, imageFile)), 0o755), os.WriteFile(imagePath(d, imageFile), image, 0o644))
		}, verify},
		"repair": {func(d *Disk) error {
			readyImage(t, d, image)
			scribble(t, imagePath(d, imageFile), make([]byte, ChunkSize), 0)
			return verify(d)
		}, repair},
	} {
		d, v := faultyDisk(t)
		v.UsePageCache()
		if err := c.prepare(d); err != nil {
			t.Fatal(err)
		}
		v.Restart()
		v.Plan(once)
		if err := c.work(d); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s with a failing sync: error %v", name, err)
		}
		err := c.work(d)
		after := v.SurviveSynced()
		left, readErr := os.ReadFile(filepath.Join(after.Path(), filePath(testID, imageFile)))
		if c := d.Stat(testID); c.State != model.Ready || readErr != nil || c.SHA512 != digest512(left) {
			t.Errorf("%s again: %s, error %v; digest equals the bytes on the disk: %v, error %v", name, c.State, err, c.SHA512 == digest512(left), readErr)
		}
		after.Close()
	}
}

// readOnly is a plan under which nothing can be changed, as after a file system was remounted.
func readOnly(op faultfs.Op) error {
	if op.ChangeNumber > 0 && op.Kind != "sync" {
		return syscall.EROFS
	}
	return nil
}

// TestVerifyOnReadOnlyDisk checks that Verify has a result although it can record none.
func TestVerifyOnReadOnlyDisk(t *testing.T) {
	d, v := faultyDisk(t)
	readyImage(t, d, sparseImage(3*ChunkSize))
	verify := func() model.Copy {
		t.Helper()
		c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	v.Plan(readOnly)
	if c := verify(); c.State != model.Ready || c.Message != "" {
		t.Errorf("a ready copy is %+v", c)
	}
	v.Plan(nil)
	if err := d.Update(testID, func(r *Record) { r.Evidence = nil }); err != nil {
		t.Fatal(err)
	}
	v.Plan(readOnly)
	if c := verify(); c.State != model.Ready || !strings.Contains(c.Message, "not recorded") {
		t.Errorf("a copy without evidence is %+v", c)
	}
	if c := d.Stat(testID); c.State != model.Unknown {
		t.Errorf("without a record the copy is %+v", c)
	}
	if err := v.FlipBit(filePath(testID, imageFile), 0); err != nil {
		t.Fatal(err)
	}
	before := tree(t, d.Path())
	if c := verify(); c.State != model.Failed || !strings.Contains(c.Message, "damaged") {
		t.Errorf("a damaged copy is %+v", c)
	}
	if c := d.Stat(testID); c.State == model.Ready {
		t.Errorf("after its damage was found the copy is %+v", c)
	}
	if after := tree(t, d.Path()); strings.Join(after, "\n") != strings.Join(before, "\n") {
		t.Errorf("the files are %q, want %q", after, before)
	}
}

// TestReadOnlyAfterRefusedWrite: a file system that refuses writes without a flag is read-only until
// a write succeeds.
func TestReadOnlyAfterRefusedWrite(t *testing.T) {
	d, v := faultyDisk(t)
	check := func(want bool) {
		t.Helper()
		if got, err := d.ReadOnly(); err != nil || got != want {
			t.Errorf("read-only is %v, error %v, want %v", got, err, want)
		}
	}
	v.Plan(readOnly)
	check(false) // nothing was written yet
	d.WriteFailed(syscall.EIO)
	check(false)
	_, err := d.OpenPart(context.Background(), testID, PartOptions{})
	d.WriteFailed(err)
	check(true)
	check(true)
	v.Plan(nil)
	check(false)
}

// TestCommitWithoutSpaceForTheRecord checks that the error says how much more space is needed than there
// was. Otherwise the image would be transferred again as soon as its file is removed.
func TestCommitWithoutSpaceForTheRecord(t *testing.T) {
	d, v := faultyDisk(t)
	p := openPart(t, d, PartOptions{})
	image := sparseImage(2 * ChunkSize)
	fill(t, p, image)
	written := p.Written()
	v.Plan(fails("create", recordFile+".tmp", syscall.ENOSPC))
	_, err := p.Commit(ident.Digest{})
	if lack, ok := errors.AsType[*NoSpaceError](err); !ok || lack.Need <= written+min(lack.Free, maxUnusable) {
		t.Errorf("error is %v (%+v) after %d bytes", err, lack, written)
	}
}

package disk

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/faultfs"
)

// TestVerifyVouchesForWhatItRead changes the file when all of it has been read, but
// nothing is recorded yet.
func TestVerifyVouchesForWhatItRead(t *testing.T) {
	d := newDisk(t)
	image := sparseImage(2 * ChunkSize)
	readyImage(t, d, image)
	s, err := openSource(d.root, testID.file(imageFile))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	pass, err := d.readThrough(context.Background(), s, testID, false, func(int64) {})
	if err != nil {
		t.Fatal(err)
	}
	r, _, _ := d.readRecord(testID)
	damage := append([]byte{image[0] ^ 1}, image[1:]...)
	if err := os.WriteFile(imagePath(d, imageFile), damage, 0o644); err != nil {
		t.Fatal(err)
	}
	_ = d.settle(testID, r, Want{}, pass)
	if c := d.Look(testID); c.State == Ready {
		t.Error("a file is ready whose bytes nobody has read")
	}
}

// TestDescribeVouchesForWhatWasVerified is the same for what is not read at all.
func TestDescribeVouchesForWhatWasVerified(t *testing.T) {
	d := newDisk(t)
	readyImage(t, d, sparseImage(ChunkSize))
	r, _, _ := d.readRecord(testID)
	if err := os.Chtimes(imagePath(d, imageFile), r.Verified, r.Verified); err != nil {
		t.Fatal(err)
	}
	if err := d.Describe(testID, Digest{}); err == nil {
		t.Error("a file was vouched for that changed since it was verified")
	}
}

// TestCommitVouchesForWhatItWrote has somebody write to the image as soon as it has its
// name, while it is not vouched for yet.
func TestCommitVouchesForWhatItWrote(t *testing.T) {
	d, v := faultyDisk(t)
	image := sparseImage(2 * ChunkSize)
	p := openPart(t, d, PartOptions{})
	fill(t, p, image)
	damage := append([]byte{image[0] ^ 1}, image[1:]...)
	v.Plan(func(op faultfs.Op) error {
		if op.Kind == "rename" && op.Path == testID.file(partChunksFile) {
			v.Put(testID.file(imageFile), damage)
		}
		return nil
	})
	if c, err := p.Commit(digest512(image)); !errors.Is(err, ErrChanging) {
		t.Errorf("%+v, error %v", c, err)
	}
	if c := d.Look(testID); c.State != Unknown {
		t.Errorf("after it: %+v", c)
	}
	if c, err := d.Verify(context.Background(), testID, Want{}, func(int64) {}); err != nil || c.State != Failed {
		t.Errorf("verified: %+v, error %v", c, err)
	}
}

// TestVerifyWaitsForWriters adopts a file that somebody is copying to its place. The
// half of it that is there is no image, however long it rests.
func TestVerifyWaitsForWriters(t *testing.T) {
	d := newDisk(t)
	if err := os.MkdirAll(imagePath(d, ""), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(imagePath(d, imageFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	image := sparseImage(2 * ChunkSize)
	verify := func() (Copy, error) { return d.Verify(context.Background(), testID, Want{}, func(int64) {}) }
	if _, err := f.Write(image[:ChunkSize]); err != nil {
		t.Fatal(err)
	}
	if c, err := verify(); !errors.Is(err, ErrChanging) {
		t.Fatalf("half an image is %+v, error %v", c, err)
	}
	if _, err := f.Write(image[ChunkSize:]); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if c, err := verify(); err != nil || c.State != Ready || c.SHA512 != digest512(image) {
		t.Errorf("the image is %+v, error %v", c, err)
	}
}

// TestWriteWithinASecondIsNoticed has a file system whose times are whole seconds, and
// somebody who writes to an image as soon as it is ready.
func TestWriteWithinASecondIsNoticed(t *testing.T) {
	f := faultfs.Mount(t)
	image := sparseImage(2 * ChunkSize)
	for name, prepare := range map[string]func(t *testing.T, d *Disk) error{
		"commit": func(t *testing.T, d *Disk) error {
			readyImage(t, d, image)
			return nil
		},
		"verify": func(t *testing.T, d *Disk) error {
			_, err := d.makeFolder(testID)
			err = errors.Join(err, os.WriteFile(imagePath(d, imageFile), image, 0o644))
			if err == nil {
				_, err = d.Verify(context.Background(), testID, Want{}, func(int64) {})
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVolumeDisk(t, f)
			v.Coarse()
			d, err := Open(v.Path())
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if err := prepare(t, d); err != nil {
				t.Fatal(err)
			}
			before := d.Look(testID)
			poke(t, imagePath(d, imageFile), 5)
			if c := d.Look(testID); before.State != Ready || c.State != Unknown {
				t.Errorf("it was %s and is %s, with a bit that was changed", before.State, c.State)
			}
		})
	}
}

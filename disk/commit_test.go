package disk

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
)

// failedImage makes a failed copy, and returns the bytes of its file.
func failedImage(t *testing.T, d *Disk) []byte {
	t.Helper()
	readyImage(t, d, sparseImage(2*ChunkSize))
	poke(t, imagePath(d, imageFile), 5)
	verifyFails(t, d)
	old, err := os.ReadFile(imagePath(d, imageFile))
	if err != nil {
		t.Fatal(err)
	}
	return old
}

// A process opens the failed image after the check and before the swap. The file gets its name
// back.
func TestCommitKeepsFailedImageOpenedBeforeSwap(t *testing.T) {
	d := newDisk(t)
	old := failedImage(t, d)
	p := openPart(t, d, PartOptions{})
	fill(t, p, sparseImage(3*ChunkSize))
	swap := &replacement{folder: p.folder}
	if _, err := p.finish(Digest{}, swap); err != nil {
		t.Fatal(err)
	}
	user, err := os.Open(imagePath(d, imageFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := swap.run(); !isA[*InUseError](err) {
		t.Errorf("with a user the error is %v", err)
	}
	if got, err := os.ReadFile(imagePath(d, imageFile)); err != nil || !bytes.Equal(got, old) {
		t.Errorf("the image in use was replaced (error %v)", err)
	}
	user.Close()
	if err := swap.run(); err != nil {
		t.Errorf("without a user the error is %v", err)
	}
	if got, err := os.ReadFile(imagePath(d, imageFile)); err != nil || !bytes.Equal(got, sparseImage(3*ChunkSize)) {
		t.Errorf("the image was not replaced (error %v)", err)
	}
}

// A file appeared while the partial file was written. It may be the last good copy: it must be
// verified, and not replaced.
func TestCommitKeepsUnverifiedFile(t *testing.T) {
	theirs := sparseImage(2 * ChunkSize)
	d := newDisk(t)
	p := openPart(t, d, PartOptions{})
	fill(t, p, sparseImage(3*ChunkSize))
	if err := os.WriteFile(imagePath(d, imageFile), theirs, 0o644); err != nil {
		t.Fatal(err)
	}
	if c, err := p.Commit(Digest{}); err == nil {
		t.Errorf("the file was replaced: %+v", c)
	}
	if got, err := os.ReadFile(imagePath(d, imageFile)); err != nil || !bytes.Equal(got, theirs) {
		t.Errorf("the file has other bytes (error %v)", err)
	}
	c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {})
	if err != nil || c.State != Ready || c.SHA512 != digest512(theirs) {
		t.Errorf("the file is not ready: %+v, error %v", c, err)
	}
}

// On a file system without RENAME_EXCHANGE there is no second check for users: the only one is
// right before the rename, after the records were written and synced.
func TestCommitKeepsOpenedImageWithoutRenameExchange(t *testing.T) {
	d, v := faultyDisk(t)
	old := failedImage(t, d)
	p := openPart(t, d, PartOptions{})
	fill(t, p, sparseImage(3*ChunkSize))
	swap := &replacement{folder: p.folder}
	if _, err := p.finish(Digest{}, swap); err != nil {
		t.Fatal(err)
	}
	user, err := os.Open(imagePath(d, imageFile))
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	v.Plan(func(op faultfs.Op) error {
		if op.Kind == "exchange" {
			return syscall.EINVAL
		}
		return nil
	})
	if err := swap.run(); !isA[*InUseError](err) {
		t.Errorf("with a user the error is %v", err)
	}
	if got, err := os.ReadFile(imagePath(d, imageFile)); err != nil || !bytes.Equal(got, old) {
		t.Errorf("the image in use was replaced (error %v)", err)
	}
}

// There was no image when Commit checked, and there is one when it renames.
func TestCommitKeepsFileThatAppearsAtSwap(t *testing.T) {
	d, v := faultyDisk(t)
	old := failedImage(t, d)
	p := openPart(t, d, PartOptions{})
	fill(t, p, sparseImage(3*ChunkSize))
	swap := &replacement{folder: p.folder}
	if _, err := p.finish(Digest{}, swap); err != nil {
		t.Fatal(err)
	}
	v.Plan(func(op faultfs.Op) error {
		if op.Kind == "exchange" {
			return syscall.ENOENT
		}
		return nil
	})
	if err := swap.run(); !errors.Is(err, fs.ErrExist) {
		t.Errorf("error is %v", err)
	}
	if got, err := os.ReadFile(imagePath(d, imageFile)); err != nil || !bytes.Equal(got, old) {
		t.Errorf("the file was replaced (error %v)", err)
	}
}

// A failed image gets a user at the last moment, so it is not replaced. It can still be repaired:
// its record is not that of the new bytes.
func TestCommitOfImageInUseKeepsItsRecord(t *testing.T) {
	d, v := faultyDisk(t)
	failedImage(t, d)
	p := openPart(t, d, PartOptions{})
	fill(t, p, sparseImage(3*ChunkSize))
	v.Plan(func(op faultfs.Op) error {
		if op.Kind == "exchange" {
			v.Put("replicas/vol-12345678/volume.meta", []byte(`{"Size":1048576,"BackingFilePath":"/data/backing-images/`+testID.String()+`/backing"}`))
		}
		return nil
	})
	if c, err := p.Commit(Digest{}); !isA[*InUseError](err) {
		t.Fatalf("%+v, error %v", c, err)
	}
	verifyFails(t, d)
	var fetched []int64
	image := sparseImage(2 * ChunkSize)
	if c, err := d.Repair(context.Background(), testID, Digest{}, fetchFrom(image, &fetched), func(int64) {}); err != nil || c.State != Ready || c.SHA512 != digest512(image) {
		t.Errorf("%+v, error %v", c, err)
	}
}

// A file appears after the last check: where there was none, or in place of the failed one. It
// may be the last good copy: it stays, and is verified against the old record, not against the
// digest of the partial file.
func TestCommitKeepsFileThatAppearsAfterCheck(t *testing.T) {
	theirs := sparseImage(4 * ChunkSize)
	for _, failed := range []bool{false, true} {
		for _, flags := range []bool{true, false} {
			d, v := faultyDisk(t)
			if failed {
				failedImage(t, d)
			}
			p := openPart(t, d, PartOptions{})
			fill(t, p, sparseImage(3*ChunkSize))
			puts := 0
			v.Plan(func(op faultfs.Op) error {
				if puts == 0 && op.Kind == "rename" && strings.HasSuffix(op.Path, recordFile+".tmp") {
					v.Put("backing-images/"+testID.String()+"/"+imageFile, theirs)
					puts++
				}
				if !flags && (op.Kind == "exchange" || op.Kind == "noreplace") {
					return syscall.EINVAL
				}
				return nil
			})
			c, err := p.Commit(Digest{})
			v.Plan(nil)
			if err == nil || puts == 0 {
				t.Errorf("failed %v, flags %v: the file was replaced: %+v", failed, flags, c)
			}
			if got, err := os.ReadFile(imagePath(d, imageFile)); err != nil || !bytes.Equal(got, theirs) {
				t.Errorf("failed %v, flags %v: the file has other bytes (error %v)", failed, flags, err)
			}
			c, err = d.Verify(context.Background(), testID, Expected{}, func(int64) {})
			if !failed && (err != nil || c.State != Ready || c.SHA512 != digest512(theirs)) {
				t.Errorf("flags %v: it is not ready: %+v, error %v", flags, c, err)
			}
		}
	}
}

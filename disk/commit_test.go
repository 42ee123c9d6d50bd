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

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
)

// failedImage creates a failed copy, and returns the bytes of its file.
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

// TestCommitKeepsFailedImageOpenedBeforeSwap checks that the failed image gets its name back if a
// process opens it after the first check and before the swap.
func TestCommitKeepsFailedImageOpenedBeforeSwap(t *testing.T) {
	d := newDisk(t)
	old := failedImage(t, d)
	p := openPart(t, d, PartOptions{})
	fill(t, p, sparseImage(3*ChunkSize))
	swap := &replacement{folder: p.folder}
	if _, err := p.finish(ident.Digest{}, swap); err != nil {
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

// TestCommitKeepsUnverifiedFile checks that Commit does not replace a file that was created while the
// partial file was written. The file may be the last good copy, so it must be verified first.
func TestCommitKeepsUnverifiedFile(t *testing.T) {
	theirs := sparseImage(2 * ChunkSize)
	d := newDisk(t)
	p := openPart(t, d, PartOptions{})
	fill(t, p, sparseImage(3*ChunkSize))
	if err := os.WriteFile(imagePath(d, imageFile), theirs, 0o644); err != nil {
		t.Fatal(err)
	}
	if c, err := p.Commit(ident.Digest{}); err == nil {
		t.Errorf("the file was replaced: %+v", c)
	}
	if got, err := os.ReadFile(imagePath(d, imageFile)); err != nil || !bytes.Equal(got, theirs) {
		t.Errorf("the file was changed (error %v)", err)
	}
	c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {})
	if err != nil || c.State != model.Ready || c.SHA512 != digest512(theirs) {
		t.Errorf("the file is not ready: %+v, error %v", c, err)
	}
}

// TestCommitKeepsOpenedImageWithoutRenameExchange checks that Commit detects a user on a file system
// without RENAME_EXCHANGE. There, Commit checks for users only once, immediately before the rename
// and after the records were written and synced.
func TestCommitKeepsOpenedImageWithoutRenameExchange(t *testing.T) {
	d, v := faultyDisk(t)
	old := failedImage(t, d)
	p := openPart(t, d, PartOptions{})
	fill(t, p, sparseImage(3*ChunkSize))
	swap := &replacement{folder: p.folder}
	if _, err := p.finish(ident.Digest{}, swap); err != nil {
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

// TestCommitKeepsFileThatAppearsAtSwap checks that Commit does not replace an image that was created
// after the check and before the rename.
func TestCommitKeepsFileThatAppearsAtSwap(t *testing.T) {
	d, v := faultyDisk(t)
	old := failedImage(t, d)
	p := openPart(t, d, PartOptions{})
	fill(t, p, sparseImage(3*ChunkSize))
	swap := &replacement{folder: p.folder}
	if _, err := p.finish(ident.Digest{}, swap); err != nil {
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

// TestCommitOfImageInUseKeepsItsRecord checks that a failed image can still be repaired if a user
// prevented its replacement: its record is not replaced by the record of the new bytes.
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
	if c, err := p.Commit(ident.Digest{}); !isA[*InUseError](err) {
		t.Fatalf("%+v, error %v", c, err)
	}
	verifyFails(t, d)
	var fetched []int64
	image := sparseImage(2 * ChunkSize)
	if c, err := d.Repair(context.Background(), testID, ident.Digest{}, fetchFrom(image, &fetched), func(int64) {}); err != nil || c.State != model.Ready || c.SHA512 != digest512(image) {
		t.Errorf("%+v, error %v", c, err)
	}
}

// TestCommitKeepsFileThatAppearsAfterCheck checks that Commit does not replace a file that was
// created after the last check, where no file existed or in place of the failed image. The file may
// be the last good copy. It must be verified against the old record, not against the digest of the
// partial file.
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
			c, err := p.Commit(ident.Digest{})
			v.Plan(nil)
			if err == nil || puts == 0 {
				t.Errorf("failed %v, flags %v: the file was replaced: %+v", failed, flags, c)
			}
			if got, err := os.ReadFile(imagePath(d, imageFile)); err != nil || !bytes.Equal(got, theirs) {
				t.Errorf("failed %v, flags %v: the file was changed (error %v)", failed, flags, err)
			}
			c, err = d.Verify(context.Background(), testID, Expected{}, func(int64) {})
			if !failed && (err != nil || c.State != model.Ready || c.SHA512 != digest512(theirs)) {
				t.Errorf("flags %v: it is not ready: %+v, error %v", flags, c, err)
			}
		}
	}
}

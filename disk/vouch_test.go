package disk

import (
	"context"
	"os"
	"testing"
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
	had := d.Look(testID)
	pass, err := d.readThrough(context.Background(), s, testID, false, func(int64) {})
	if err != nil {
		t.Fatal(err)
	}
	r, _, _ := d.readRecord(testID)
	damage := append([]byte{image[0] ^ 1}, image[1:]...)
	if err := os.WriteFile(imagePath(d, imageFile), damage, 0o644); err != nil {
		t.Fatal(err)
	}
	_ = d.settle(testID, had, r, Want{}, pass)
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

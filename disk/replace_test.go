package disk

import (
	"bytes"
	"os"
	"testing"
)

// A user that comes after the last look and before the new image is in place gets
// the file that it opened back under its name.
func TestFailedImageIsLookedAtOnceMore(t *testing.T) {
	d := newDisk(t)
	old := sparseImage(2 * ChunkSize)
	if _, err := d.makeFolder(testID); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(imagePath(d, imageFile), old, 0o644); err != nil {
		t.Fatal(err)
	}
	p := openPart(t, d, PartOptions{})
	fill(t, p, sparseImage(3*ChunkSize))
	if err := p.finish(Digest{}); err != nil {
		t.Fatal(err)
	}
	user, err := os.Open(imagePath(d, imageFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.putInPlace(testID); !isA[*InUseError](err) {
		t.Errorf("with a user the error is %v", err)
	}
	if got, err := os.ReadFile(imagePath(d, imageFile)); err != nil || !bytes.Equal(got, old) {
		t.Errorf("the image in use was replaced (error %v)", err)
	}
	user.Close()
	if err := d.putInPlace(testID); err != nil {
		t.Errorf("without a user the error is %v", err)
	}
	if got, err := os.ReadFile(imagePath(d, imageFile)); err != nil || !bytes.Equal(got, sparseImage(3*ChunkSize)) {
		t.Errorf("the image was not replaced (error %v)", err)
	}
}

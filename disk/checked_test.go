package disk

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
)

func TestCheckedGivesOnlyWhatItWas(t *testing.T) {
	d := newDisk(t)
	image := sparseImage(6*ChunkSize + 1024)
	readyImage(t, d, image)
	r, err := d.Open(testID)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	m, err := d.Manifest(testID)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	size := int64(len(image))
	all, err := io.ReadAll(io.NewSectionReader(NewChecked(testID, r, m), 0, size))
	if err != nil || !bytes.Equal(all, image) {
		t.Fatalf("%d bytes, error %v", len(all), err)
	}
	f, err := os.OpenFile(imagePath(d, imageFile), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := int64(5*ChunkSize + 17)
	if _, err := f.WriteAt([]byte{^image[at]}, at); err != nil {
		t.Fatal(err)
	}
	c, b := NewChecked(testID, r, m), make([]byte, 512)
	if _, err := c.ReadAt(b, at); !errors.Is(err, ErrDamaged) {
		t.Errorf("error is %v", err)
	}
	if n, err := c.ReadAt(b, 5*ChunkSize-256); n != 256 || !errors.Is(err, ErrDamaged) {
		t.Errorf("%d bytes before the damage, error %v", n, err)
	}
	if n, err := c.ReadAt(b, size-100); n != 100 || err != io.EOF {
		t.Errorf("%d bytes at the end, error %v", n, err)
	}
}

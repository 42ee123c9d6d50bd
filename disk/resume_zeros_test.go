package disk

import (
	"bytes"
	"testing"
)

// TestResumeKeepsZerosAtTheEnd is killed in a long hole: the file ends before it,
// and only the journal knows that its zeros came.
func TestResumeKeepsZerosAtTheEnd(t *testing.T) {
	d := newDisk(t)
	image := make([]byte, 40*ChunkSize)
	copy(image, sparseImage(ChunkSize))
	copy(image[39*ChunkSize:], sparseImage(ChunkSize))
	p := openPart(t, d, PartOptions{})
	if err := p.Begin(Origin{Source: "test", Size: int64(len(image))}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReadFrom(bytes.NewReader(image[:30*ChunkSize])); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p = openPart(t, d, PartOptions{})
	if p.Offset() != 30*ChunkSize {
		t.Errorf("%d chunks of 30 are kept", p.Offset()/ChunkSize)
	}
	if _, err := p.ReadFrom(bytes.NewReader(image[p.Offset():])); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Commit(digest512(image)); err != nil {
		t.Fatal(err)
	}
}

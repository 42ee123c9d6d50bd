package disk

import (
	"bytes"
	"errors"
	"testing"
)

// TestBeginTakesWhatIsSparse: an image may be larger than the disk, if what is in it
// is not.
func TestBeginTakesWhatIsSparse(t *testing.T) {
	d := newDisk(t)
	space, err := d.Space()
	if err != nil {
		t.Fatal(err)
	}
	size := space.Free &^ 511 * 2
	if err := openPart(t, d, PartOptions{}).Begin(Origin{Source: "test", Size: size, Data: ChunkSize}); err != nil {
		t.Error(err)
	}
	lack, is := errors.AsType[*NoSpaceError](openPart(t, d, PartOptions{}).Begin(Origin{Source: "test", Size: 2 * size, Data: size}))
	if !is || lack.Need != size {
		t.Errorf("with more data than is free the error is %v", lack)
	}
}

// TestNoSpaceInTheMiddle: whoever waits for space has to know for how much, or the
// image would be fetched again as soon as its part is gone.
func TestNoSpaceInTheMiddle(t *testing.T) {
	p := openPart(t, newDisk(t), PartOptions{Reserve: 1 << 60})
	if err := p.Begin(Origin{Source: "test", Size: -1}); err != nil {
		t.Fatal(err)
	}
	_, err := p.ReadFrom(bytes.NewReader(sparseImage(64 << 20)))
	if err == nil {
		_, err = p.Commit(Digest{})
	}
	lack, ok := errors.AsType[*NoSpaceError](err)
	if !ok || lack.Need < ChunkSize || !errors.Is(err, ErrNoSpace) {
		t.Errorf("got %v (%+v), want a lack of at least a chunk", err, lack)
	}
}

// TestNoSpaceForWhatWasPromised: others took the space meanwhile. There has to be room for
// all of it again, and not only for what came.
func TestNoSpaceForWhatWasPromised(t *testing.T) {
	const size = 64 << 20
	p := openPart(t, newDisk(t), PartOptions{})
	if err := p.Begin(Origin{Source: "test", Size: size}); err != nil {
		t.Fatal(err)
	}
	p.options.Reserve = 1 << 60
	_, err := p.ReadFrom(bytes.NewReader(sparseImage(size)))
	if err == nil {
		_, err = p.Commit(Digest{})
	}
	if lack, ok := errors.AsType[*NoSpaceError](err); !ok || lack.Need != size {
		t.Errorf("got %v (%+v), want a lack of %d bytes", err, lack, size)
	}
}

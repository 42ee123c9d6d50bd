package disk

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"
)

// TestNoPartBesideAReadyImage begins to replace a failed image, which becomes ready
// again in another way meanwhile: what was begun only takes room then.
func TestNoPartBesideAReadyImage(t *testing.T) {
	image := sparseImage(3 * ChunkSize)
	mend := map[string]func(t *testing.T, d *Disk) (Copy, error){
		"repaired": func(t *testing.T, d *Disk) (Copy, error) {
			var asked []int64
			return d.Repair(t.Context(), testID, Digest{}, peerWith(image, &asked), func(int64) {})
		},
		"verified": func(t *testing.T, d *Disk) (Copy, error) {
			poke(t, imagePath(d, imageFile), 7) // it was a bad cable
			return d.Verify(t.Context(), testID, Want{}, func(int64) {})
		},
	}
	for name, mend := range mend {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			readyImage(t, d, image)
			poke(t, imagePath(d, imageFile), 7)
			if c, err := d.Verify(context.Background(), testID, Want{}, func(int64) {}); err != nil || c.State != Failed {
				t.Fatalf("verified: %+v, error %v", c, err)
			}
			p := openPart(t, d, PartOptions{})
			if err := p.Begin(Origin{Source: "test", Size: int64(len(image))}); err != nil {
				t.Fatal(err)
			}
			if _, err := p.ReadFrom(bytes.NewReader(image[:2*ChunkSize])); err != nil {
				t.Fatal(err)
			}
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			c, err := mend(t, d)
			if err != nil || c.State != Ready || c.PartBytes != 0 {
				t.Fatalf("the copy is %+v, error %v", c, err)
			}
			if _, err := os.Stat(imagePath(d, partFile)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the part is left: %v", err)
			}
		})
	}
}

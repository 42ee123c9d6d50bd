package disk

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

var testSignature = model.Signature{Scheme: "openpgp", Signer: "0123ABCD", Time: time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)}

// signatureCheck accepts only image, with testSignature.
func signatureCheck(image []byte) SignatureCheck {
	var got *bytes.Buffer
	return SignatureCheck{
		Begin: func() io.Writer { got = &bytes.Buffer{}; return got },
		End: func() (model.Signature, error) {
			if !bytes.Equal(got.Bytes(), image) {
				return model.Signature{}, errors.New("other bytes")
			}
			return testSignature, nil
		},
	}
}

// TestSignatureCheckReceivesAllBytes checks that the bytes of a resumed file, and of one that begins again, are judged
// as a whole, and that the record has the signature.
func TestSignatureCheckReceivesAllBytes(t *testing.T) {
	image := sparseImage(5*ChunkSize - 512)
	head := func(p *Part) {
		if err := p.Begin(PartSource{ID: "test", Size: int64(len(image))}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.ReadFrom(bytes.NewReader(image[:3*ChunkSize+7])); err != nil {
			t.Fatal(err)
		}
	}
	for name, prepare := range map[string]func(*Disk) *Part{
		"new": func(d *Disk) *Part { return openPart(t, d, PartOptions{Check: signatureCheck(image)}) },
		"resumed": func(d *Disk) *Part {
			p := openPart(t, d, PartOptions{})
			head(p)
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			p = openPart(t, d, PartOptions{Check: signatureCheck(image)})
			if p.Offset() != 3*ChunkSize {
				t.Fatalf("resumed at %d", p.Offset())
			}
			return p
		},
		"again": func(d *Disk) *Part {
			p := openPart(t, d, PartOptions{Check: signatureCheck(image)})
			head(p)
			return p
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			p := prepare(d)
			if name != "resumed" {
				fill(t, p, image)
			} else if _, err := p.ReadFrom(bytes.NewReader(image[p.Offset():])); err != nil {
				t.Fatal(err)
			}
			c, err := p.Commit(ident.Digest{})
			if err != nil || c.Signature != testSignature {
				t.Fatalf("got %+v, %v", c.Signature, err)
			}
			if c := d.Stat(testID); c.Signature != testSignature {
				t.Errorf("the record has %+v", c.Signature)
			}
		})
	}
}

func TestCommitRejectsBytesWithoutSignature(t *testing.T) {
	image := sparseImage(2 * ChunkSize)
	d := newDisk(t)
	p := openPart(t, d, PartOptions{Check: signatureCheck(image[1:])})
	fill(t, p, image)
	if c, err := p.Commit(digest512(image)); !isA[*SignatureError](err) {
		t.Errorf("got %+v, %v", c, err)
	}
	for _, name := range []string{imageFile, partFile} {
		if _, err := os.Stat(imagePath(d, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
	if c := d.Stat(testID); c.State != model.Pending || c.Signature != (model.Signature{}) {
		t.Errorf("copy is %+v", c)
	}
}

func TestCommitComparesBothDigests(t *testing.T) {
	image := sparseImage(2 * ChunkSize)
	for _, tt := range []struct {
		also ident.Digest
		good bool
	}{{digest256(image), true}, {digest512(image), true}, {digest256(nil), false}, {digest512(nil), false}} {
		d := newDisk(t)
		p := openPart(t, d, PartOptions{Check: SignatureCheck{Digest: tt.also}})
		fill(t, p, image)
		if _, err := p.Commit(digest512(image)); (err == nil) != tt.good || !tt.good && !isA[*ChecksumError](err) {
			t.Errorf("%s: %v", tt.also, err)
		}
	}
}

// TestSignatureIsOfTheRecordedBytes checks that the record of other bytes does not keep the signature, and that a
// verification of the same bytes does.
func TestSignatureIsOfTheRecordedBytes(t *testing.T) {
	image := sparseImage(2 * ChunkSize)
	d := newDisk(t)
	p := openPart(t, d, PartOptions{Check: signatureCheck(image)})
	fill(t, p, image)
	if _, err := p.Commit(ident.Digest{}); err != nil {
		t.Fatal(err)
	}
	verify := func() model.Copy {
		t.Helper()
		c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if c := verify(); c.State != model.Ready || c.Signature != testSignature {
		t.Errorf("the same bytes: %+v", c)
	}
	image[0]++
	if err := os.WriteFile(imagePath(d, imageFile), image, 0o644); err != nil {
		t.Fatal(err)
	}
	if c := verify(); c.State == model.Ready {
		t.Errorf("other bytes are ready with the signature of %+v", c.Signature)
	}
	// A copy of other bytes that replaces the failed one.
	p = openPart(t, d, PartOptions{})
	fill(t, p, image)
	if c, err := p.Commit(digest512(image)); err != nil || c.Signature != (model.Signature{}) {
		t.Errorf("the new copy has %+v, %v", c.Signature, err)
	}
}

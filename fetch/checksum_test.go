package fetch

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

// hash256 and hash512 are the hex digits of two digests.
var (
	hash256 = strings.Repeat("a1", 32)
	hash512 = strings.Repeat("b2", 64)
	other   = strings.Repeat("c3", 32)
)

func mustParseDigest(t testing.TB, s string) ident.Digest {
	t.Helper()
	d, err := ident.ParseDigest(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestLookUpChecksum(t *testing.T) {
	want256, want512 := mustParseDigest(t, "sha256:"+hash256), mustParseDigest(t, hash512)
	var none ident.Digest
	tests := []struct {
		name, image, list string
		stored, packed    ident.Digest
		word              string // expected in the error; empty: no error
	}{
		{"in a folder", "a.img", hash256 + "  ./images/a.img", want256, none, ""},
		{"both algorithms", "a.img", "SHA256 (a.img) = " + hash256 + "\nSHA512 (a.img) = " + hash512 + "\n", want512, none, ""},
		{"unpacked name", "a.img.xz", hash256 + "  a.img", want256, none, ""},
		{"both names", "a.img.xz", hash256 + "  a.img.xz\n" + hash512 + "  a.img", want512, want256, ""},
		{"not listed", "noble-amd64.img", hash256 + "  noble-arm64.img\n" + other + "  unrelated\n", none, none,
			`"noble-amd64.img" is not listed: similar names are noble-arm64.img`},
		{"no similar name", "a.img", hash256 + "  something-else-altogether.iso\n" + other + "  b", none, none, "among 2 checksums"},
		{"conflict", "a.img", hash256 + "  a.img\n" + other + "  a.img", none, none, "more than one checksum"},
		{"conflict in other folders", "a.img", hash256 + "  new/a.img\n" + other + "  old/a.img", none, none, "more than one checksum"},
		{"the same twice", "a.img", hash256 + "  new/a.img\n" + hash256 + "  old/a.img", want256, none, ""},
		{"too large", "a.img", strings.Repeat("# padding\n", 200_000), none, none, "larger than"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newFixture(t)
			req := Request{URL: "https://images.invalid/x/" + tt.image + "?sig=" + secretMarker}
			req.ChecksumURL = withSecretQuery(r.server.Serve("/SHA256SUMS", fetchtest.Bytes([]byte(tt.list))))
			got, err := r.client.LookUpChecksum(context.Background(), req)
			if tt.word != "" {
				wantError(t, err, err.(*Error).Class, tt.word)
				return
			}
			if err != nil || got.Digest != tt.stored || got.PackedDigest != tt.packed {
				t.Errorf("got stored %v, packed %v, %v; want %v and %v", got.Digest, got.PackedDigest, err, tt.stored, tt.packed)
			}
		})
	}
}

// A list with two algorithms is right only if the bytes have both digests, also those of a packed file.
func TestListWithContradictingChecksums(t *testing.T) {
	image := image[:64<<10]
	packed := packWith(t, packedGz, image)
	for _, right := range []bool{true, false} {
		for name, file := range map[string][]byte{"image.raw": image, "image.raw.gz": packed} {
			r := newFixture(t)
			req := Request{URL: r.server.Serve("/"+name, fetchtest.Bytes(file))}
			short, long := sha256.Sum256(file), sha512.Sum512(file)
			if !right {
				short[0]++
			}
			list := fmt.Sprintf("SHA256 (%s) = %x\nSHA512 (%s) = %x\n", name, short, name, long)
			req.ChecksumURL = r.server.Serve("/CHECKSUM", fetchtest.Bytes([]byte(list)))
			req, err := r.client.LookUpChecksum(context.Background(), req)
			if err != nil {
				t.Fatal(err)
			}
			_, err = r.commitSigned(req)
			if _, wrong := errors.AsType[*disk.ChecksumError](err); wrong == right || (err == nil) != right {
				t.Errorf("%s, right %v: got %v", name, right, err)
			}
		}
	}
}

func TestLookUpChecksumWithFaultyServer(t *testing.T) {
	list := []byte(strings.Repeat("# padding\n", 10_000) + hash256 + "  a.img\n")
	tests := []struct {
		fault fetchtest.Fault
		class Class
	}{
		{fetchtest.Fault{Kind: fetchtest.Cut, At: 70_000, Times: 2}, 0},
		{fetchtest.Fault{Kind: fetchtest.NoLength}, 0},
		{fetchtest.Fault{Kind: fetchtest.NotFound}, Refused},
		{fetchtest.Fault{Kind: fetchtest.Unavailable}, Network},
		{fetchtest.Fault{Kind: fetchtest.Empty}, Refused},
	}
	for _, tt := range tests {
		r := newFixture(t)
		req := Request{URL: "https://images.invalid/a.img", ChecksumURL: r.server.Serve("/SHA256SUMS", fetchtest.Bytes(list), tt.fault)}
		got, err := r.client.LookUpChecksum(context.Background(), req)
		if tt.class != 0 {
			wantError(t, err, tt.class, "SHA256SUMS")
		} else if err != nil || got.Digest.IsZero() {
			t.Errorf("%v: got %v, %v", tt.fault.Kind, got.Digest, err)
		}
	}
}

// TestDownloadWithChecksumFile downloads an image that has SHA256SUMS beside it.
func TestDownloadWithChecksumFile(t *testing.T) {
	r := newFixture(t)
	image := image[:256<<10] // the packer is slow
	packed := packWith(t, packedXz, image)
	h := sha256.New()
	h.Write(packed)
	req := Request{URL: r.server.Serve("/image.raw.xz", fetchtest.Bytes(packed))}
	line := strings.TrimPrefix(ident.SHA256.Digest(h).String(), "sha256:") + " *image.raw.xz\n"
	req.ChecksumURL = r.server.Serve("/SHA256SUMS", fetchtest.Bytes([]byte(line)))
	req, err := r.client.LookUpChecksum(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.download(req); err != nil {
		t.Fatal(err)
	}
	r.wantImage(image)
}

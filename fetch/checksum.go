package fetch

import (
	"cmp"
	"context"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch/checksum"
)

// maxChecksumFile is the maximum size of a checksum file. The checksum file of a whole distribution
// has 100 KiB.
const maxChecksumFile = 1 << 20

// LookUpChecksum finds the image of r in the checksum file at r.ChecksumURL, and returns the request with
// the digests that the file lists. It searches for the file name in r.URL, or in a mirror. For a packed
// image, the list may have the packed file, the unpacked file, or both. A declared PackedDigest has
// precedence over the listed digest of the packed file. Errors are those of Download.
func (c *Client) LookUpChecksum(ctx context.Context, r Request) (Request, error) {
	t, err := c.newTransfer(r, nil)
	if err != nil {
		return r, err
	}
	defer t.net.close()
	list, err := parseAddress(r.ChecksumURL)
	if err != nil {
		return r, err
	}
	b, err := t.readSmall(ctx, list)
	if err != nil {
		return r, err
	}
	found, err := t.lookUp(b, list, checksum.Renamed)
	if err != nil {
		return r, err
	}
	if !r.PackedDigest.IsZero() {
		found.Packed = nil
	}
	return r, r.require(found)
}

// lookUp finds the image of t in the checksum file b.
func (t *transfer) lookUp(b []byte, list address, without checksum.Naming) (checksum.Listed, error) {
	var paths []string
	for _, a := range t.addresses {
		paths = append(paths, a.url.Path)
	}
	found, err := checksum.Parse(b, list.base()).Find(list.url.Path, paths, t.packing != notPacked, without)
	if err != nil { // not final, like a 404: the list may be completed later
		err = &Error{Class: Refused, URL: list.String(), Err: err}
	}
	return found, err
}

// require adds listed digests to the digests that the bytes must have. The error is a *disk.ChecksumError if a
// declared digest of the same algorithm differs.
func (r *Request) require(found checksum.Listed) error {
	var err error
	for _, d := range found.Stored {
		err = cmp.Or(err, require(&r.Digest, &r.alsoStored, d))
	}
	for _, d := range found.Packed {
		err = cmp.Or(err, require(&r.PackedDigest, &r.alsoPacked, d))
	}
	return err
}

func require(digest, also *ident.Digest, listed ident.Digest) error {
	switch {
	case digest.IsZero():
		*digest = listed
	case digest.Algorithm() != listed.Algorithm():
		*also = listed
	case *digest != listed:
		return &disk.ChecksumError{Want: *digest, Got: listed}
	}
	return nil
}

// readSmall reads a checksum file, or a signature.
func (t *transfer) readSmall(ctx context.Context, a address) ([]byte, error) {
	d, err := t.readDocument(ctx, a, maxChecksumFile, false)
	if err == nil && len(d.Data) == 0 {
		err = Errorf(Refused, "the file is empty").withURL(a.String())
	}
	return d.Data, err
}

// ListedChecksum finds the digests of the file at fileURL in a checksum list. listURL is the address of the list, and
// unpack is like Request.Unpack. A checksum with another file name does not count, because it may belong to another
// version. If the list is not signed, a single checksum without a name counts. The error is that of package checksum, or
// an *Error for a wrong address.
func ListedChecksum(list []byte, listURL, fileURL, unpack string, signed bool) (checksum.Listed, error) {
	at, err := parseAddress(listURL)
	if err != nil {
		return checksum.Listed{}, err
	}
	files, err := oneAddress(fileURL)
	if err != nil {
		return checksum.Listed{}, err
	}
	p, err := packingOf(unpack, files)
	if err != nil {
		return checksum.Listed{}, err
	}
	parsed := checksum.Parse(list, at.base())
	if err := parsed.Malformed(); err != nil {
		return checksum.Listed{}, err
	}
	without := checksum.Unnamed
	if signed {
		without = checksum.Named
	}
	return parsed.Find(at.url.Path, []string{files[0].url.Path}, p != notPacked, without)
}

package track

import (
	"bytes"
	"context"
	"errors"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// HTTP tracks one address whose content changes. Only the checksum list at Image.ChecksumURL says what is new: an ETag or
// a date says that something changed, and not what.
type HTTP struct{}

func (r *Resolver) http(ctx context.Context, m Image) (Answer, error) {
	if m.ChecksumURL == "" {
		return Answer{}, refuse(NoChecksum, "the image has no checksumURL, and nothing else says which bytes are new")
	}
	d, err := r.readList(ctx, m.ChecksumURL, m)
	if err != nil {
		return Answer{}, unreadable(err)
	}
	sum, err := listedChecksum(d.Data, m.ChecksumURL, m.URL, m.Unpack)
	answer := Answer{Release: Release{URL: m.URL, Checksum: sum}, ListURL: m.ChecksumURL}
	switch {
	case err != nil:
		return answer, err
	case sum.IsZero():
		return answer, refuse(PackedChecksumOnly, "the list has only the checksum of the packed file")
	case isPlaceholder(sum):
		return answer, refuse(PlaceholderChecksum, "the checksum consists of zeros")
	}
	answer.Update = sum != m.Checksum
	return answer, nil
}

// listedChecksum returns the checksum of the unpacked file at an address in a checksum list. It is zero if the list has
// only that of the packed file.
func listedChecksum(list []byte, listURL, fileURL, unpack string) (disk.Digest, error) {
	if bytes.HasPrefix(bytes.TrimSpace(list), []byte("<")) {
		return disk.Digest{}, refuse(Malformed, "the checksum list is a web page")
	}
	stored, _, err := fetch.ListedChecksum(list, listURL, fileURL, unpack)
	reason := Malformed
	switch {
	case err == nil:
		return stored, nil
	case errors.Is(err, fetch.ErrNotListed):
		reason = NoChecksum
	case errors.Is(err, fetch.ErrListedTwice):
		reason = Ambiguous
	}
	return stored, &Refusal{Reason: reason, Err: err}
}

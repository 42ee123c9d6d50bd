package track

import (
	"bytes"
	"context"
	"errors"
	"path"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/checksum"
)

// http resolves an address whose content changes. Only the checksum list at Image.ChecksumURL says what is new: an ETag or
// a date says only that something changed.
func (r *Resolver) http(ctx context.Context, m Image) (Answer, error) {
	if m.ChecksumURL == "" {
		return Answer{}, refuse(NoChecksum, "the image has no checksumURL, and nothing else says which bytes are new: declare checksumURL")
	}
	d, err := r.readList(ctx, m.ChecksumURL, path.Base(m.path()), m)
	if err != nil {
		return Answer{}, unreadable(err)
	}
	answer := Answer{Release: Release{URL: m.URL, Checksum: m.Checksum}}
	sums, err := listedChecksums(d.Data, m.ChecksumURL, m.URL, m)
	switch {
	case err != nil:
		return answer, err
	case len(sums) == 0:
		return answer, refuse(PackedChecksumOnly, "the list has only the checksum of the packed file")
	case isPlaceholder(sums[0]):
		return answer, refuse(PlaceholderChecksum, "the checksum consists of zeros")
	}
	if !slices.Contains(sums, m.Checksum) {
		answer.Checksum, answer.Update = sums[0], true
	}
	return answer, nil
}

// listedChecksums returns the checksums that a checksum list has for the unpacked file at an address. It returns none
// if the list has only checksums of the packed file. If m needs a signature, the list must name the file.
func listedChecksums(list []byte, listURL, fileURL string, m Image) ([]ident.Digest, error) {
	if bytes.HasPrefix(bytes.TrimSpace(list), []byte("<")) {
		return nil, refuse(Malformed, "the checksum list is a web page")
	}
	listed, err := fetch.ListedChecksum(list, listURL, fileURL, m.Unpack, m.Verify != nil)
	reason := Malformed
	switch {
	case err == nil:
		return listed.Stored, nil
	case errors.Is(err, checksum.ErrNotListed):
		reason = NoChecksum
	case errors.Is(err, checksum.ErrListedTwice):
		reason = Ambiguous
	}
	return nil, &Refusal{Reason: reason, Err: err}
}

package job

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/delta"
	"github.com/seed-26586806/backing-image-manager/fetch/signature"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// download creates the copy from the declared addresses. Without a declared checksum the bytes
// must have the digest from the checksum URL, or else the pinned digest, if there is any. A declared signature
// is read first: without it, no byte of the image is transferred.
func (j Job) download(ctx context.Context, id ident.ID) error {
	r, err := j.Client.ReadSignature(ctx, DownloadRequest(j.Image))
	if err != nil {
		return err
	}
	for _, text := range r.KeyWarnings() {
		j.WarnKeys(text)
	}
	if r.Digest.IsZero() && r.ChecksumURL != "" {
		if r, err = j.Client.LookUpChecksum(ctx, r); err != nil {
			return fmt.Errorf("look up checksum: %w", err)
		}
	}
	if r.Digest.IsZero() {
		r.Digest = j.Action.Pinned.Digest
	}
	return j.downloadVerified(ctx, id, r)
}

// DownloadRequest returns the request for the declared source of the image, which is a download.
func DownloadRequest(image schema.Image) fetch.Request {
	d := image.Source.Download
	r := fetch.Request{
		URL: d.URL, Mirrors: d.Mirrors, Index: d.Index, Store: d.Store, Credentials: d.Credentials, ChecksumURL: d.ChecksumURL,
		Digest: image.Checksum, PackedDigest: d.PackedChecksum, Unpack: string(d.Unpack),
		MaxSize: d.MaxSize, BandwidthLimit: image.BandwidthLimit,
	}
	if v := image.Verify; v != nil {
		r.Verify = &fetch.Verify{Scheme: signature.Scheme(v.Scheme), Keys: v.Keys, SignatureURL: v.SignatureURL, SignsFile: v.SignsFile(*d)}
	}
	return r
}

// downloadVerified downloads until the bytes are right or no other bytes can be had. If a download
// that was joined from several pieces has wrong bytes, the download is repeated in one piece,
// because one of the pieces may be of another version of the file. If the bytes are still wrong,
// the next mirror follows. It returns the errors of all addresses, the last one first: the first
// error in this list decides when to retry.
func (j Job) downloadVerified(ctx context.Context, id ident.ID, r fetch.Request) error {
	var earlier error
	for {
		err := j.fill(ctx, id, r.Digest, r.SignatureCheck(), r.CanResume, func(part *disk.Part) error {
			if r.Index != "" && !r.Restart && !r.NeedsPackedFile() {
				return j.downloadByIndex(ctx, r, part)
			}
			return j.Client.Download(ctx, r, part, j.Progress)
		})
		if err == nil {
			return nil
		}
		address := int(j.Progress.AddressIndex.Load())
		err = fromAddress(r.Address(address), err)
		failed, ok := errors.AsType[*fetch.Error](err)
		wrong := ok && failed.Class == fetch.BadSource
		switch {
		case wrong && j.Progress.Joined.Load() && !r.Restart:
			if r.Index != "" {
				j.WarnIndex(fmt.Errorf("the whole file is downloaded, not only the difference: %w", err))
				j.dropSeedIndexes()
			}
		case wrong && address < len(r.Mirrors):
			earlier, r.SkipAddresses = errors.Join(err, earlier), address+1
		default:
			return errors.Join(err, earlier)
		}
		r.Restart = true
	}
}

// fromAddress adds to err which address sent the bytes: an error that is found after the last byte does not say so.
func fromAddress(address string, err error) error {
	wrong := isA[*disk.ChecksumError](err) || isA[*disk.FormatError](err) || isA[*disk.SignatureError](err)
	if !wrong || isA[*fetch.Error](err) {
		return err
	}
	return &fetch.Error{Class: fetch.BadSource, URL: address, Err: err}
}

// downloadByIndex downloads the chunks that no copy on this node has.
func (j Job) downloadByIndex(ctx context.Context, r fetch.Request, part *disk.Part) error {
	seeds, closeSeeds := j.openSeeds()
	defer closeSeeds()
	d := delta.Download{
		Client: j.Client, Request: r, Seeds: seeds, Progress: j.Progress,
		Survey: j.Survey, Warn: j.WarnIndex,
	}
	return d.Into(ctx, part)
}

package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/atomicfile"
)

// Expected contains the declared properties of an image.
type Expected struct {
	Digest ident.Digest // zero: not declared
	Format model.Format // "": not declared
}

// Verify reads the image of id once and records the result durably, which makes the copy owned. The
// returned copy is Ready or Failed.
//
// Verify compares the bytes with the first of these digests that exists: the established digest in
// the record; the checksum in backing.cfg; if want has no digest, the expected checksum in
// backing.cfg. A copy that matches is Ready, even if want has another digest: the caller must compare
// want with the returned digest.
//
// On a read-only disk (ErrReadOnly) Verify records nothing, and the message of a ready copy says so.
// A damaged copy is not Ready for this process.
//
// Verify returns an error if there is no result: the file cannot be read, a process is modifying it
// (ErrModified), or ctx ended. Verify calls progress with the length of each chunk that it reads.
func (d *Disk) Verify(ctx context.Context, id ident.ID, want Expected, progress func(int64)) (model.Copy, error) {
	f := d.image(id)
	err := f.check()
	if err != nil {
		return model.Copy{}, fmt.Errorf("verify %s: %w", id, err)
	}
	r, err := openChunkReader(d.root, f.file(imageFile))
	if err != nil {
		return model.Copy{}, fmt.Errorf("verify %s: %w", id, err)
	}
	defer r.close()
	// The program that wrote the file may not have synced it. The bytes must be durable before the
	// result is recorded.
	if err := errors.Join(r.checkStable(), r.sync(), waitForTick(r.f)); err != nil {
		return model.Copy{}, fmt.Errorf("verify %s: %w", id, err)
	}
	withSHA256 := want.Digest.Algorithm() == ident.SHA256 || !d.Stat(id).SHA256.IsZero()
	got, err := f.hash(ctx, r, withSHA256, progress)
	if err == nil {
		err = r.checkStable()
	}
	if err != nil {
		return model.Copy{}, fmt.Errorf("verify %s: %w", id, errors.Join(err, f.removeNewManifest()))
	}
	if got.unrecorded {
		c, err := f.resultOnly(want, got)
		if err != nil {
			return model.Copy{}, fmt.Errorf("verify %s: %w", id, err)
		}
		return c, nil
	}
	record, err := f.create()
	if err != nil {
		return model.Copy{}, err
	}
	err = f.recordResult(record, want, got)
	return d.Stat(id), err
}

// resultOnly returns the result of a verification on a read-only disk.
func (f imageFolder) resultOnly(want Expected, got content) (model.Copy, error) {
	r, _, err := f.readRecord()
	if err != nil {
		return model.Copy{}, err
	}
	failure, info, err := f.judge(r, want, got)
	if err != nil {
		return model.Copy{}, err
	}
	if failure != nil {
		f.disk.metadata.markDamaged(f.id, got.file)
	}
	c := f.disk.Stat(f.id)
	if failure != nil {
		c.State, c.Message = model.Failed, failure.Error()
		return c, nil
	}
	if c.State != model.Ready {
		c.State, c.Message = model.Ready, "its bytes match, but the result was not recorded: "+ErrReadOnly.Error()
		c.SHA512, c.SHA256, c.Format, c.VirtualSize = got.sum512, got.sum256, info.Format, info.VirtualSize
	}
	return c, nil
}

// newManifestFile is the manifest that Verify computes. It is renamed when the digest of the image is
// confirmed.
const newManifestFile = chunksFile + ".tmp"

// content is the result of one pass over an image.
type content struct {
	sum512, sum256 ident.Digest
	manifest       ident.Digest
	file           Evidence // when the image was opened
	unrecorded     bool     // the disk is read-only: the manifest was not written
}

// hash computes the digests of the image, and writes its manifest to newManifestFile unless the disk
// is read-only.
func (f imageFolder) hash(ctx context.Context, r *chunkReader, withSHA256 bool, progress func(int64)) (content, error) {
	chunks, err := openChunks(f.disk.root, f.file(newManifestFile))
	unrecorded := errors.Is(err, ErrReadOnly)
	if err != nil && !unrecorded {
		return content{}, err
	}
	algorithm := f.chunkAlgorithm()
	if !unrecorded {
		defer chunks.f.Close()
		if err := chunks.reset(algorithm); err != nil {
			return content{}, err
		}
	}
	h, consumers := newHashes(withSHA256)
	manifest := NewManifestHash(algorithm)
	p := newPipeline(append(consumers, func(c *chunk) error {
		hash := algorithm.hash(c.data, c.zero)
		manifest.add(hash)
		if unrecorded {
			return nil
		}
		return chunks.set(c.n, hash)
	})...)
	err = r.sendTo(p, func(n int64) {
		progress(n)
		if ctx.Err() != nil {
			p.fail(context.Cause(ctx))
		}
	})
	if err = errors.Join(err, p.close()); err != nil {
		return content{}, err
	}
	if !unrecorded {
		if err := chunks.f.Sync(); err != nil {
			return content{}, err
		}
	}
	sum512, sum256 := h.digests()
	return content{sum512, sum256, manifest.Digest(), r.before, unrecorded}, nil
}

// chunkAlgorithm returns the algorithm of the manifest that the image has, so that a new manifest equals
// those of the other copies; NewChunks if it has none.
func (f imageFolder) chunkAlgorithm() ChunkAlgorithm {
	m, err := openRegular(f.disk.root, f.file(chunksFile), os.O_RDONLY)
	if err != nil {
		return NewChunks
	}
	defer m.Close()
	a, _ := readChunkHeader(m) // a manifest that cannot be read is replaced
	return cmp.Or(a, NewChunks)
}

func (f imageFolder) removeNewManifest() error {
	return ignoreMissing(f.disk.root.Remove(f.file(newManifestFile)))
}

// recordResult compares the bytes and the format with the known and declared values, and marks the
// copy as ready or failed. r is its previous record.
func (f imageFolder) recordResult(r Record, want Expected, got content) error {
	failure, info, err := f.judge(r, want, got)
	if err != nil {
		return errors.Join(err, f.removeNewManifest())
	}
	if failure != nil {
		return errors.Join(f.markFailed(r, failure.Error(), got.file), f.removeNewManifest())
	}
	r.SHA512, r.SHA256, r.Failed = got.sum512, got.sum256, ""
	r.ManifestDigest, r.Size = got.manifest, got.file.Size
	r.Format, r.VirtualSize, r.VerifiedAt = info.Format, info.VirtualSize, time.Now().UTC()
	r.ReadBackAt = r.VerifiedAt
	if err := atomicfile.Rename(f.disk.root, f.file(newManifestFile), f.file(chunksFile)); err != nil {
		return err
	}
	return f.markReady(r, want.Digest, got.file)
}

// judge compares the bytes and the format with the known and declared values. failure is nil if the
// image is right. The error says that it could not compare them.
func (f imageFolder) judge(r Record, want Expected, got content) (failure error, info Info, err error) {
	failure, err = f.compare(r, want, got)
	if err != nil {
		return nil, Info{}, err
	}
	info, err = f.inspect(imageFile, want.Format)
	if refusal, ok := errors.AsType[*FormatError](err); ok {
		if failure == nil {
			failure = refusal
		}
		err = nil
	}
	return failure, info, err
}

// compare returns a failure if the bytes are wrong, and an error if it could not compare them. If
// backing.cfg cannot be read at present, that is an error: the file may contain the only known
// digest.
func (f imageFolder) compare(r Record, want Expected, got content) (failure, err error) {
	if !r.SHA512.IsZero() {
		return damage("established", r.SHA512, got.sum512), nil
	}
	cfg, err := f.readCfg()
	if err != nil {
		if _, system := errors.AsType[syscall.Errno](ignoreMissing(err)); system {
			return nil, fmt.Errorf("read %s of %s: %w", cfgFile, f.id, err)
		}
		return nil, nil
	}
	switch {
	case cfg.Size != got.file.Size:
		return fmt.Errorf("damaged: it has %d bytes, %s has %d", got.file.Size, cfgFile, cfg.Size), nil
	case !cfg.Digest().IsZero() && cfg.Digest() != got.sum512:
		return damage(cfgFile+" has", cfg.Digest(), got.sum512), nil
	}
	// A checksum that was declared to Longhorn is used if no digest is declared here.
	if expected, err := ident.ParseDigest(cfg.ExpectedChecksum); err == nil && expected.Algorithm() == ident.SHA512 && want.Digest.IsZero() {
		return damage(cfgFile+" expects", expected, got.sum512), nil
	}
	return nil, nil
}

// damage returns an error if the digests differ. source is the file or field that contains want.
func damage(source string, want, got ident.Digest) error {
	if want == got {
		return nil
	}
	return fmt.Errorf("damaged: checksum mismatch: %s %s, got %s", source, want, got)
}

// markFailed records durably that the copy must not be used while its file has this evidence. It
// keeps the manifest, which Repair needs. If the record cannot be written, the copy is still not
// Ready for this process.
func (f imageFolder) markFailed(r Record, reason string, file Evidence) error {
	f.disk.metadata.markDamaged(f.id, file)
	r.Evidence, r.Failed, r.DamagedAt = &file, reason, time.Now().UTC()
	if err := f.writeRecord(r); err != nil {
		return err
	}
	return f.invalidateCfg()
}

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
	v := verification{folder: d.image(id), want: want}
	c, err := v.run(ctx, progress)
	if err != nil {
		return c, fmt.Errorf("verify %s: %w", id, err)
	}
	return c, nil
}

// verification is one run of Verify.
type verification struct {
	folder imageFolder
	want   Expected
	reader *chunkReader

	sum512, sum256 ident.Digest
	manifest       ident.Digest
	unrecorded     bool // the disk is read-only: the manifest was not written
}

func (v *verification) run(ctx context.Context, progress func(int64)) (c model.Copy, err error) {
	d, f := v.folder.disk, v.folder
	if _, _, err = f.readRecord(); err == nil { // otherwise the result could not be recorded
		v.reader, err = openChunkReader(d.root, f.file(imageFile))
	}
	if err != nil {
		return c, err
	}
	defer v.reader.close()
	// The program that wrote the file may not have synced it. The bytes must be durable before the
	// result is recorded.
	if err := errors.Join(v.reader.checkStable(), v.reader.sync(), waitForTick(v.reader.f)); err != nil {
		return c, err
	}
	if err = v.hash(ctx, progress); err == nil {
		err = v.reader.checkStable()
	}
	if err != nil {
		return c, errors.Join(err, v.removeNewManifest())
	}
	if v.unrecorded {
		return v.resultOnly()
	}
	record, err := f.create()
	if err != nil {
		return c, err
	}
	err = v.recordResult(record)
	return d.Stat(f.id), err
}

// resultOnly returns the result of a verification on a read-only disk.
func (v *verification) resultOnly() (model.Copy, error) {
	f := v.folder
	r, _, err := f.readRecord()
	if err != nil {
		return model.Copy{}, err
	}
	failure, info, err := v.judge(r)
	if err != nil {
		return model.Copy{}, err
	}
	if failure != nil {
		f.disk.metadata.markDamaged(f.id, v.reader.before)
	}
	c := f.disk.Stat(f.id)
	if failure != nil {
		c.State, c.Message = model.Failed, failure.Error()
		return c, nil
	}
	if c.State != model.Ready {
		c.State, c.Message = model.Ready, "its bytes match, but the result was not recorded: "+ErrReadOnly.Error()
		c.SHA512, c.SHA256, c.Format, c.VirtualSize = v.sum512, v.sum256, info.Format, info.VirtualSize
	}
	return c, nil
}

// newManifestFile is the manifest that Verify computes. It is renamed when the digest of the image is
// confirmed.
const newManifestFile = chunksFile + ".tmp"

// hash computes the digests of the image, and writes its manifest to newManifestFile unless the disk
// is read-only.
func (v *verification) hash(ctx context.Context, progress func(int64)) error {
	f := v.folder
	chunks, err := openChunks(f.disk.root, f.file(newManifestFile))
	v.unrecorded = errors.Is(err, ErrReadOnly)
	if err != nil && !v.unrecorded {
		return err
	}
	algorithm := f.chunkAlgorithm()
	if !v.unrecorded {
		defer chunks.f.Close()
		if err := chunks.reset(algorithm); err != nil {
			return err
		}
	}
	h, consumers := newHashes(v.want.Digest.Algorithm() == ident.SHA256 || !f.disk.Stat(f.id).SHA256.IsZero())
	manifest := NewManifestHash(algorithm)
	p := newPipeline(append(consumers, func(c *chunk) error {
		hash := algorithm.hash(c.data, c.zero)
		manifest.add(hash)
		if v.unrecorded {
			return nil
		}
		return chunks.set(c.n, hash)
	})...)
	err = v.reader.sendTo(p, func(n int64) {
		progress(n)
		if ctx.Err() != nil {
			p.fail(context.Cause(ctx))
		}
	})
	if err = errors.Join(err, p.close()); err == nil && !v.unrecorded {
		err = chunks.f.Sync()
	}
	v.sum512, v.sum256 = h.digests()
	v.manifest = manifest.Digest()
	return err
}

// chunkAlgorithm returns the algorithm of the present manifest, or NewChunks if there is none. A new
// manifest with this algorithm equals the manifests of the other copies.
func (f imageFolder) chunkAlgorithm() ChunkAlgorithm {
	m, err := openRegular(f.disk.root, f.file(chunksFile), os.O_RDONLY)
	if err != nil {
		return NewChunks
	}
	defer m.Close()
	a, _ := readChunkHeader(m) // a manifest that cannot be read is replaced
	return cmp.Or(a, NewChunks)
}

func (v *verification) removeNewManifest() error {
	return ignoreMissing(v.folder.disk.root.Remove(v.folder.file(newManifestFile)))
}

// recordResult compares the bytes and the format with the known and declared values, and marks the
// copy as ready or failed. r is its previous record.
func (v *verification) recordResult(r Record) error {
	f := v.folder
	failure, info, err := v.judge(r)
	if err != nil {
		return errors.Join(err, v.removeNewManifest())
	}
	if failure != nil {
		return errors.Join(f.markFailed(r, failure.Error(), v.reader.before), v.removeNewManifest())
	}
	r.SHA512, r.SHA256, r.Failed = v.sum512, v.sum256, ""
	r.ManifestDigest, r.Size = v.manifest, v.reader.size
	r.Format, r.VirtualSize, r.VerifiedAt = info.Format, info.VirtualSize, time.Now().UTC()
	r.ReadBackAt = r.VerifiedAt
	if err := atomicfile.Rename(f.disk.root, f.file(newManifestFile), f.file(chunksFile)); err != nil {
		return err
	}
	return f.markReady(r, v.want.Digest, v.reader.before)
}

// judge compares the bytes and the format with the known and declared values. failure is nil if the
// image is right. err says why judge could not compare them.
func (v *verification) judge(r Record) (failure error, info Info, err error) {
	failure, err = v.compare(r)
	if err != nil {
		return nil, Info{}, err
	}
	info, err = v.folder.inspect(imageFile, v.want.Format)
	if refusal, ok := errors.AsType[*FormatError](err); ok {
		if failure == nil {
			failure = refusal
		}
		err = nil
	}
	return failure, info, err
}

// compare returns a failure if the bytes are wrong, and an error if it could not compare them. A
// read error of backing.cfg is an error, because backing.cfg may contain the only known digest.
func (v *verification) compare(r Record) (failure, err error) {
	if !r.SHA512.IsZero() {
		return damage("established", r.SHA512, v.sum512), nil
	}
	cfg, err := v.folder.readCfg()
	if err != nil {
		if _, system := errors.AsType[syscall.Errno](ignoreMissing(err)); system {
			return nil, fmt.Errorf("read %s of %s: %w", cfgFile, v.folder.id, err)
		}
		return nil, nil
	}
	switch {
	case cfg.Size != v.reader.size:
		return fmt.Errorf("damaged: it has %d bytes, %s has %d", v.reader.size, cfgFile, cfg.Size), nil
	case !cfg.Digest().IsZero() && cfg.Digest() != v.sum512:
		return damage(cfgFile+" has", cfg.Digest(), v.sum512), nil
	}
	// A checksum that was declared to Longhorn is used if no digest is declared here.
	if expected, err := ident.ParseDigest(cfg.ExpectedChecksum); err == nil && expected.Algorithm() == ident.SHA512 && v.want.Digest.IsZero() {
		return damage(cfgFile+" expects", expected, v.sum512), nil
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

package disk

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Expected is what a configuration says about the bytes of an image.
type Expected struct {
	Digest Digest // zero: whatever it is
	Format Format // "": whatever it is
}

// Verify reads the image of id once and settles whether it may be used. Against
// what it is held is, in this order: the digest established when it became
// ready, the checksum of a backing.cfg, and what that one expects where want has no
// digest. The outcome is recorded durably, and with it the image becomes ours: the copy
// returned is ready or failed. An image whose bytes are consistent but are not
// the declared ones is ready with its own digest; the caller compares.
//
// The error is not nil when no outcome was reached: the file cannot be read, is
// written to meanwhile (ErrChanging), or ctx ended. progress is called with the
// bytes of each chunk that was read.
func (d *Disk) Verify(ctx context.Context, id ID, want Expected, progress func(int64)) (Copy, error) {
	err := d.place(id)
	if err != nil {
		return Copy{}, fmt.Errorf("verify %s: %w", id, err)
	}
	s, err := openSource(d.root, id.file(imageFile))
	if err != nil {
		return Copy{}, fmt.Errorf("verify %s: %w", id, err)
	}
	defer s.close()
	// Whoever wrote it may not have synced it, and the record of the outcome must
	// not outlive the bytes that it is about.
	if err := errors.Join(s.settled(), s.sync(), rest(s.f)); err != nil {
		return Copy{}, fmt.Errorf("verify %s: %w", id, err)
	}
	withSHA256 := want.Digest.Algorithm() == SHA256 || !d.Stat(id).SHA256.IsZero()
	pass, err := d.readThrough(ctx, s, id, withSHA256, progress)
	if err == nil {
		err = s.settled()
	}
	if err != nil {
		return Copy{}, fmt.Errorf("verify %s: %w", id, errors.Join(err, pass.forget(d, id)))
	}
	r, err := d.makeFolder(id)
	if err != nil {
		return Copy{}, err
	}
	err = d.settle(id, r, want, pass)
	return d.Stat(id), err
}

// pass is what one reading of an image found out.
type pass struct {
	sum512, sum256 Digest
	chunks         Digest   // of the sums of its chunks
	of             Evidence // the file as it was when it was opened
}

// readThrough computes the digests, and leaves the hashes of the chunks in a
// temporary file.
func (d *Disk) readThrough(ctx context.Context, s *imageSource, id ID, withSHA256 bool, progress func(int64)) (pass, error) {
	chunks, err := openChunks(d.root, id.file(chunksFile+".tmp"))
	if err != nil {
		return pass{}, err
	}
	defer chunks.f.Close()
	if err := chunks.reset(); err != nil {
		return pass{}, err
	}
	h, consumers := newHashes(withSHA256)
	manifest := SHA256.New()
	p := newPipeline(append(consumers, func(c *chunk) error {
		sum := hashBytes(c.data, c.zero)
		manifest.Write(sum[:])
		return chunks.set(c.n, sum)
	})...)
	err = s.pour(p, func(n int64) {
		progress(n)
		if ctx.Err() != nil {
			p.fail(context.Cause(ctx))
		}
	})
	if err = errors.Join(err, p.close()); err != nil {
		return pass{}, err
	}
	if err := chunks.f.Sync(); err != nil {
		return pass{}, err
	}
	sum512, sum256 := h.sums()
	return pass{sum512, sum256, SHA256.Digest(manifest), s.before}, nil
}

// forget drops the hashes of chunks of an image that they must not vouch for.
func (pass) forget(d *Disk, id ID) error {
	return ignoreMissing(d.root.Remove(id.file(chunksFile + ".tmp")))
}

// settle decides by what was read, and records it.
func (d *Disk) settle(id ID, r Record, want Expected, read pass) error {
	why, err := d.compare(id, r, want, read)
	if err != nil {
		return errors.Join(err, read.forget(d, id))
	}
	info, err := d.inspect(id.file(imageFile), want.Format)
	if refusal, ok := errors.AsType[*FormatError](err); ok && why == "" {
		why = refusal.Error()
	} else if err != nil && !ok {
		return err
	}
	if why != "" {
		return errors.Join(d.fail(id, r, why, read.of), read.forget(d, id))
	}
	r.SHA512, r.SHA256, r.Failed = read.sum512, read.sum256, ""
	r.ManifestDigest, r.Size = read.chunks, read.of.Size
	r.Format, r.VirtualSize, r.VerifiedAt = info.Format, info.VirtualSize, time.Now().UTC()
	if err := renameDurably(d.root, id.file(chunksFile+".tmp"), id.file(chunksFile)); err != nil {
		return err
	}
	return d.vouchFor(id, r, want.Digest, read.of)
}

// compare says why the bytes are not what they were, or nothing. A backing.cfg that
// cannot be read at the moment may be the only one that knows, and is not the same as
// none.
func (d *Disk) compare(id ID, r Record, want Expected, read pass) (string, error) {
	if !r.SHA512.IsZero() {
		return damage("established", r.SHA512, read.sum512), nil
	}
	cfg, err := d.readCfg(id)
	if err != nil {
		if _, system := errors.AsType[syscall.Errno](ignoreMissing(err)); system {
			return "", fmt.Errorf("read %s of %s: %w", cfgFile, id, err)
		}
		return "", nil
	}
	switch {
	case cfg.Size != read.of.Size:
		return fmt.Sprintf("damaged: it has %d bytes, %s says %d", read.of.Size, cfgFile, cfg.Size), nil
	case !cfg.Digest().IsZero() && cfg.Digest() != read.sum512:
		return damage(cfgFile+" says", cfg.Digest(), read.sum512), nil
	}
	// What was declared to Longhorn holds as long as nothing is declared here.
	if expected, err := ParseDigest(cfg.ExpectedChecksum); err == nil && expected.Algorithm() == SHA512 && want.Digest.IsZero() {
		return damage(cfgFile+" expects", expected, read.sum512), nil
	}
	return "", nil
}

func damage(whose string, want, got Digest) string {
	if want == got {
		return ""
	}
	return fmt.Sprintf("damaged: checksum mismatch: %s %s, got %s", whose, want, got)
}

// WriteCfg writes backing.cfg anew from the record of a ready copy, without reading
// the image.
func (d *Disk) WriteCfg(id ID, expected Digest) error {
	r, _, err := d.readRecord(id)
	if err != nil {
		return err
	}
	if c := d.Stat(id); c.State != Ready || r.Evidence == nil {
		return fmt.Errorf("describe %s: it is %s", id, c.State)
	}
	return d.vouchFor(id, r, expected, *r.Evidence)
}

// fail marks the copy durably as one that must not be used, as long as its file
// stays what was read. Its own manifest is kept: a repair goes by it. On a disk that
// is full, or cannot be written to any more, it is not ready for this process at least.
func (d *Disk) fail(id ID, r Record, why string, of Evidence) error {
	d.find(id, func(f *found) { f.damaged = of })
	r.Evidence, r.Failed, r.DamagedAt = &of, why, time.Now().UTC()
	if err := d.writeRecord(id, r); err != nil {
		return err
	}
	return d.doubtCfg(id)
}

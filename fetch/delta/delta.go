package delta

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
)

// Download is a download of one image by its index. It is not safe for concurrent use.
type Download struct {
	Client *fetch.Client
	// Request has an Index and a Digest.
	Request fetch.Request
	// Seeds are copies on this node that may have some of the chunks.
	Seeds    []assemble.Seed
	Progress *fetch.Progress
	// Survey receives what the download costs before it transfers chunks. nil: it is not needed.
	Survey func(assemble.Survey)
	// Warn receives the reason why the whole file is downloaded, and problems of the store. It must not block, and must be
	// safe for concurrent use.
	Warn func(error)
}

// indexError means that the index cannot be used: the whole file is downloaded.
type indexError struct {
	err error
	// restart is true if a download of the whole file cannot use the bytes in the partial file.
	restart bool
}

func (e *indexError) Error() string { return e.err.Error() }

func (e *indexError) Unwrap() error { return e.err }

// Into fills part with the image. It resumes the partial file of an earlier attempt. It returns when part has all bytes;
// the caller commits it. The errors are those of fetch.Client.Download.
func (d *Download) Into(ctx context.Context, part *disk.Part) error {
	err := caibx.CatchFaults(func() error { return d.byIndex(ctx, part) })
	unusable, ok := errors.AsType[*indexError](err)
	if !ok || ctx.Err() != nil {
		return fetch.ClassifyDiskError(err)
	}
	d.Warn(fmt.Errorf("the whole file is downloaded, not only the difference: %w", unusable))
	whole := d.Request
	whole.Restart = unusable.restart
	return fetch.ClassifyDiskError(smallerNeed(unusable.err, d.Client.Download(ctx, whole, part, d.Progress)))
}

// smallerNeed chooses the error of two failed downloads. Usually it returns the argument whole, the error for the whole file. If
// both failed for lack of space, it returns the one with the smaller need: a correct index knows which parts are zeros.
func smallerNeed(byIndex, whole error) error {
	a, ok := errors.AsType[*disk.NoSpaceError](byIndex)
	b, alsoWhole := errors.AsType[*disk.NoSpaceError](whole)
	if ok && alsoWhole && a.Need < b.Need {
		return byIndex
	}
	return whole
}

func (d *Download) byIndex(ctx context.Context, part *disk.Part) error {
	index, err := d.openIndex(ctx, part)
	if err != nil {
		return err
	}
	defer index.Close()
	u, err := d.openUpstream(index)
	if err != nil {
		return err
	}
	defer u.close()
	plan, err := assemble.ByIndex(ctx, part, index, d.Seeds)
	if err != nil {
		return err
	}
	defer plan.Close()
	survey, err := plan.Survey(ctx, 0)
	if err != nil {
		return err
	}
	survey.Index = int64(len(index.Index()))
	if d.Survey != nil {
		d.Survey(survey)
	}
	if survey.Missing > 0 && !u.store.isUsed() && len(u.addresses) == 0 {
		return &indexError{err: errors.New("no store is declared, and the file is packed, so ranges of it are not ranges of the image")}
	}
	if err := d.begin(ctx, part, u, survey); errors.Is(err, disk.ErrNoSpace) {
		return &indexError{err: err} // the index may be of another, larger file
	} else if err != nil {
		return err
	}
	d.Progress.Joined.Store(true)
	d.Progress.Total.Store(survey.Size)
	d.Progress.Resume(part.Offset())
	a := assemble.Assembly{
		Plan: plan, Sink: part, Candidates: u.candidates, Health: &u.health, Window: func() int64 { return window },
		Failed: u.failed, Progress: d.Progress,
	}
	err = a.Run(ctx, part.Offset())
	if unusable, ok := errors.AsType[*indexError](err); ok && !unusable.restart {
		return errors.Join(err, keep(part))
	}
	return err
}

// keep keeps the bytes of the partial file before the first difference between the file and its index: a download of the
// whole file continues after these bytes. keep drops the index, so it does not become the index of the image.
func keep(part *disk.Part) error {
	source := part.Source()
	source.Index = ""
	return errors.Join(part.DropIndex(), part.Continue(source))
}

// begin keeps the bytes of the partial file if they match the index. If not, it matters how they were downloaded. By another
// index: begin empties the file. Without an index: it returns an *indexError, because they are worth more than the index.
func (d *Download) begin(ctx context.Context, part *disk.Part, u *upstream, s assemble.Survey) error {
	source := disk.PartSource{ID: fetch.AddressID(d.Request.URL), Size: s.Size, Data: max(s.Data, 1), Index: d.indexID()}
	now := part.Source()
	switch {
	case now == source:
		return nil
	case part.Offset() < disk.ChunkSize:
		return part.Begin(source)
	}
	err := compare(ctx, part, u.index)
	if err == nil {
		u.matched.Store(true)
		return part.Continue(source)
	}
	if _, other := errors.AsType[*indexError](err); other && now.Index != "" {
		return part.Begin(source) // the bytes are of another index
	}
	return err
}

// compare returns an *indexError unless the bytes of the partial file match the index.
func compare(ctx context.Context, part *disk.Part, index *caibx.Table) error {
	if size := part.Source().Size; size >= 0 && size != index.ImageSize() {
		return &indexError{err: fmt.Errorf("the index is of a file of %d bytes, but the file has %d", index.ImageSize(), size)}
	}
	var chunk []byte
	for n := range index.Len() {
		i := index.Item(n)
		if i.End() > part.Offset() {
			break
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		chunk = slices.Grow(chunk[:0], int(i.Length))[:i.Length]
		if _, err := part.ReadAt(chunk, i.Offset); err != nil {
			return err
		}
		if index.Header().Digest.Check(chunk, i.ID) != nil {
			return &indexError{err: fmt.Errorf("%w at %d", errWrongChunk, i.Offset)}
		}
	}
	return nil
}

func (d *Download) indexID() string { return fetch.AddressID(d.Request.Index) }

// openIndex returns the index of the image. Every error except errors of the disk is an *indexError.
func (d *Download) openIndex(ctx context.Context, part *disk.Part) (*caibx.Table, error) {
	if part.Source().Index == d.indexID() {
		if t, err := assemble.LoadIndex(part, d.Request.MaxSize); err == nil {
			return t, nil
		}
	}
	room, err := part.Room()
	if err != nil {
		return nil, err
	}
	limits := assemble.IndexLimits(d.Request.MaxSize)
	err = part.StoreIndex(func(f *os.File) error {
		return d.Client.DownloadIndex(ctx, d.Request, f, min(limits.MaxSize(), room/assemble.IndexShare), verifier(limits), d.Progress)
	})
	_, fetched := errors.AsType[*fetch.Error](err)
	var t *caibx.Table
	if err == nil {
		t, err = assemble.LoadIndex(part, d.Request.MaxSize)
	}
	_, bad := errors.AsType[*caibx.FormatError](err)
	if fetched || bad || errors.Is(err, disk.ErrNoSpace) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return nil, &indexError{err: fmt.Errorf("its index: %w", err)}
	}
	return t, err
}

// verifier returns a function that reads an index, and returns an error as soon as the bytes are no index.
func verifier(limits caibx.Limits) func(io.Reader) error {
	return func(r io.Reader) error {
		items, err := caibx.NewReader(bufio.NewReader(r), -1, limits)
		for err == nil {
			_, err = items.Next()
		}
		if err == io.EOF {
			return nil
		}
		return err
	}
}

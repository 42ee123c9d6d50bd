package delta

import (
	"bufio"
	"cmp"
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
)

// Download is a download of one image by its index. It is not safe for concurrent use.
type Download struct {
	Client *fetch.Client
	// Request has an Index and a Digest.
	Request fetch.Request
	// Seeds are copies on this node that may have some of the chunks.
	Seeds    []Seed
	Progress *fetch.Progress
	// Survey receives what the download costs before it transfers chunks. nil: it is not needed.
	Survey func(Survey)
	// Warn receives the reason why the whole file is downloaded, and problems of the store. It must not block, and must be
	// safe for concurrent use.
	Warn func(error)
}

// Survey is what a download costs, in bytes.
type Survey struct {
	Index   int64 // of the index
	Size    int64 // of the image
	Data    int64 // of the chunks that are not zeros
	Missing int64 // of the chunks that are fetched. A chunk that is in the image several times counts once
}

// indexError means that the index cannot be used: the whole file is downloaded.
type indexError struct {
	err error
	// restart is true if the bytes in the partial file are of no use for a download of the whole file.
	restart bool
	// wrong is the first item of which the file has other bytes than the index says; nil: none.
	wrong *wrongItem
}

// wrongItem are the bytes that the file has in the place of an item.
type wrongItem struct {
	offset, size int64 // of the bytes, and of the file; a size of 0 is not known
	bytes        []byte
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
	if unusable.wrong != nil && unusable.wrong.size > 0 {
		err := d.downloadAround(ctx, part, unusable.wrong)
		if !errors.Is(err, fetch.ErrNoRanges) {
			return fetch.ClassifyDiskError(err)
		}
	}
	whole := d.Request
	whole.Restart = unusable.restart
	return fetch.ClassifyDiskError(smallerNeed(unusable.err, d.Client.Download(ctx, whole, part, d.Progress)))
}

// smallerNeed returns the error of a download of the whole file. If there is no space for the image with the index either,
// it returns the error that needs less space: an index that is right knows the zeros of the image.
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
	seeds, err := openSeeds(ctx, part, d.Seeds, index.Header())
	if err != nil {
		return err
	}
	defer closeSeeds(seeds)
	a := newAssembly(index, seeds, part, u)
	survey, err := a.survey(ctx, 0)
	if err != nil {
		return err
	}
	if d.Survey != nil {
		d.Survey(survey)
	}
	if survey.Missing > 0 && u.isEmpty() {
		return &indexError{err: errors.New("the file is packed, so that ranges of it are not ranges of the image, and no store is declared")}
	}
	if err := d.begin(ctx, part, a, survey); errors.Is(err, disk.ErrNoSpace) {
		return &indexError{err: err} // of an image that is larger than the file?
	} else if err != nil {
		return err
	}
	d.Progress.Joined.Store(true)
	d.Progress.Total.Store(survey.Size)
	d.Progress.Resume(part.Offset())
	return a.run(ctx, d.Progress)
}

// begin keeps the bytes of the partial file, if they are those of the index. Otherwise it empties the file, or returns an
// *indexError if the bytes are worth more than the index.
func (d *Download) begin(ctx context.Context, part *disk.Part, a *assembly, s Survey) error {
	source := disk.PartSource{ID: fetch.AddressID(d.Request.URL), Size: s.Size, Data: max(s.Data, 1), Index: d.indexID()}
	now := part.Source()
	switch {
	case now == source:
		return nil
	case part.Offset() < disk.ChunkSize:
		return part.Begin(source)
	}
	err := compare(ctx, part, a.index)
	if err == nil {
		a.upstream.matched.Store(true)
		return part.Continue(source)
	}
	if _, other := errors.AsType[*indexError](err); other && now.Index != "" {
		return part.Begin(source) // they are of another index
	}
	return err
}

// compare returns an *indexError unless the bytes of the partial file are those of the index.
func compare(ctx context.Context, part *disk.Part, index *caibx.Table) error {
	if size := part.Source().Size; size >= 0 && size != index.ImageSize() {
		return &indexError{err: fmt.Errorf("the index is of a file of %d bytes, but the file has %d", index.ImageSize(), size)}
	}
	in := bufio.NewReaderSize(&partReader{part: part}, disk.ChunkSize)
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
		if _, err := io.ReadFull(in, chunk); err != nil {
			return err
		}
		if index.Header().Digest.Check(chunk, i.ID) != nil {
			return &indexError{err: fmt.Errorf("%w at %d", errWrongChunk, i.Offset)}
		}
	}
	return nil
}

// partReader reads the bytes of a partial file in order.
type partReader struct {
	part *disk.Part
	at   int64
}

func (r *partReader) Read(p []byte) (int, error) {
	n := min(int64(len(p)), r.part.Offset()-r.at)
	if n == 0 {
		return 0, io.EOF
	}
	err := r.part.ReadBack(p[:n], r.at)
	r.at += n
	return int(n), err
}

func (d *Download) indexID() string { return fetch.AddressID(d.Request.Index) }

const (
	// maxImage is more than any image has.
	maxImage = 1 << 60
	// minMeanChunk limits the size of an index, and the time for it: it has 40 bytes for each chunk.
	minMeanChunk = 512
	// fewChunks is the number of chunks that may be smaller.
	fewChunks = 1 << 16
	// indexShare is the part of the free space that the file of an index may take. The copy with the table takes up to a
	// third more. Both are the free space of the next index: that of the image, or of a seed.
	indexShare = 8
)

// openIndex returns the index of the image. Every error but one of the disk is an *indexError.
func (d *Download) openIndex(ctx context.Context, part *disk.Part) (*caibx.Table, error) {
	if part.Source().Index == d.indexID() {
		if t, err := LoadIndex(part, d.Request.MaxSize); err == nil {
			return t, nil
		}
	}
	room, err := part.Room()
	if err != nil {
		return nil, err
	}
	limits := limitsOf(d.Request.MaxSize)
	err = part.StoreIndex(func(f *os.File) error {
		return d.Client.DownloadIndex(ctx, d.Request, f, min(limits.MaxSize(), room/indexShare), verifier(limits), d.Progress)
	})
	_, fetched := errors.AsType[*fetch.Error](err)
	var t *caibx.Table
	if err == nil {
		t, err = LoadIndex(part, d.Request.MaxSize)
	}
	_, bad := errors.AsType[*caibx.FormatError](err)
	if fetched || bad || errors.Is(err, disk.ErrNoSpace) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return nil, &indexError{err: fmt.Errorf("its index: %w", err)}
	}
	return t, err
}

// LoadIndex returns the table of the index of a partial file, which has an image of at most size bytes; 0: any size. The
// error is fs.ErrNotExist, a *caibx.FormatError for an index that cannot be used, or one of the disk. The caller closes
// the table.
func LoadIndex(part *disk.Part, size int64) (*caibx.Table, error) {
	f, err := part.Index()
	if err != nil {
		return nil, err
	}
	t, err := newTable(part, f, limitsOf(size))
	if err != nil {
		return nil, err
	}
	if err := check(t); err != nil {
		return nil, err
	}
	return t, nil
}

// limitsOf returns the limits of the index of an image of at most size bytes; 0: any size.
func limitsOf(size int64) caibx.Limits {
	return caibx.Limits{Image: cmp.Or(size, maxImage), Chunk: minMeanChunk}
}

// verifier returns a function that reads an index, and returns an error as soon as it is none.
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

// newTable returns the table of the index in f, and closes f.
func newTable(part *disk.Part, f *os.File, limits caibx.Limits) (*caibx.Table, error) {
	defer f.Close()
	temp, err := part.TempFile()
	if err != nil {
		return nil, err
	}
	return caibx.NewTable(temp, f, limits)
}

// check closes the table, and returns a *caibx.FormatError, for an index that casync accepts, but that would take too
// much memory here, or that has no chunks.
func check(t *caibx.Table) error {
	reason := ""
	switch h := t.Header(); {
	case h.Max > caibx.MaxCut:
		reason = fmt.Sprintf("chunks of up to %d bytes are not supported: at most %d are", h.Max, caibx.MaxCut)
	case t.Len() > t.ImageSize()/minMeanChunk+fewChunks:
		reason = fmt.Sprintf("chunks of less than %d bytes on average are not supported", minMeanChunk)
	case t.Len() == 0:
		reason = "it is of an empty file"
	default:
		return nil
	}
	return errors.Join(&caibx.FormatError{Reason: reason}, t.Close())
}

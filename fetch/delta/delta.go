package delta

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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
	// Warn receives the reason why the whole file is downloaded, and problems of the store. It must not block.
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
	err := d.byIndex(ctx, part)
	unusable, ok := errors.AsType[*indexError](err)
	if !ok || ctx.Err() != nil {
		return fetch.ClassifyDiskError(err)
	}
	d.Warn(fmt.Errorf("the whole file is downloaded, not only the difference: %w", unusable))
	if err := part.DropIndex(); err != nil {
		return err
	}
	if unusable.wrong != nil && unusable.wrong.size > 0 {
		return fetch.ClassifyDiskError(d.downloadAround(ctx, part, unusable.wrong))
	}
	whole := d.Request
	whole.Restart = unusable.restart
	return d.Client.Download(ctx, whole, part, d.Progress)
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
	if err := d.begin(part, survey); err != nil {
		return err
	}
	d.Progress.Joined.Store(true)
	d.Progress.Total.Store(survey.Size)
	d.Progress.Resume(part.Offset())
	return a.run(ctx, d.Progress)
}

// begin keeps the bytes of the partial file, or empties it.
func (d *Download) begin(part *disk.Part, s Survey) error {
	source := disk.PartSource{ID: fetch.AddressID(d.Request.URL), Size: s.Size, Data: max(s.Data, 1), Index: d.indexID()}
	switch now := part.Source(); {
	case now == source:
		return nil
	case now.Size == s.Size && part.Offset() >= disk.ChunkSize: // of a download without the index
		return part.Continue(source)
	}
	return part.Begin(source)
}

func (d *Download) indexID() string { return fetch.AddressID(d.Request.Index) }

const (
	// maxImage is more than any image has.
	maxImage = 1 << 60
	// minMeanChunk limits the size of an index: it has 40 bytes for each chunk.
	minMeanChunk = 512
	// indexShare is the part of the free space that the files of an index may take, which are three in the worst case:
	// the index, its copy with the table, and the table of a seed.
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
	if fetched || bad || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
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
	case t.Len() == 0:
		reason = "it is of an empty file"
	default:
		return nil
	}
	return errors.Join(&caibx.FormatError{Reason: reason}, t.Close())
}

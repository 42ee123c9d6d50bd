package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/publish"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
)

func newPublish() *cobra.Command {
	p := &publisher{}
	var access storeFlags
	var out string
	cmd := &cobra.Command{
		Use:   "publish FILE... --out DIR|s3://BUCKET/PATH | publish FILE --like OLD [flags]",
		Short: "Write indexes of images, for downloads of new versions",
		Long: `Cuts each raw or qcow2 image FILE into chunks, and writes its index FILE.caibx to DIR
or to a bucket. A client that has an older version of the image downloads only the chunks
that the new version adds. The index has the format of casync and desync. With the
default sizes it is the file that "casync make" writes.

With --store, the packed chunks are also written, to the chunk store default.castr in
DIR or in the bucket. Chunks that the store already has are not written again. Without a
chunk store, downloads use ranges of the file itself.

The index is written last, so an index that exists is complete. The same command
continues after an interruption. A different index with the same name is replaced only
with --force.

With --like, the command prints what a download of FILE costs a client that has the older
version OLD, for several chunk sizes. OLD is an image, or its index OLD.caibx. If the
image is not beside the index, only the chunk sizes of the index can be compared. Without
--out, the command then writes nothing.

A size is a number of bytes, such as 65536 or 64KiB. The images must not change while
the command runs. Its temporary files need about 50 bytes for each chunk.`,
		Example: `  backing-image-manager publish debian-12.raw --out /srv/images --store
  backing-image-manager publish debian-12.raw --like debian-11.raw.caibx
  backing-image-manager publish *.qcow2 --out s3://images/golden --block-size 16KiB --secrets-dir /etc/secrets --credentials bucket`,
		Args: needArgs("backing-image-manager publish takes at least one FILE"),
	}
	flags := cmd.Flags()
	flags.StringVar(&out, "out", "", "write to the folder `DIR`, or to s3://BUCKET/PATH")
	flags.BoolVar(&p.store, "store", false, "write the chunk store, too")
	flags.BoolVar(&p.replace, "force", false, "replace existing indexes that differ")
	flags.StringVar(&p.like, "like", "", "print what FILE costs a client that has `OLD`")
	sizes := &sizesFlag{caibx.DefaultSizes}
	flags.Var(sizes, "chunk-size", "least, average and greatest `SIZE` of a chunk, as MIN:AVG:MAX; AVG alone means AVG/4:AVG:4*AVG")
	blocks := flags.String("block-size", "", "cut into blocks of `SIZE` instead: better for images that are changed in place")
	access.add(cmd, "--out", "chunks", publish.DefaultWorkers)
	format := outputFlag(cmd, report.Table, report.JSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if *blocks != "" {
			if flags.Changed("chunk-size") {
				return errors.New("--chunk-size and --block-size are mutually exclusive: give one of them")
			}
			size, err := parseSize(*blocks)
			if err != nil {
				return fmt.Errorf("--block-size: %w", err)
			}
			sizes.Sizes = caibx.Blocks(size)
		}
		switch {
		case out == "" && p.like == "":
			return errors.New("--out is missing: name the folder or the bucket to write to")
		case out == "" && (p.store || p.replace):
			return errors.New("--store and --force need --out")
		case p.like != "" && len(args) > 1:
			return errors.New("--like takes one FILE: run the command once for each file")
		}
		if path, found := findRepeated(args, filepath.Base); found {
			return fmt.Errorf("two files have the name %s, and so would their indexes: rename one of the files", filepath.Base(path))
		}
		if out != "" {
			if p.to, err = access.openDestination(out); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, p.to.Close()) }()
		}
		p.sizes, p.workers, p.bars, p.notes = sizes.Sizes, access.limit, newProgress(cmd.ErrOrStderr()), cmd.ErrOrStderr()
		return p.run(cmd.Context(), args, printer{cmd.OutOrStdout(), format.value})
	}
	return cmd
}

// openDestination opens the folder or the bucket to write to.
func (f *storeFlags) openDestination(out string) (*publish.Destination, error) {
	client, err := f.client()
	if err != nil {
		return nil, err
	}
	return publish.Open(client, out, f.credentials)
}

// sizesFlag is the value of --chunk-size.
type sizesFlag struct{ caibx.Sizes }

// Type returns the name of the value in the help, if the usage has no name.
func (s *sizesFlag) Type() string { return "SIZE" }

// Set accepts MIN:AVG:MAX or AVG.
func (s *sizesFlag) Set(text string) error {
	var parts []uint64
	for word := range strings.SplitSeq(text, ":") {
		size, err := parseSize(word)
		if err != nil {
			return err
		}
		parts = append(parts, size)
	}
	switch len(parts) {
	case 1:
		s.Sizes = caibx.SizesOf(parts[0])
	case 3:
		s.Sizes = caibx.Sizes{Min: parts[0], Avg: parts[1], Max: parts[2]}
	default:
		return errors.New("must be MIN:AVG:MAX or AVG")
	}
	return nil
}

// parseSize parses a number of bytes, with the unit KiB or MiB or without a unit.
func parseSize(text string) (uint64, error) {
	digits, shift := text, 0
	if d, ok := strings.CutSuffix(text, "KiB"); ok {
		digits, shift = d, 10
	} else if d, ok := strings.CutSuffix(text, "MiB"); ok {
		digits, shift = d, 20
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a size: use a number of bytes such as 65536, 64KiB or 1MiB", text)
	}
	return n << shift, nil
}

// publisher publishes images.
type publisher struct {
	to             *publish.Destination // nil means that nothing is written
	sizes          caibx.Sizes
	store, replace bool
	like           string
	workers        int
	bars           *progress
	notes          io.Writer
}

// publishView is the result for one image. Its JSON is a stable interface.
type publishView struct {
	File       string          `json:"file"`
	Size       int64           `json:"size"`
	ChunkSize  caibx.Sizes     `json:"chunkSize"`
	Chunks     int64           `json:"chunks"`
	IndexBytes int64           `json:"indexBytes"`
	Index      string          `json:"index,omitempty"` // its address
	Outcome    publish.Outcome `json:"outcome,omitempty"`
	Stored     *storedChunks   `json:"stored,omitempty"` // with --store
	Costs      []publish.Cost  `json:"costs,omitempty"`  // with --like
}

// storedChunks are the chunks that were written to the chunk store.
type storedChunks struct {
	Chunks int64 `json:"chunks"`
	Bytes  int64 `json:"bytes"` // packed
}

func (p *publisher) run(ctx context.Context, files []string, out printer) error {
	views := []publishView{}
	rows := [][]string{{"FILE", "SIZE", "CHUNKS", "INDEX", "OUTCOME"}}
	if p.store {
		rows[0] = append(rows[0], "NEW CHUNKS", "PACKED")
	}
	var lines []string
	for _, file := range files {
		v, err := p.publish(ctx, file)
		if ctx.Err() != nil {
			return errors.New("stopped; the same command continues")
		}
		if err != nil {
			return err
		}
		views = append(views, v)
		row := []string{v.File, report.Size(v.Size), strconv.FormatInt(v.Chunks, 10), report.Size(v.IndexBytes), string(v.Outcome)}
		if v.Stored != nil {
			row = append(row, strconv.FormatInt(v.Stored.Chunks, 10), report.Size(v.Stored.Bytes))
		}
		rows = append(rows, row)
		lines = append(lines, p.costLines(v)...)
	}
	if p.to != nil {
		lines = append(report.Align(rows), lines...)
	}
	return out.print(views, lines...)
}

// publish publishes one image.
func (p *publisher) publish(ctx context.Context, file string) (v publishView, err error) {
	im, err := publish.OpenImage(file)
	if err != nil {
		return v, err
	}
	defer im.Close() // it was only read
	t, err := p.cut(ctx, im, caibx.Header{Sizes: p.sizes})
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	v = publishView{File: file, Size: im.Size, ChunkSize: p.sizes, Chunks: t.Len(), IndexBytes: int64(len(t.Index()))}
	if v.IndexBytes > largeIndex {
		report.WriteLine(p.notes, "note: the index of %s has %s, and each download reads it: a greater --chunk-size makes the index smaller", file, report.Size(v.IndexBytes))
	}
	if p.like != "" { // before the old index is replaced
		if v.Costs, err = p.costs(ctx, im, t); err != nil {
			return v, err
		}
	}
	if p.to != nil {
		err = p.write(ctx, im, t, &v)
	}
	return v, err
}

// largeIndex is the size of an index, in bytes, above which the command prints a note. An image of about
// 100 GiB in chunks of 64 KiB has an index of this size.
const largeIndex = 64 << 20

// cut cuts an image into chunks and shows the progress.
func (p *publisher) cut(ctx context.Context, im *publish.Image, h caibx.Header) (*caibx.Table, error) {
	done := &fetch.Progress{}
	defer p.watch(im, done)()
	return im.Cut(ctx, h, &done.Done)
}

func (p *publisher) watch(im *publish.Image, done *fetch.Progress) (stop func()) {
	done.Total.Store(im.Size)
	return p.bars.watch(singleTransfer("publish", ident.ID{Name: filepath.Base(im.Name())}, "", done))
}

// write writes the chunks and then the index of an image.
func (p *publisher) write(ctx context.Context, im *publish.Image, t *caibx.Table, v *publishView) error {
	if p.store {
		done := &fetch.Progress{}
		stop := p.watch(im, done)
		stored, err := p.to.PutChunks(ctx, im, t, p.workers, &done.Done)
		stop()
		if err != nil {
			return err
		}
		v.Stored = &storedChunks{stored.Chunks.Load(), stored.Bytes.Load()}
	}
	err := im.Unchanged()
	if err == nil {
		v.Index = p.to.Address(im.IndexName())
		v.Outcome, err = p.to.PutIndex(ctx, im.IndexName(), t, p.replace)
	}
	if _, ok := errors.AsType[*publish.DifferentError](err); ok {
		return fmt.Errorf("%w: publish the new version under another name, or replace the index with --force", err)
	}
	return err
}

// candidates are the chunk sizes that --like compares.
var candidates = []caibx.Sizes{caibx.SizesOf(64 << 10), caibx.SizesOf(16 << 10), caibx.Blocks(16 << 10)}

// costs estimates what a download of im costs a client that has the old version. t is the index of im.
func (p *publisher) costs(ctx context.Context, im *publish.Image, t *caibx.Table) ([]publish.Cost, error) {
	old, index, err := openOld(p.like, im)
	if err != nil {
		return nil, err
	}
	if old == nil {
		defer index.Close() // it was only read
		report.WriteLine(p.notes, "note: the old image is not beside %s: only the chunk sizes of this index can be compared", p.like)
		c, err := p.cost(ctx, im, t, index)
		return []publish.Cost{c}, err
	}
	defer old.Close() // it was only read
	sizes := candidates
	if !slices.Contains(sizes, p.sizes) {
		sizes = append([]caibx.Sizes{p.sizes}, sizes...)
	}
	var all []publish.Cost
	for _, s := range sizes {
		oldTable, err := p.cut(ctx, old, caibx.Header{Sizes: s})
		if err != nil {
			return nil, err
		}
		c, err := p.cost(ctx, im, t, oldTable)
		if err := errors.Join(err, oldTable.Close()); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// cost estimates the cost for a client that has the file whose index is old. t is the index of im. If t
// has other chunk sizes than old, cost cuts im again.
func (p *publisher) cost(ctx context.Context, im *publish.Image, t, old *caibx.Table) (c publish.Cost, err error) {
	if t.Header() != old.Header() {
		if t, err = p.cut(ctx, im, old.Header()); err != nil {
			return c, err
		}
		defer func() { err = errors.Join(err, t.Close()) }()
	}
	return im.Estimate(ctx, t, old)
}

const indexSuffix = ".caibx"

// openOld opens the old version of the image im. If path is an index without its image beside it, openOld
// opens the index instead. Without an error, exactly one of the two is not nil.
func openOld(path string, im *publish.Image) (*publish.Image, *caibx.Table, error) {
	beside, isIndex := strings.CutSuffix(path, indexSuffix)
	if !isIndex {
		old, err := publish.OpenImage(path)
		return old, nil, err
	}
	index, err := openIndex(path)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	old, err := publish.OpenImage(beside)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, index, nil
	}
	if err != nil {
		return nil, nil, errors.Join(err, index.Close())
	}
	if old.Size != index.ImageSize() || old.Is(im) { // the new version has replaced the old one
		return nil, index, old.Close()
	}
	return old, nil, index.Close()
}

// openIndex opens an index.
func openIndex(path string) (*caibx.Table, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // it was only read
	temp, err := caibx.TempFile("")
	if err != nil {
		return nil, err
	}
	return caibx.NewTable(temp, f, publish.Limits)
}

// costLines returns a table of the costs, and the cheapest chunk sizes.
func (p *publisher) costLines(v publishView) []string {
	if len(v.Costs) == 0 {
		return nil
	}
	rows := [][]string{{"CHUNKS", "INDEX", "MISSING", "RANGES", "FROM THE FILE", "FROM A STORE"}}
	for _, c := range v.Costs {
		rows = append(rows, []string{describeSizes(c.ChunkSize), report.Size(c.IndexBytes), fmt.Sprintf("%.1f %%", 100*float64(c.MissingBytes)/float64(v.Size)),
			strconv.FormatInt(c.Ranges, 10), report.Size(c.FromFile), report.Size(c.FromStore)})
	}
	file := slices.MinFunc(v.Costs, func(a, b publish.Cost) int { return cmp.Compare(a.FromFile, b.FromFile) })
	store := slices.MinFunc(v.Costs, func(a, b publish.Cost) int { return cmp.Compare(a.FromStore, b.FromStore) })
	return append(append([]string{"", fmt.Sprintf("What %s (%s) costs a client that has %s:", v.File, report.Size(v.Size), p.like)}, report.Align(rows)...),
		fmt.Sprintf("Cheapest with ranges of the file: %s, %s.", describeSizes(file.ChunkSize), report.Size(file.FromFile)),
		fmt.Sprintf("Cheapest with a chunk store: %s, %s.", describeSizes(store.ChunkSize), report.Size(store.FromStore)))
}

// describeSizes returns the flag for these chunk sizes.
func describeSizes(s caibx.Sizes) string {
	size := func(n uint64) string {
		switch {
		case n%(1<<20) == 0:
			return fmt.Sprintf("%dMiB", n>>20)
		case n%(1<<10) == 0:
			return fmt.Sprintf("%dKiB", n>>10)
		}
		return strconv.FormatUint(n, 10)
	}
	switch {
	case s.IsBlocks():
		return "--block-size " + size(s.Max)
	case s == caibx.SizesOf(s.Avg):
		return "--chunk-size " + size(s.Avg)
	}
	return "--chunk-size " + s.String()
}

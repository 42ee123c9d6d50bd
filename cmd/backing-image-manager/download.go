package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/outfile"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/fetch/redact"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newImageDownload() *cobra.Command {
	var f imageFlags
	to := &destination{}
	cmd := &cobra.Command{
		Use:   "download NAME FILE [--disk PATH | --url URL] [flags]",
		Short: "Write an image out to a file",
		Long: `Copies the ready image NAME to FILE, from a daemon, or with --disk from a disk. Zeros
are not sent, and FILE has holes for them. Every chunk is checked as it comes, and the
checksum of the whole at the end: only then FILE appears. Until then what came is in
FILE.image-part. Whatever ends the download, the same command goes on from there.

FILE "-" is the standard output. NAME may be <name>-<uuid> too; alone it is the declared
generation. --compress packs what is written, and appends .gz or .zst to FILE if it does
not end so.

The same can be had without this program from the daemon's address
/v1/images/NAME/download, with ranges, or with ?compress=gzip or zstd.`,
		Example: `  backing-image-manager backing-image download parrot parrot.raw
  backing-image-manager backing-image download parrot parrot.raw --compress zstd --url https://node1:8000 --token-file token
  backing-image-manager backing-image download parrot - --disk /var/lib/longhorn | ssh host 'cat >parrot.raw'
  curl -o parrot.raw -C - http://localhost:8000/v1/images/parrot/download`,
		Args: exactly("NAME", "FILE"),
	}
	f.add(cmd)
	f.addOn(cmd)
	cmd.Flags().BoolVar(&to.Replace, "force", false, "replace FILE if it is there")
	packing := choiceFlag(cmd, "compress", "", "pack what is written", "none", "gzip", "zstd")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if packing.word != "none" {
			to.Packing = outfile.Packing(packing.word)
		}
		to.Path, to.out = args[1], cmd.OutOrStdout()
		if err := to.prepare(); err != nil {
			return err
		}
		from, err := f.supply(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		err = to.take(cmd.Context(), from, newProgress(cmd.ErrOrStderr()))
		return errors.Join(err, from.close())
	}
	return cmd
}

// supply is an image that can be had.
type supply interface {
	// what says which image it is, and how it is to be shown.
	what() offered
	// manifest returns the manifest, for which file makes a place; nil: there is none.
	manifest(ctx context.Context, file func() (*os.File, error)) (*disk.Manifest, error)
	// chunks hands over all chunks from first on, nil for zeros.
	chunks(ctx context.Context, m *disk.Manifest, first int64, put func([]byte) error) error
	close() error
}

// offered is what a supply has.
type offered struct {
	disk.ID
	place  string
	size   int64
	sha512 disk.Digest
}

// supply finds the image that answers to a name.
func (f *imageFlags) supply(ctx context.Context, name string) (supply, error) {
	if len(f.disks) == 0 {
		return openFarSupply(ctx, f.daemonFlags, name, f.on)
	}
	return openNearSupply(f.disks, name, f.on)
}

// destination is where an image is written out to.
type destination struct {
	outfile.Target // Path "-": out
	out            io.Writer
}

// otherNames are those of the standard output besides "-". Where that goes to a file, it
// would be taken for a file that is in the way.
var otherNames = []string{"/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"}

func (d *destination) prepare() error {
	if slices.Contains(otherNames, d.Path) {
		d.Path = "-"
	}
	switch d.Path {
	case "":
		return errors.New("FILE is empty: name the file, or write - for the standard output")
	case "-":
		if _, tty := terminal(d.out); tty {
			return errors.New("an image is not for a terminal: redirect the output, or name a file")
		}
		return nil
	}
	if ending := d.Packing.Extension(); !strings.HasSuffix(d.Path, ending) {
		d.Path += ending
	}
	return replaceable(d.Check())
}

// replaceable says what to do about a file that is there.
func replaceable(err error) error {
	if _, ok := errors.AsType[*outfile.ExistsError](err); ok {
		return fmt.Errorf("%w: remove it, or replace it with --force", err)
	}
	return err
}

// take writes the image, and says what is left of it if that fails.
func (d *destination) take(ctx context.Context, from supply, show *progress) error {
	image, counted := from.what(), &fetch.Progress{}
	counted.Total.Store(image.size)
	defer show.follow(oneTransfer(reconcile.Download, image.ID, image.place, counted))()
	w := outfile.Stream(d.out, d.Packing, image.size)
	if d.Path != "-" {
		var err error
		if w, err = outfile.Create(d.Target, image.size); err != nil {
			return replaceable(err)
		}
	}
	err := d.fill(ctx, from, w, counted)
	if err == nil {
		err = w.Commit(image.sha512)
		if _, wrong := errors.AsType[*disk.ChecksumError](err); wrong {
			err = &damagedError{fmt.Sprintf("%s on %s", image.ID, image.place), err}
		}
	}
	err = errors.Join(replaceable(err), w.Close())
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = errors.New("stopped")
	}
	if _, statErr := os.Stat(d.PartialPath()); err != nil && d.Path != "-" && statErr == nil {
		return &keptError{err, d.PartialPath(), w.Offset(), image.size}
	}
	return err
}

func (d *destination) fill(ctx context.Context, from supply, w *outfile.Writer, counted *fetch.Progress) error {
	m, err := from.manifest(ctx, d.unnamed)
	if err != nil {
		return err
	}
	if m != nil {
		defer m.Close() // only read from
	}
	if err := w.Resume(ctx, m, func(n int64) { counted.Done.Add(n) }); err != nil {
		return err
	}
	return from.chunks(ctx, m, w.Next(), func(chunk []byte) error {
		err := w.Put(chunk)
		counted.Done.Store(w.Offset())
		return err
	})
}

// unnamed makes a file that nobody else sees, beside FILE where that is possible: memory
// must not grow with the image.
func (d *destination) unnamed() (*os.File, error) {
	folder := filepath.Dir(d.Path)
	if d.Path == "-" {
		folder = os.TempDir()
	}
	fd, err := unix.Open(folder, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		fd, err = unix.MemfdCreate("manifest", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, &os.PathError{Op: "make a file in", Path: folder, Err: err}
	}
	return os.NewFile(uintptr(fd), "manifest"), nil
}

// keptError says that a download can go on later.
type keptError struct {
	error
	part       string
	done, size int64
}

func (e *keptError) Unwrap() error { return e.error }

func (e *keptError) hint() string {
	return fmt.Sprintf("%s of %s are in %s: the same command goes on from there", report.Size(e.done), report.Size(e.size), e.part)
}

// farSupply is an image on the disks of a daemon's node. It is asked for as other nodes
// do, by chunks that the manifest tells to be right.
type farSupply struct {
	offered
	client  *peer.Client
	sources []peer.Source
	wrong   map[string]bool // disks that sent what is not right
}

func openFarSupply(ctx context.Context, daemon daemonFlags, name string, on []string) (*farSupply, error) {
	client, err := daemon.client()
	if err != nil {
		return nil, err
	}
	status, err := client.Status(ctx)
	if err != nil {
		return nil, err
	}
	image, copies, err := pickReady(status, name, on)
	if err != nil {
		return nil, err
	}
	token, config := client.Credentials()
	first := copies[0]
	s := &farSupply{
		offered: offered{disk.ID{Name: image.Name, UUID: image.UUID}, report.DiskName(first), first.Size, first.SHA512},
		client:  peer.NewCLIClient(token, config), wrong: map[string]bool{},
	}
	for _, on := range copies {
		if on.SHA512 == first.SHA512 {
			s.sources = append(s.sources, peer.Source{
				Address: peer.Address{Node: status.Node, URL: client.URL()}, Disk: on.Disk, ID: s.ID, ManifestDigest: on.Chunks,
			})
		}
	}
	return s, nil
}

// pickReady returns the image that answers to a name, and its ready copies on the node
// that was asked, of which there is one at least.
func pickReady(s reconcile.Status, name string, on []string) (reconcile.ImageStatus, []reconcile.CopyStatus, error) {
	var found []reconcile.ImageStatus
	for _, image := range s.Images {
		id := disk.ID{Name: image.Name, UUID: image.UUID}
		image.Copies = report.CopiesOn(image.Copies, on)
		if (image.Name == name || id.String() == name) && (len(on) == 0 || len(image.Copies) > 0) {
			found = append(found, image)
		}
	}
	if len(found) == 0 {
		return reconcile.ImageStatus{}, nil, fmt.Errorf("no image %s: node %s knows of none%s", name, s.Node, onText(on))
	}
	image := slices.MinFunc(found, report.CompareGenerations)
	ready := slices.DeleteFunc(slices.Clone(image.Copies), func(c reconcile.CopyStatus) bool {
		return c.Node != s.Node || c.State != disk.Ready || c.Leaving || c.Chunks.IsZero()
	})
	if len(ready) == 0 {
		return image, nil, nothingReady(s, image)
	}
	return image, ready, nil
}

func onText(on []string) string {
	if len(on) == 0 {
		return ""
	}
	return " on " + strings.Join(on, ", ")
}

// nothingReady says why the asked node has nothing to give, and who has.
func nothingReady(s reconcile.Status, image reconcile.ImageStatus) error {
	id := disk.ID{Name: image.Name, UUID: image.UUID}
	var here, there []string
	for _, c := range image.Copies {
		switch {
		case c.Node == s.Node && c.State == disk.Ready && c.Leaving:
			here = append(here, c.Disk+" is about to remove it")
		case c.Node == s.Node && c.State == disk.Ready:
			here = append(here, "the chunk manifest on "+c.Disk+" has yet to be made")
		case c.Node == s.Node:
			here = append(here, strings.TrimSuffix(fmt.Sprintf("%s on %s: %s", c.State, c.Disk, report.OneLine(c.Message)), ": "))
		case c.State == disk.Ready && !c.Leaving:
			there = append(there, report.DiskName(c)+" has it: ask its daemon"+askAt(s, c.Node))
		}
	}
	why := cmp.Or(strings.Join(here, "; "), report.OneLine(image.Message), "it has no copy")
	return errors.New(strings.Join(append([]string{fmt.Sprintf("%s is not ready on node %s: %s", id, s.Node, why)}, there...), "; "))
}

func askAt(s reconcile.Status, node string) string {
	for _, p := range s.Peers {
		if p.Node == node && p.Address != "" {
			return " with --url " + redact.URL(p.Address)
		}
	}
	return ""
}

func (s *farSupply) what() offered { return s.offered }

func (s *farSupply) pull() *peer.Pull {
	return &peer.Pull{
		Client: s.client, Sources: func() []peer.Source { return s.sources }, MaxBackoff: time.Second, Final: s.final,
	}
}

// final reports whether all copies that there are have turned out to be damaged.
func (s *farSupply) final(err error) bool {
	if wrong, ok := errors.AsType[*peer.InvalidDataError](err); ok {
		s.wrong[wrong.Disk] = true
	}
	return len(s.wrong) == len(s.sources)
}

func (s *farSupply) manifest(ctx context.Context, file func() (*os.File, error)) (*disk.Manifest, error) {
	m, err := s.pull().Manifest(ctx, s.size, func(r io.Reader, size int64, want disk.Digest) (*disk.Manifest, error) {
		f, err := file()
		if err != nil {
			return nil, err
		}
		return disk.ReceiveManifest(f, r, size, want)
	})
	return m, s.explain(err)
}

func (s *farSupply) chunks(ctx context.Context, m *disk.Manifest, first int64, put func([]byte) error) error {
	return s.explain(s.pull().Chunks(ctx, m, first, func(_ int64, chunk []byte) error { return put(chunk) }))
}

func (s *farSupply) explain(err error) error {
	if _, ok := errors.AsType[*peer.InvalidDataError](err); ok {
		return &damagedError{s.ID.String(), err}
	}
	return err
}

func (s *farSupply) close() error {
	s.client.Close()
	return nil
}

// nearSupply is an image on a disk, without a daemon.
type nearSupply struct {
	shelves []shelf
	copy    shelved
	r       *disk.Reader
}

func openNearSupply(paths []string, name string, on []string) (*nearSupply, error) {
	shelves, err := openShelves(paths)
	if err != nil {
		return nil, err
	}
	s := &nearSupply{shelves: shelves}
	copies, err := named(shelves, name)
	if err == nil && len(on) > 0 {
		copies = slices.DeleteFunc(copies, func(c shelved) bool { return !slices.Contains(on, c.Path()) })
		if len(copies) == 0 {
			err = fmt.Errorf("no image %q there", name)
		}
	}
	if err == nil {
		s.copy = pickCopy(copies)
		err = s.copy.notReady()
	}
	if err == nil {
		s.r, err = s.copy.Open(s.copy.ID)
	}
	if err != nil {
		return nil, errors.Join(err, closeShelves(shelves))
	}
	return s, nil
}

// pickCopy takes the copy that answers to a name, as in a list.
func pickCopy(copies []shelved) shelved {
	return slices.MinFunc(copies, func(a, b shelved) int { return report.CompareGenerations(asImage(a), asImage(b)) })
}

// notReady says why there is nothing to read yet, and what leads on, or nil.
func (s shelved) notReady() error {
	c := copyOn(s.Path(), s.Copy, disk.Users{})
	why := strings.TrimSuffix(fmt.Sprintf("%s: %s", c.State, report.OneLine(c.Message)), ": ")
	switch c.State {
	case disk.Ready:
		return nil
	case disk.Unknown:
		return fmt.Errorf("%s is not ready: it is %s; backing-image verify reads it", s, why)
	case disk.InProgress:
		return fmt.Errorf("%s is not ready: only a part of it is there; a daemon or reconcile goes on with it", s)
	}
	return fmt.Errorf("%s is not ready: it is %s; a daemon or reconcile makes it anew, if it is declared", s, why)
}

func asImage(c shelved) reconcile.ImageStatus {
	return reconcile.ImageStatus{UUID: c.ID.UUID, Copies: []reconcile.CopyStatus{copyOn(c.Path(), c.Copy, disk.Users{})}}
}

func (s *nearSupply) what() offered {
	return offered{s.copy.ID, s.copy.Path(), s.r.Size(), s.copy.SHA512}
}

func (s *nearSupply) manifest(context.Context, func() (*os.File, error)) (*disk.Manifest, error) {
	m, err := s.copy.Manifest(s.copy.ID)
	if errors.Is(err, disk.ErrNoManifest) {
		return nil, nil // the checksum of the whole tells as well, only later
	}
	return m, err
}

func (s *nearSupply) chunks(ctx context.Context, m *disk.Manifest, first int64, put func([]byte) error) error {
	buf := make([]byte, disk.ChunkSize)
	for n := first; n*disk.ChunkSize < s.r.Size(); n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		chunk, err := s.chunk(m, n, buf)
		if err == nil {
			err = put(chunk)
		}
		if err != nil {
			return err
		}
	}
	return s.r.Unchanged()
}

// chunk reads chunk n, of which a manifest may say that it is zeros.
func (s *nearSupply) chunk(m *disk.Manifest, n int64, buf []byte) ([]byte, error) {
	if m != nil {
		if zero, err := m.IsZero(n); zero || err != nil {
			return nil, err
		}
	}
	chunk := buf[:min(disk.ChunkSize, s.r.Size()-n*disk.ChunkSize)]
	if _, err := s.r.ReadAt(chunk, n*disk.ChunkSize); err != nil {
		return nil, fmt.Errorf("read %s: %w", s.copy, err)
	}
	if m == nil {
		return chunk, nil
	}
	want, err := m.Hash(n)
	if err == nil && disk.HashChunk(chunk) != want {
		err = &damagedError{s.copy.String(), fmt.Errorf("chunk %d is not as its manifest says", n)}
	}
	return chunk, err
}

func (s *nearSupply) close() error { return errors.Join(s.r.Close(), closeShelves(s.shelves)) }

// damagedError says that a copy that is called ready is not right.
type damagedError struct {
	copy string
	err  error
}

func (e *damagedError) Error() string { return fmt.Sprintf("%s is damaged: %v", e.copy, e.err) }

func (e *damagedError) Unwrap() error { return e.err }

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

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/outfile"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

func newImageDownload() *cobra.Command {
	var f imageFlags
	to := &destination{}
	cmd := &cobra.Command{
		Use:   "download NAME FILE [--disk PATH | --url URL] [flags]",
		Short: "Write an image to a file",
		Long: `Copies the ready image NAME to FILE, from a daemon, or with --disk from a disk. Zeros
are not transferred, and become holes in FILE. Each chunk is verified when it arrives,
and the digest of the image at the end. Only then FILE appears. Until then the data is
in FILE.image-part. After an interruption, the same command resumes the download.

FILE "-" is the standard output. NAME alone selects the declared generation; it may
also be <name>-<uuid>. --compress compresses FILE, and appends .gz or .zst to its name
if that is missing.

The daemon also serves the image to other HTTP clients at
/v1/images/NAME/download, with ranges, or with ?compress=gzip or zstd.`,
		Example: `  backing-image-manager backing-image download parrot parrot.raw
  backing-image-manager backing-image download parrot parrot.raw --compress zstd --url https://node1:8000 --token-file token
  backing-image-manager backing-image download parrot - --disk /var/lib/longhorn | ssh host 'cat >parrot.raw'
  curl -o parrot.raw -C - http://localhost:8000/v1/images/parrot/download`,
		Args: exactArgs("NAME", "FILE"),
	}
	f.add(cmd)
	f.addOn(cmd)
	cmd.Flags().BoolVar(&to.Replace, "force", false, "replace FILE if it exists")
	const none outfile.Compression = "none" // for outfile.None, which is ""
	compress := choiceFlag(cmd, "compress", "", "compression of FILE", none, outfile.Gzip, outfile.Zstd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if compress.value != none {
			to.Compression = compress.value
		}
		to.Path, to.out = args[1], cmd.OutOrStdout()
		if err := to.prepare(); err != nil {
			return err
		}
		source, err := f.openImage(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		err = to.write(cmd.Context(), source, newProgress(cmd.ErrOrStderr()))
		return errors.Join(err, source.close())
	}
	return cmd
}

// imageSource is a ready image to download.
type imageSource interface {
	info() imageInfo
	// manifest returns the chunk manifest, or nil if there is none. newFile creates the
	// file to store the manifest in.
	manifest(ctx context.Context, newFile func() (*os.File, error)) (*disk.Manifest, error)
	// chunks calls put for each chunk, beginning with chunk number first. A chunk of zeros may
	// be nil.
	chunks(ctx context.Context, m *disk.Manifest, first int64, put func([]byte) error) error
	close() error
}

// imageInfo identifies a ready image.
type imageInfo struct {
	ident.ID
	disk   string
	size   int64
	sha512 ident.Digest
}

// openImage opens an image by its name, on the disks of --disk or else at the daemon.
func (f *imageFlags) openImage(ctx context.Context, name string) (imageSource, error) {
	if len(f.disks) == 0 {
		return openRemote(ctx, f.daemonFlags, name, f.on)
	}
	return openLocal(f.disks, name, f.on)
}

// destination is the file or the stream that an image is written to.
type destination struct {
	outfile.Target // the path "-" means out
	out            io.Writer
}

// stdoutNames are the other names of the standard output. If the output is redirected to a
// file, outfile would find an existing file by such a name.
var stdoutNames = []string{"/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"}

func (d *destination) prepare() error {
	if slices.Contains(stdoutNames, d.Path) {
		d.Path = "-"
	}
	switch d.Path {
	case "":
		return errors.New("FILE is empty: name the file, or write - for the standard output")
	case "-":
		if _, tty := terminal(d.out); tty {
			return errors.New("will not write an image to a terminal: redirect the output, or name a file")
		}
		return nil
	}
	if ending := d.Compression.Extension(); !strings.HasSuffix(d.Path, ending) {
		d.Path += ending
	}
	return suggestForce(d.Check())
}

// suggestForce adds advice to the error for a file that exists.
func suggestForce(err error) error {
	if _, ok := errors.AsType[*outfile.ExistsError](err); ok {
		return fmt.Errorf("%w: remove it, or replace it with --force", err)
	}
	return err
}

// write writes the image. If it fails and a partial file remains, the error is a *resumableError.
func (d *destination) write(ctx context.Context, source imageSource, bars *progress) error {
	image, p := source.info(), &fetch.Progress{}
	p.Total.Store(image.size)
	defer bars.watch(singleTransfer(model.Download, image.ID, image.disk, p))()
	w := outfile.NewStreamWriter(d.out, d.Compression, image.size)
	if d.Path != "-" {
		var err error
		if w, err = outfile.Create(d.Target, image.size); err != nil {
			return suggestForce(err)
		}
	}
	err := d.fill(ctx, source, w, p)
	if err == nil {
		err = w.Commit(image.sha512)
		if _, wrong := errors.AsType[*disk.ChecksumError](err); wrong {
			err = &damagedError{fmt.Sprintf("%s on %s", image.ID, image.disk), err}
		}
	}
	err = errors.Join(suggestForce(err), w.Close())
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = errors.New("stopped")
	}
	if _, statErr := os.Stat(d.PartialPath()); err != nil && d.Path != "-" && statErr == nil {
		return &resumableError{err, d.PartialPath(), w.Offset(), image.size}
	}
	return err
}

func (d *destination) fill(ctx context.Context, source imageSource, w *outfile.Writer, p *fetch.Progress) error {
	m, err := source.manifest(ctx, d.newTempFile)
	if err != nil {
		return err
	}
	if m != nil {
		defer m.Close() // it was only read, so the error does not matter
	}
	if err := w.Resume(ctx, m, func(n int64) { p.Done.Add(n) }); err != nil {
		return err
	}
	p.Resume(w.Offset())
	return source.chunks(ctx, m, w.Next(), func(chunk []byte) error {
		err := w.AppendChunk(chunk)
		p.Done.Store(w.Offset())
		return err
	})
}

// newTempFile creates an unnamed file for the chunk manifest, which grows with the image: beside
// FILE, or in memory if that is not possible.
func (d *destination) newTempFile() (*os.File, error) {
	folder := filepath.Dir(d.Path)
	if d.Path == "-" {
		folder = os.TempDir()
	}
	fd, err := unix.Open(folder, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		fd, err = unix.MemfdCreate("manifest", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, &os.PathError{Op: "create a file in", Path: folder, Err: err}
	}
	return os.NewFile(uintptr(fd), "manifest"), nil
}

// resumableError is the error of a download that the same command can resume.
type resumableError struct {
	error
	partial    string // the path of the partial file
	done, size int64
}

func (e *resumableError) Unwrap() error { return e.error }

// Hint returns how to resume.
func (e *resumableError) Hint() (hint string, ok bool) {
	return fmt.Sprintf("%s of %s are in %s: the same command resumes the download", report.Size(e.done), report.Size(e.size), e.partial), true
}

// remoteImage is an image on the disks of a daemon's node. The command reads the image by the
// peer protocol, and verifies each chunk against the manifest.
type remoteImage struct {
	imageInfo
	client  *peer.Client
	copies  []peer.Source
	damaged map[string]bool // disks that sent wrong bytes
}

func openRemote(ctx context.Context, daemon daemonFlags, name string, on []string) (*remoteImage, error) {
	client, err := daemon.client()
	if err != nil {
		return nil, err
	}
	s, err := client.Status(ctx)
	if err != nil {
		return nil, err
	}
	image, copies, err := s.FindReady(name, on)
	if err != nil {
		return nil, err
	}
	token, config := client.Credentials()
	first := copies[0]
	r := &remoteImage{
		imageInfo: imageInfo{image.ID(), first.DiskName(), first.Size, first.SHA512},
		client:    peer.NewCLIClient(token, config), damaged: map[string]bool{},
	}
	for _, c := range copies {
		if c.SHA512 == first.SHA512 {
			r.copies = append(r.copies, peer.Source{
				Address: peer.Address{Node: s.Node, URL: client.URL()}, Disk: c.Disk, ID: r.ID, ManifestDigest: c.ManifestDigest, Size: c.Size,
			})
		}
	}
	return r, nil
}

func (r *remoteImage) info() imageInfo { return r.imageInfo }

func (r *remoteImage) pull() *peer.Pull {
	return &peer.Pull{
		Client: r.client, Sources: func() []peer.Source { return r.copies }, MaxBackoff: time.Second, Final: r.isFinal,
	}
}

// isFinal notes the disk that sent wrong bytes, and reports whether all copies have sent wrong bytes.
func (r *remoteImage) isFinal(err error) bool {
	if wrong, ok := errors.AsType[*peer.InvalidDataError](err); ok {
		r.damaged[wrong.Disk] = true
	}
	return len(r.damaged) == len(r.copies)
}

func (r *remoteImage) manifest(ctx context.Context, newFile func() (*os.File, error)) (*disk.Manifest, error) {
	m, err := r.pull().Manifest(ctx, func(body io.Reader, size int64, want ident.Digest) (*disk.Manifest, error) {
		f, err := newFile()
		if err != nil {
			return nil, err
		}
		return disk.ReceiveManifest(f, body, size, want)
	})
	return m, r.explain(err)
}

func (r *remoteImage) chunks(ctx context.Context, m *disk.Manifest, first int64, put func([]byte) error) error {
	return r.explain(r.pull().Chunks(ctx, m, first, put))
}

func (r *remoteImage) explain(err error) error {
	if _, ok := errors.AsType[*peer.InvalidDataError](err); ok {
		return &damagedError{r.ID.String(), err}
	}
	return err
}

func (r *remoteImage) close() error {
	r.client.Close()
	return nil
}

// localImage is an image on a disk without a daemon.
type localImage struct {
	*offline
	copy status.CopyStatus
	r    *disk.Reader
}

func openLocal(paths []string, name string, on []string) (*localImage, error) {
	o, err := openDisks(paths)
	if err != nil {
		return nil, err
	}
	l := &localImage{offline: o}
	copies, err := o.find(name, on)
	if err == nil {
		l.copy = copies[0]
		err = checkReady(l.copy)
	}
	if err == nil {
		l.r, err = o.disks[l.copy.Disk].Open(l.copy.ID)
	}
	if err != nil {
		return nil, errors.Join(err, o.close())
	}
	return l, nil
}

func (l *localImage) info() imageInfo {
	return imageInfo{l.copy.ID, l.copy.Disk, l.r.Size(), l.copy.SHA512}
}

func (l *localImage) manifest(context.Context, func() (*os.File, error)) (*disk.Manifest, error) {
	m, err := l.disks[l.copy.Disk].Manifest(l.copy.ID)
	if errors.Is(err, disk.ErrNoManifest) {
		return nil, nil // the digest of the image detects damage, too, but only at the end
	}
	return m, err
}

func (l *localImage) chunks(ctx context.Context, m *disk.Manifest, first int64, put func([]byte) error) error {
	buf := make([]byte, disk.ChunkSize)
	read := func(n int64) ([]byte, error) {
		chunk := buf[:min(disk.ChunkSize, l.r.Size()-n*disk.ChunkSize)]
		_, err := l.r.ReadAt(chunk, n*disk.ChunkSize)
		return chunk, err
	}
	if m != nil {
		read = disk.NewVerifyingReader(l.copy.ID, l.r, m, 1).Chunk
	}
	for n := first; n*disk.ChunkSize < l.r.Size(); n++ {
		chunk, err := read(n)
		switch {
		case errors.Is(err, disk.ErrDamaged):
			return &damagedError{l.copy.String(), fmt.Errorf("chunk %d does not match its manifest", n)}
		case err != nil:
			return fmt.Errorf("read %s: %w", l.copy, err)
		}
		if err := cmp.Or(ctx.Err(), put(chunk)); err != nil {
			return err
		}
	}
	return l.r.Unchanged()
}

func (l *localImage) close() error { return errors.Join(l.r.Close(), l.offline.close()) }

// damagedError is the error for a ready copy with wrong bytes.
type damagedError struct {
	copy string
	err  error
}

func (e *damagedError) Error() string { return fmt.Sprintf("%s is damaged: %v", e.copy, e.err) }

func (e *damagedError) Unwrap() error { return e.err }

// Hint returns how to replace the copy.
func (e *damagedError) Hint() (hint string, ok bool) {
	return "run backing-image verify: it marks the copy as failed, and then the copy is replaced", true
}

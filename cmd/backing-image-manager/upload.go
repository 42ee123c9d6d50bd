package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// uploadCmd is one run of the command upload.
type uploadCmd struct {
	imageFlags
	configDir string
	checksum  string
	size      int64
	restart   bool

	name, file string
	in         io.Reader
	out, err   io.Writer
}

func newImageUpload() *cobra.Command {
	u := &uploadCmd{}
	cmd := &cobra.Command{
		Use:   "upload NAME FILE [--url URL | --disk PATH --config-dir DIR] [flags]",
		Short: "Upload the file of an image whose source is upload",
		Long: `Sends FILE, or with "-" the standard input, to a daemon that declares the image NAME
with the source upload, and waits until the image is ready there. Holes are not sent,
and each piece has a checksum.

The command resumes the upload after a dropped connection or a restart of the daemon.
If the command itself is interrupted, the same command with the same FILE resumes the
upload within 24 hours. A FILE that ends in .gz, .xz, .zst or .bz2 is unpacked while
it is sent. Such a file, like a pipe, cannot be resumed after the command has ended.

With --disk and --config-dir, the command writes the image to a disk that no daemon has
locked, as the configuration declares it.

Exit status: 0 if the image is ready, also if it was ready before with the bytes of FILE;
1 if it is not ready, has other bytes, or was ready before and FILE is a pipe.`,
		Example: `  backing-image-manager backing-image upload parrot parrot.raw
  xz -dc parrot.raw.xz | backing-image-manager backing-image upload parrot - --url http://node1:8000 --token-file token
  backing-image-manager backing-image upload parrot parrot.raw --disk /var/lib/longhorn --config-dir config`,
		Args: exactArgs("NAME", "FILE"),
	}
	u.add(cmd)
	flags := cmd.Flags()
	flags.Lookup("disk").Usage = "write to the disk at `PATH`, without a daemon"
	flags.StringVar(&u.configDir, "config-dir", "", "with --disk, the config directory `DIR`")
	flags.StringVar(&u.checksum, "checksum", "", "the `DIGEST` that the image must have, in hex: SHA-512, or sha256:…")
	flags.Int64Var(&u.size, "size", -1, "size of the standard input in `BYTES`, if known")
	flags.Lookup("size").DefValue = "0" // the help then shows no default
	flags.BoolVar(&u.restart, "restart", false, "cancel an incomplete upload of the image and start again")
	complete(cmd, (*cobra.Command).MarkFlagDirname, "config-dir")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		u.name, u.file = args[0], args[1]
		u.in, u.out, u.err = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
		return u.run(cmd.Context())
	}
	return cmd
}

func (u *uploadCmd) run(ctx context.Context) error {
	switch {
	case len(u.disks) > 1:
		return errors.New("--disk is given twice: an image is uploaded to one disk")
	case (len(u.disks) > 0) != (u.configDir != ""):
		return errors.New("--disk and --config-dir must be given together: name the disk and the config directory")
	case u.size >= 0 && u.file != "-":
		return errors.New("--size is for the standard input only: the size of a file is known")
	}
	request := upload.Request{Image: u.name, Restart: u.restart, Warn: func(err error) {}}
	var err error
	if request.Digest, err = ident.ParseDigest(u.checksum); u.checksum != "" && err != nil {
		return fmt.Errorf("--checksum: %w", err)
	}
	content, done, err := u.content()
	if err != nil {
		return err
	}
	defer done()
	request.Content = content
	if len(u.disks) > 0 {
		return u.store(ctx, request)
	}
	return u.send(ctx, request)
}

// content opens the file or the standard input.
func (u *uploadCmd) content() (c upload.Content, done func(), err error) {
	if u.file == "-" {
		if f, ok := u.in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			return nil, nil, errors.New("will not read an image from a terminal: use a pipe, or name a file")
		}
		return upload.NewPipe(u.in, u.size), func() {}, nil
	}
	f, err := os.Open(u.file)
	if err != nil {
		return nil, nil, err
	}
	r, packed := fetch.UnpackByName(u.file, f)
	info, err := f.Stat()
	switch {
	case err == nil && info.IsDir():
		return nil, nil, errors.Join(fmt.Errorf("%s is a folder: name the file in it", u.file), f.Close())
	case packed || err == nil && info.Mode()&os.ModeNamedPipe != 0:
		return upload.NewPipe(r, -1), func() { f.Close() }, nil
	}
	c, err = upload.NewFile(f)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("read %s: %w", u.file, err), f.Close())
	}
	return c, func() { f.Close() }, nil // it was only read, so the error does not matter
}

// send uploads the image to a daemon.
func (u *uploadCmd) send(ctx context.Context, request upload.Request) error {
	daemon, err := u.client()
	if err != nil {
		return err
	}
	token, config := daemon.Credentials()
	transport := &http.Transport{
		Proxy:           http.ProxyFromEnvironment, // it uses no proxy for loopback
		TLSClientConfig: config,
		TLSNextProto:    map[string]func(string, *tls.Conn) http.RoundTripper{}, // HTTP/1 is enough for one body at a time
	}
	defer transport.CloseIdleConnections()
	bars, p := newProgress(u.err), &fetch.Progress{}
	// Two clients that send the same upload interrupt each other with every request: limit the warnings.
	warnings := rate.Sometimes{First: 1, Interval: time.Minute}
	request.Warn = func(err error) {
		warnings.Do(func() {
			bars.logger().Warn("interrupted; resuming", "error", daemon.Unreachable(err).Error())
		})
	}
	stop := bars.watch(singleTransfer(model.Upload, ident.ID{Name: u.name}, daemon.Address(), p))
	client := upload.Client{Base: daemon.URL(), Transport: transport}
	if token != "" {
		client.Authorization = "Bearer " + token
	}
	err = client.Send(ctx, request, p)
	stop()
	refused, isRefused := errors.AsType[*httperror.Error](err)
	_, isUnreadable := errors.AsType[*upload.ContentError](err)
	switch {
	case isRefused:
		err = daemon.Refused(refused)
		if !mayBeReady(refused.Status) {
			return err
		}
		ready, statusErr := u.readyDigest(ctx)
		if statusErr != nil || ready.IsZero() {
			return err
		}
		return u.compareReady(ctx, request.Content, ready, err)
	case errors.Is(err, upload.ErrLost):
		return u.checkLost(ctx, request.Content, fmt.Errorf("upload to %s: %w", daemon.Address(), err))
	case err != nil && ctx.Err() != nil:
		return stoppedError(request.Content, "the daemon keeps the data for a day")
	case isUnreadable:
		return err
	case err != nil && p.Done.Load() == 0:
		return daemon.Unreachable(err)
	case err != nil:
		return fmt.Errorf("upload to %s: %w", daemon.Address(), err)
	}
	return report.WriteLine(u.out, "%s is uploaded and ready", u.name)
}

// stoppedError returns the error for an upload that the user stopped. It says whether the upload can be resumed. kept
// is the text about the data that remains.
func stoppedError(c upload.Content, kept string) error {
	if _, isFile := c.(*upload.File); !isFile {
		return errors.New("stopped; data from a pipe or a packed file must be sent again from the start")
	}
	return fmt.Errorf("stopped; %s, and the same command resumes the upload", kept)
}

// readyDigest returns the digest of the image at the daemon. The zero Digest means that the daemon
// has no ready copy.
func (u *uploadCmd) readyDigest(ctx context.Context) (ident.Digest, error) {
	s, err := u.status(ctx)
	if err != nil {
		return ident.Digest{}, err
	}
	for _, image := range status.Generations(s.Images, u.name, nil) {
		if image.Declared && len(image.Copies) > 0 && image.Copies[0].State == model.Ready {
			return image.Copies[0].SHA512, nil
		}
	}
	return ident.Digest{}, nil
}

// mayBeReady reports whether a refusal with this status may mean that the daemon already has the
// ready image, for example from another node.
func mayBeReady(status int) bool {
	return status == http.StatusConflict || status == http.StatusNotFound || status == http.StatusGone
}

// checkLost handles an upload whose last response was lost. The image may be ready, with the
// bytes of this upload or of another upload.
func (u *uploadCmd) checkLost(ctx context.Context, c upload.Content, lost error) error {
	ready, err := u.readyDigest(ctx)
	if err != nil {
		return errors.Join(lost, err)
	}
	if ready.IsZero() {
		return lost
	}
	return u.compareReady(ctx, c, ready, fmt.Errorf("%w; %s is ready with sha512 %s", lost, u.name, ready))
}

// compareReady compares the file with the digest of the ready image. If they differ, or if the
// content comes from a pipe and cannot be read again, it returns the argument refusal with the
// reason.
func (u *uploadCmd) compareReady(ctx context.Context, c upload.Content, ready ident.Digest, refusal error) error {
	if !u.canReread(c) {
		return fmt.Errorf("%w (data from a pipe cannot be compared with the image)", refusal)
	}
	got, err := u.digest(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("read %s: %w", u.file, err)
	case got != ready:
		return fmt.Errorf("%w (the image has %s, and %s has %s)", refusal, ready.Short(), u.file, got.Short())
	}
	return report.WriteLine(u.out, "%s is already ready, with the same bytes", u.name)
}

// canReread reports whether the content comes from a file, packed or not.
func (u *uploadCmd) canReread(c upload.Content) bool {
	if _, isFile := c.(*upload.File); isFile {
		return true
	}
	info, err := os.Stat(u.file)
	return u.file != "-" && err == nil && info.Mode().IsRegular()
}

// digest returns the SHA-512 of the file, unpacked.
func (u *uploadCmd) digest(ctx context.Context) (ident.Digest, error) {
	f, err := os.Open(u.file)
	if err != nil {
		return ident.Digest{}, err
	}
	defer f.Close()
	r, _ := fetch.UnpackByName(u.file, f)
	defer r.Close()
	h := ident.SHA512.New()
	if _, err := io.Copy(h, fetch.CountReader(ctx, r)); err != nil {
		return ident.Digest{}, err
	}
	return ident.SHA512.Digest(h), nil
}

// store writes the image to a disk that no daemon has locked.
func (u *uploadCmd) store(ctx context.Context, request upload.Request) (err error) {
	result, err := loadConfig(ctx, u.err, u.configDir)
	if err != nil {
		return err
	}
	image, declared := result.Config.Images[u.name]
	switch {
	case !declared:
		report.WriteProblems(u.err, u.configDir, result)
		return fmt.Errorf("no image %s is declared in %s: declare it with the source upload", u.name, u.configDir)
	case image.Suspend.Active(time.Now()), result.Config.Settings.Suspend.Active(time.Now()):
		return fmt.Errorf("%s is suspended in %s: no upload starts until the suspension ends", u.name, u.configDir)
	case image.Source.Upload == nil:
		return fmt.Errorf("%s cannot be uploaded: its source is %s", u.name, image.Source.Kind())
	case !image.Checksum.IsZero() && !request.Digest.IsZero() && image.Checksum != request.Digest:
		return fmt.Errorf("--checksum is %s, but the declared checksum is %s: correct one of them", request.Digest, image.Checksum)
	case !image.Checksum.IsZero():
		request.Digest = image.Checksum
	}
	on, err := disk.Open(u.disks[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, on.Close()) }()
	unlock, err := on.Lock()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	switch c := on.Stat(image.ID); c.State {
	case model.Ready:
		refusal := fmt.Errorf("%s is ready on %s: another file needs another checksum, uuid or name", image.ID, on.Path())
		return u.compareReady(ctx, request.Content, c.SHA512, refusal)
	case model.Unknown: // a commit does not replace an unverified file
		return fmt.Errorf("%s already has an unverified file for %s (%s): run reconcile to verify it", on.Path(), image.ID, c.Message)
	}
	made, err := u.fill(ctx, on, request, disk.PartOptions{
		SHA256: request.Digest.Algorithm() == ident.SHA256, Format: model.Format(image.Format), Reserve: reservedBytes(result.Config.Nodes, on.Path()),
		Accept: request.CanResume,
	}, image.ID)
	if err != nil {
		return err
	}
	return report.WriteLine(u.out, "%s on %s is ready: sha512 %s", made.ID, on.Path(), made.SHA512)
}

// fill writes the content into a partial file and commits it. If the upload of a file is interrupted,
// the partial file stays and can be resumed. The partial file of a pipe is discarded.
func (u *uploadCmd) fill(ctx context.Context, on *disk.Disk, request upload.Request, options disk.PartOptions, id ident.ID) (model.Copy, error) {
	part, err := on.OpenPart(ctx, id, options)
	if err != nil {
		return model.Copy{}, err
	}
	p := &fetch.Progress{}
	file, isFile := request.Content.(*upload.File)
	if isFile {
		p.Total.Store(file.Size())
	}
	stop := newProgress(u.err).watch(singleTransfer(model.Upload, id, on.Path(), p))
	err = upload.FillLocal(ctx, part, request, p)
	stop()
	_, final := errors.AsType[*fetch.Error](err)
	switch {
	case err == nil:
		return part.Commit(request.Digest)
	case final || !isFile:
		return model.Copy{}, errors.Join(err, part.Discard())
	case ctx.Err() != nil:
		err = stoppedError(request.Content, "the partial file stays on the disk")
	}
	return model.Copy{}, errors.Join(err, part.Close())
}

// reservedBytes returns the reserved space of the declared disk at a path, 0 if none is
// declared there.
func reservedBytes(nodes map[string]schema.Node, path string) (bytes int64) {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	for _, node := range nodes {
		for _, d := range node.Disks {
			if d.Path == path {
				bytes = max(bytes, d.StorageReserved)
			}
		}
	}
	return bytes
}

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
	"regexp"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// uploading is one run of the command upload.
type uploading struct {
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
	u := &uploading{}
	cmd := &cobra.Command{
		Use:   "upload NAME FILE [--url URL | --disk PATH --config-dir DIR] [flags]",
		Short: "Send the file of an image that is declared for upload",
		Long: `Sends FILE, or with "-" the standard input, to a daemon that has the image NAME
declared with the source upload, and waits until it is ready there. Holes are not
sent, and every piece is checked on the way.

What breaks is gone on with: after a dropped connection or a restart of the daemon by
itself, after the end of this command by the same command again, within 24 hours and
with the same FILE. A FILE that ends in .gz, .xz, .zst or .bz2 is unpacked while it is
sent: like what comes by a pipe, it can only be sent again once this command has ended.

With --disk and --config-dir, the image is written straight to a disk that no daemon
holds, as the configuration declares it.

Exit status: 0 when the image is ready, also when it was before with the bytes of FILE;
1 when it is not, or has other bytes, or was before and a pipe was to be sent.`,
		Example: `  backing-image-manager backing-image upload parrot parrot.raw
  xz -dc parrot.raw.xz | backing-image-manager backing-image upload parrot - --url http://node1:8000 --token-file token
  backing-image-manager backing-image upload parrot parrot.raw --disk /var/lib/longhorn --config-dir config`,
		Args: exactly("NAME", "FILE"),
	}
	u.add(cmd)
	flags := cmd.Flags()
	flags.Lookup("disk").Usage = "write to the disk at `PATH`, without a daemon"
	flags.StringVar(&u.configDir, "config-dir", "", "with --disk, the `DIR` that says what is declared")
	flags.StringVar(&u.checksum, "checksum", "", "the `SUM` that the image has to have: SHA-512, or sha256:…, in hex")
	flags.Int64Var(&u.size, "size", -1, "how many `BYTES` the standard input has, if that is known")
	flags.Lookup("size").DefValue = "0" // as unset: the help shows no default
	flags.BoolVar(&u.restart, "restart", false, "end an upload of the image that is under way, and begin anew")
	if err := cmd.MarkFlagDirname("config-dir"); err != nil {
		panic("mark --config-dir: " + err.Error())
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		u.name, u.file = args[0], args[1]
		u.in, u.out, u.err = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
		return u.run(cmd.Context())
	}
	return cmd
}

func (u *uploading) run(ctx context.Context) error {
	switch {
	case len(u.disks) > 1:
		return errors.New("--disk is given twice: an image is uploaded to one disk")
	case (len(u.disks) > 0) != (u.configDir != ""):
		return errors.New("--disk and --config-dir belong together: name the disk, and the directory that says what is declared")
	case u.size >= 0 && u.file != "-":
		return errors.New("--size is for the standard input: a file has its own")
	}
	o := upload.Request{Image: u.name, Restart: u.restart, Warn: func(err error) {}}
	var err error
	if o.Digest, err = disk.ParseDigest(u.checksum); u.checksum != "" && err != nil {
		return fmt.Errorf("--checksum: %w", err)
	}
	content, done, err := u.content()
	if err != nil {
		return err
	}
	defer done()
	o.Content = content
	if len(u.disks) > 0 {
		return u.store(ctx, o)
	}
	return u.send(ctx, o)
}

// content opens what is to be uploaded.
func (u *uploading) content() (c upload.Content, done func(), err error) {
	if u.file == "-" {
		if f, ok := u.in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			return nil, nil, errors.New("an image does not come from a terminal: pipe it in, or name a file")
		}
		return upload.NewPipe(u.in, u.size), func() {}, nil
	}
	f, err := os.Open(u.file)
	if err != nil {
		return nil, nil, err
	}
	r, packed, err := fetch.UnpackByName(u.file, f)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("unpack %s: %w", u.file, err), f.Close())
	}
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
	return c, func() { f.Close() }, nil // only read from: nothing to lose
}

// send sends the image to a daemon.
func (u *uploading) send(ctx context.Context, o upload.Request) error {
	daemon, err := u.client()
	if err != nil {
		return err
	}
	token, config := daemon.Credentials()
	transport := &http.Transport{
		Proxy:           http.ProxyFromEnvironment, // but never for loopback
		TLSClientConfig: config,
		TLSNextProto:    map[string]func(string, *tls.Conn) http.RoundTripper{}, // one body at a time needs no more than HTTP/1
	}
	defer transport.CloseIdleConnections()
	show, counted := newProgress(u.err), &fetch.Progress{}
	often := seldom{every: time.Minute}
	o.Warn = func(err error) {
		if !often.due(err.Error(), time.Now()) {
			return
		}
		show.logger().Warn("interrupted; going on", "error", daemon.Unreachable(err).Error())
	}
	stop := show.follow(oneTransfer(reconcile.Upload, disk.ID{Name: u.name}, daemon.Address(), counted))
	client := upload.Client{Base: daemon.URL(), Transport: transport}
	if token != "" {
		client.Authorization = "Bearer " + token
	}
	err = client.Send(ctx, o, counted)
	stop()
	refused, no := errors.AsType[*httperror.Error](err)
	switch {
	case no:
		err = daemon.Refused(refused)
		if !over(refused.Status) {
			return err
		}
		ready, unknown := u.ready(ctx)
		if unknown != nil {
			return err
		}
		return u.isThere(ctx, o.Content, ready, err)
	case errors.Is(err, upload.ErrLost):
		return u.isReady(ctx, o.Content, fmt.Errorf("upload to %s: %w", daemon.Address(), err))
	case err != nil && ctx.Err() != nil:
		return errors.New("stopped; " + rest(o.Content))
	case err != nil && counted.Done.Load() == 0:
		return daemon.Unreachable(err)
	case err != nil:
		return fmt.Errorf("upload to %s: %w", daemon.Address(), err)
	}
	_, err = fmt.Fprintf(u.out, "%s is uploaded and ready\n", u.name)
	return err
}

// rest says what becomes of an upload that was stopped.
func rest(c upload.Content) string {
	_, again := c.(*upload.File)
	if !again {
		return "what came by a pipe, or was unpacked, can only be sent again"
	}
	return "what was sent is kept for a day, and the same command goes on from there"
}

// ready returns the checksum of the image where a daemon says that it is ready, or the
// zero Digest.
func (u *uploading) ready(ctx context.Context) (disk.Digest, error) {
	s, err := u.status(ctx)
	if err != nil {
		return disk.Digest{}, err
	}
	for _, image := range s.Images {
		if image.Name != u.name || !image.Declared {
			continue
		}
		for _, c := range image.Copies {
			if c.State == disk.Ready {
				return c.SHA512, nil
			}
		}
	}
	return disk.Digest{}, nil
}

// over reports whether a refusal may only say that the image is ready otherwise.
func over(status int) bool {
	return status == http.StatusConflict || status == http.StatusNotFound || status == http.StatusGone
}

// isReady asks whether an image became ready although nobody heard it. It may also be
// another one that did meanwhile.
func (u *uploading) isReady(ctx context.Context, c upload.Content, lost error) error {
	ready, err := u.ready(ctx)
	if err != nil {
		return errors.Join(lost, err)
	}
	if ready.IsZero() {
		return lost
	}
	return u.isThere(ctx, c, ready, fmt.Errorf("%w; %s is ready with sha512 %s", lost, u.name, ready))
}

// isThere says that the file is the image that is ready already, with this checksum, or
// fails with the refusal. What comes by a pipe is not read for that.
func (u *uploading) isThere(ctx context.Context, c upload.Content, ready disk.Digest, refusal error) error {
	if ready.IsZero() {
		return refusal
	}
	if !u.readsAgain(c) {
		return fmt.Errorf("%w (what comes by a pipe is not compared with it)", refusal)
	}
	has, err := u.sum(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("read %s: %w", u.file, err)
	case has != ready:
		return fmt.Errorf("%w (it has %s, and %s has %s)", refusal, ready.Short(), u.file, has.Short())
	}
	_, err = fmt.Fprintf(u.out, "%s is there already, with the same bytes\n", u.name)
	return err
}

// readsAgain reports whether the content can be read once more from its file, from which
// it may have been unpacked.
func (u *uploading) readsAgain(c upload.Content) bool {
	if _, file := c.(*upload.File); file {
		return true
	}
	info, err := os.Stat(u.file)
	return u.file != "-" && err == nil && info.Mode().IsRegular()
}

// sum reads the file, and unpacks it if it is packed.
func (u *uploading) sum(ctx context.Context) (disk.Digest, error) {
	f, err := os.Open(u.file)
	if err != nil {
		return disk.Digest{}, err
	}
	defer f.Close()
	r, _, err := fetch.UnpackByName(u.file, f)
	if err != nil {
		return disk.Digest{}, err
	}
	defer r.Close()
	h := disk.SHA512.New()
	if _, err := io.Copy(h, untilDone{ctx, r}); err != nil {
		return disk.Digest{}, err
	}
	return disk.SHA512.Digest(h), nil
}

// untilDone ends a long reading with its context.
type untilDone struct {
	ctx context.Context
	r   io.Reader
}

func (u untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}

// store writes the image to a disk that no daemon holds.
func (u *uploading) store(ctx context.Context, o upload.Request) (err error) {
	result, err := load(ctx, u.err, u.configDir)
	if err != nil {
		return err
	}
	image, declared := result.Config.Images[u.name]
	switch {
	case !declared:
		report.WriteProblems(u.err, u.configDir, result)
		return fmt.Errorf("no image %s is declared in %s", u.name, u.configDir)
	case image.Suspend.Holds(time.Now()), result.Config.Settings.Suspend.Holds(time.Now()):
		return fmt.Errorf("%s is suspended in %s: nothing is begun", u.name, u.configDir)
	case image.Source.Upload == nil:
		return fmt.Errorf("%s is not for upload: its source is %s", u.name, image.Source.Kind())
	case !image.Checksum.IsZero() && !o.Digest.IsZero() && image.Checksum != o.Digest:
		return fmt.Errorf("--checksum is %s, declared is %s", o.Digest, image.Checksum)
	case !image.Checksum.IsZero():
		o.Digest = image.Checksum
	}
	shelves, err := openShelves(u.disks)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeShelves(shelves)) }()
	on := shelves[0]
	unlock, err := on.Lock()
	if err != nil {
		return err
	}
	defer func() { _ = unlock() }() // the end of the process unlocks as well
	switch c := on.Stat(image.ID); c.State {
	case disk.Ready:
		refusal := fmt.Errorf("%s is ready on %s: another file needs another checksum, uuid or name", image.ID, on.Path())
		return u.isThere(ctx, o.Content, c.SHA512, refusal)
	case disk.Unknown: // it would not be replaced
		return fmt.Errorf("a file of %s is on %s already, of which nobody knows what it is worth (%s): run reconcile, which looks at it", image.ID, on.Path(), c.Message)
	}
	made, err := u.fill(ctx, on, o, disk.PartOptions{
		SHA256: o.Digest.Algorithm() == disk.SHA256, Format: disk.Format(image.Format), Reserve: reserved(result.Config.Nodes, on.Path()),
		Accept: o.CanResume,
	}, image.ID)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(u.out, "%s on %s is ready: sha512 %s\n", made.ID, on.Path(), made.SHA512)
	return err
}

func (u *uploading) fill(ctx context.Context, on shelf, o upload.Request, options disk.PartOptions, id disk.ID) (disk.Copy, error) {
	part, err := on.OpenPart(ctx, id, options)
	if err != nil {
		return disk.Copy{}, err
	}
	counted := &fetch.Progress{}
	if f, ok := o.Content.(*upload.File); ok {
		counted.Total.Store(f.Size())
	}
	stop := newProgress(u.err).follow(oneTransfer(reconcile.Upload, id, on.Path(), counted))
	err = upload.FillLocal(ctx, part, o, counted)
	stop()
	_, final := errors.AsType[*fetch.Error](err)
	_, again := o.Content.(*upload.File)
	switch {
	case err == nil:
		return part.Commit(o.Digest)
	case final || !again:
		return disk.Copy{}, errors.Join(err, part.Discard())
	case ctx.Err() != nil:
		err = errors.New("stopped; " + rest(o.Content))
	}
	return disk.Copy{}, errors.Join(err, part.Close())
}

// reserved is what has to stay free on a disk at the path, if it is declared.
func reserved(nodes map[string]schema.Node, path string) (bytes int64) {
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

// seldom says what it was told of, but the like of it, other numbers apart, only once in
// a while: two clients of one upload disturb each other with every request.
type seldom struct {
	every time.Duration
	last  map[string]time.Time
}

var numbers = regexp.MustCompile(`[0-9]+`)

// due reports whether the text is to be said now.
func (s *seldom) due(text string, now time.Time) bool {
	like := numbers.ReplaceAllString(text, "0")
	if last, said := s.last[like]; said && now.Sub(last) < s.every {
		return false
	}
	if s.last == nil {
		s.last = map[string]time.Time{}
	}
	s.last[like] = now
	return true
}

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/reconcile"
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
	o := upload.Order{Image: u.name, Restart: u.restart, Warn: func(err error) {}}
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
	r, packed, err := fetch.Unpacked(u.file, f)
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
func (u *uploading) send(ctx context.Context, o upload.Order) error {
	token, config, err := u.credentials()
	if err != nil {
		return err
	}
	transport := &http.Transport{
		Proxy:           http.ProxyFromEnvironment, // but never for loopback
		TLSClientConfig: config,
		TLSNextProto:    map[string]func(string, *tls.Conn) http.RoundTripper{}, // one body at a time needs no more than HTTP/1
	}
	defer transport.CloseIdleConnections()
	show, counted := newProgress(u.err), &fetch.Progress{}
	base := withoutSecrets(u.url)
	often := seldom{every: time.Minute}
	o.Warn = func(err error) {
		if !often.due(err.Error(), time.Now()) {
			return
		}
		show.logger().Warn("interrupted; going on", "error", (&unreachableError{base: base, err: err}).Error())
	}
	stop := show.follow(oneTransfer(reconcile.Upload, disk.ID{Name: u.name}, base, counted))
	client := upload.Client{Base: u.url, Transport: transport}
	if token != "" {
		client.Authorization = "Bearer " + token
	}
	err = client.Send(ctx, o, counted)
	stop()
	refused, no := errors.AsType[*upload.Refused](err)
	switch {
	case no:
		err = &refusedError{base, refused.Status, refused.Why}
		if !over(refused.Status) {
			return err
		}
		ready, unknown := u.ready(ctx)
		if unknown != nil {
			return err
		}
		return u.isThere(ctx, o.Content, ready, err)
	case errors.Is(err, upload.ErrLost):
		return u.isReady(ctx, o.Content, fmt.Errorf("upload to %s: %w", base, err))
	case err != nil && ctx.Err() != nil:
		return errors.New("stopped; " + rest(o.Content))
	case err != nil && counted.Done.Load() == 0:
		return &unreachableError{base: base, err: err}
	case err != nil:
		return fmt.Errorf("upload to %s: %w", base, err)
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

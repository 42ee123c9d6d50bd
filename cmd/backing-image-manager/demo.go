package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/disk"
)

func newDemo() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "demo [--dir DIR]",
		Short: "See the whole thing work on this machine, without a network",
		Long: `Serves two small images on loopback, makes a disk in a temporary folder, declares
the images, and runs the commands that you would run: what would change, do it, look
at it; then the same after the configuration changed. Takes a few seconds, needs no
rights, and leaves nothing behind but what --dir keeps.`,
		Example: "  backing-image-manager demo\n  backing-image-manager demo --dir /tmp/demo",
		Args:    exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			signal.Ignore(syscall.SIGPIPE) // a reader that has gone ends it by an error, so that the folder is removed
			folder, remove, err := demoFolder(dir)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, remove()) }()
			d := demo{dir: folder, kept: dir != "", out: cmd.OutOrStdout(), err: cmd.ErrOrStderr()}
			return d.tell(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "work in `DIR`, which has to be empty or missing, and keep it")
	if err := cmd.MarkFlagDirname("dir"); err != nil {
		panic("mark --dir: " + err.Error())
	}
	return cmd
}

func demoFolder(dir string) (folder string, remove func() error, err error) {
	if dir == "" {
		dir, err = os.MkdirTemp("", "demo-")
		return dir, func() error { return os.RemoveAll(dir) }, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", nil, err
	}
	if len(entries) > 0 {
		return "", nil, fmt.Errorf("%s is not empty: name another folder with --dir", dir)
	}
	return dir, func() error { return nil }, os.MkdirAll(dir, 0o755)
}

// demo is a story in which the program's own commands act. It has no other way to
// do anything. What fails first ends it: all that follows does nothing.
type demo struct {
	dir      string
	kept     bool // dir is there afterwards
	out, err io.Writer
	failed   error
}

func (d *demo) tell(ctx context.Context) error {
	server, origin, err := serveDemo(d.path("origin"))
	if err != nil {
		return err
	}
	defer server.Close()
	if err := errors.Join(os.Mkdir(d.path("config"), 0o755), os.Mkdir(d.path("disk"), 0o755)); err != nil {
		return err
	}
	d.declare(ctx, origin)
	d.converge(ctx)
	d.change(ctx, origin)
	d.say("", "That was all: files say what there is to be, and the disk follows. A daemon does the",
		"same by itself, at every change of the directory.", "")
	if d.kept {
		d.say("Look around in "+d.path("config"), "and in         "+d.path("disk/backing-images"))
	} else {
		d.say("The folders are removed now. To keep them: backing-image-manager demo --dir DIR")
	}
	return d.failed
}

func (d *demo) declare(ctx context.Context, o demoOrigin) {
	d.say("# A disk: a folder with an identity.")
	d.run(ctx, "disk", "init", d.path("disk"))
	d.say("", "# Two images are declared. An origin on this machine serves them.")
	d.write("settings.yaml", `settings:
  allowLoopbackSources: true # the origin is on this machine
  cleanupWaitInterval: 0     # what is not wanted any more goes at once
`)
	d.write("images.yaml", fmt.Sprintf(`images:
  parrot:
    source: {download: {url: "%[1]s/parrot-1.qcow2"}}
    checksum: "%[2]s"
  desert:
    source: {download: {url: "%[1]s/desert.raw"}}
    bandwidthLimit: 32Mi # so that there is something to see
`, o.url, o.sums["parrot-1.qcow2"]))
}

func (d *demo) converge(ctx context.Context) {
	d.say("", "# What would change? Nothing is touched.")
	d.run(ctx, d.reconcile("--dry-run")...)
	d.say("", "# Do it.")
	d.run(ctx, d.reconcile()...)
	d.say("", "# What is on the disk now? Verified files, where Longhorn looks for them.")
	d.run(ctx, d.list()...)
}

func (d *demo) change(ctx context.Context, o demoOrigin) {
	d.say("", "# The configuration changes: a new edition of parrot, and desert is not wanted any more.")
	d.write("images.yaml", fmt.Sprintf(`images:
  parrot:
    source: {download: {url: "%s/parrot-2.qcow2"}}
    checksum: "%s"
`, o.url, o.sums["parrot-2.qcow2"]))
	d.say("", "# What would change? The old edition stays until the new one is ready.")
	d.run(ctx, d.reconcile("--dry-run")...)
	d.say("", "# Do it. Then there is nothing left to do.")
	d.run(ctx, d.reconcile()...)
	d.run(ctx, d.reconcile("--dry-run")...)
	d.run(ctx, d.list()...)
}

func (d *demo) path(name string) string { return filepath.Join(d.dir, name) }

func (d *demo) reconcile(more ...string) []string {
	return append([]string{"reconcile", "--config-dir", d.path("config"), "--disk", d.path("disk")}, more...)
}

func (d *demo) list() []string {
	return []string{"backing-image", "list", "--disk", d.path("disk"), "-o", "table"}
}

func (d *demo) say(lines ...string) {
	if d.failed == nil {
		_, d.failed = fmt.Fprintln(d.out, strings.Join(lines, "\n"))
	}
}

// write puts a file into the config directory and shows it.
func (d *demo) write(name, text string) {
	d.say("$ cat "+d.path("config/"+name), strings.TrimSuffix(text, "\n"))
	if d.failed == nil {
		d.failed = os.WriteFile(d.path("config/"+name), []byte(text), 0o644)
	}
}

// run shows a command line and runs it as if it had been typed.
func (d *demo) run(ctx context.Context, args ...string) {
	d.say("$ backing-image-manager " + strings.Join(args, " "))
	if d.failed != nil {
		return
	}
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(d.out)
	root.SetErr(d.err)
	d.failed = root.ExecuteContext(ctx)
}

//go:embed demo/parrot.qcow2.zst demo/desert.raw.zst
var demoImages embed.FS

// demoOrigin is where the images of the demo come from.
type demoOrigin struct {
	url  string
	sums map[string]disk.Digest // of its files
}

// serveDemo unpacks the images into the folder dir and serves them on loopback until
// the server is closed.
func serveDemo(dir string) (*http.Server, demoOrigin, error) {
	o := demoOrigin{sums: map[string]disk.Digest{}}
	if err := errors.Join(os.Mkdir(dir, 0o755), o.unpack(dir)); err != nil {
		return nil, o, fmt.Errorf("make images of the demo: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, o, err
	}
	o.url = "http://" + listener.Addr().String()
	server := &http.Server{Handler: http.FileServer(http.Dir(dir)), ReadHeaderTimeout: time.Minute}
	go server.Serve(listener) // until it is closed: there is no other error to hear of
	return server, o, nil
}

func (o *demoOrigin) unpack(dir string) error {
	parrot, err := unpackDemo("demo/parrot.qcow2.zst")
	if err != nil {
		return err
	}
	desert, err := unpackDemo("demo/desert.raw.zst")
	if err != nil {
		return err
	}
	second := bytes.Replace(parrot, []byte("edition 1"), []byte("edition 2"), 1)
	return errors.Join(
		o.save(dir, "parrot-1.qcow2", parrot),
		o.save(dir, "parrot-2.qcow2", second),
		o.save(dir, "desert.raw", desert))
}

func unpackDemo(name string) ([]byte, error) {
	packed, err := demoImages.ReadFile(name)
	if err != nil {
		return nil, err
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer decoder.Close()
	return decoder.DecodeAll(packed, nil)
}

func (o *demoOrigin) save(dir, name string, data []byte) error {
	h := disk.SHA256.New()
	h.Write(data)
	o.sums[name] = disk.SHA256.Digest(h)
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	return errors.Join(writeSparse(f, data), f.Close())
}

// writeSparse leaves holes where data has zeros.
func writeSparse(f *os.File, data []byte) error {
	const step = 64 << 10
	zeros, at := make([]byte, step), int64(0)
	for block := range slices.Chunk(data, step) {
		if !bytes.Equal(block, zeros[:len(block)]) {
			if _, err := f.WriteAt(block, at); err != nil {
				return err
			}
		}
		at += int64(len(block))
	}
	return f.Truncate(at)
}

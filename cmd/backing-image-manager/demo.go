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
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

func newDemo() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "demo [--dir DIR]",
		Short: "Run the program on a temporary disk, without a network",
		Long: `Serves two small images on loopback, creates a disk in a temporary folder, declares
the images, and runs the commands of a user: a dry run, a run, and a list. Then it
changes the configuration and runs them again. It takes a few seconds, needs no
privileges, and removes its files unless --dir is given.`,
		Example: "  backing-image-manager demo\n  backing-image-manager demo --dir /tmp/demo",
		Args:    exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			signal.Ignore(syscall.SIGPIPE) // a closed pipe must end the demo with an error, so that it removes its folder
			folder, remove, err := demoFolder(dir)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, remove()) }()
			d := demo{dir: folder, kept: dir != "", out: cmd.OutOrStdout(), err: cmd.ErrOrStderr()}
			return d.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "run in the folder `DIR`, which must be empty or missing, and do not remove it")
	complete(cmd, (*cobra.Command).MarkFlagDirname, "dir")
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

// demo runs the commands of the program one after the other. After the first error it skips
// all further steps.
type demo struct {
	dir      string
	kept     bool // dir is not removed
	out, err io.Writer
	failed   error
}

func (d *demo) run(ctx context.Context) error {
	server, images, err := serveDemo()
	if err != nil {
		return err
	}
	defer server.Close()
	if err := errors.Join(os.Mkdir(d.path("config"), 0o755), os.Mkdir(d.path("disk"), 0o755)); err != nil {
		return err
	}
	d.declare(ctx, images)
	d.converge(ctx)
	d.change(ctx, images)
	d.print("", "This is the whole idea: files declare the images, and the program changes the disk to match.",
		"A daemon does the same after every change of the directory.", "")
	if d.kept {
		d.print("The files are in "+d.path("config"), "and in           "+d.path("disk/backing-images"))
	} else {
		d.print("The folders are removed. To keep them: backing-image-manager demo --dir DIR")
	}
	return d.failed
}

func (d *demo) declare(ctx context.Context, o demoServer) {
	d.print("# A disk: a folder with an identity.")
	d.command(ctx, "disk", "init", d.path("disk"))
	d.print("", "# Two images are declared. A server on this machine provides them.")
	d.write("settings.yaml", `settings:
  allowLoopbackSources: true # the server is on this machine
  cleanupWaitInterval: 0     # delete surplus copies immediately
`)
	d.write("images.yaml", fmt.Sprintf(`images:
  parrot:
    source: {download: {url: "%[1]s/parrot-1.qcow2"}}
    checksum: "%[2]s"
  desert:
    source: {download: {url: "%[1]s/desert.raw"}}
    bandwidthLimit: 32Mi # slow enough for a progress bar
`, o.url, o.sha256("parrot-1.qcow2")))
}

func (d *demo) converge(ctx context.Context) {
	d.print("", "# A dry run prints the plan and changes nothing.")
	d.command(ctx, d.reconcile("--dry-run")...)
	d.print("", "# Execute the plan.")
	d.command(ctx, d.reconcile()...)
	d.print("", "# The disk has verified files in the folders that Longhorn uses.")
	d.command(ctx, d.list()...)
}

func (d *demo) change(ctx context.Context, o demoServer) {
	d.print("", "# The configuration changes: parrot has a new version, and desert is no longer declared.")
	d.write("images.yaml", fmt.Sprintf(`images:
  parrot:
    source: {download: {url: "%s/parrot-2.qcow2"}}
    checksum: "%s"
`, o.url, o.sha256("parrot-2.qcow2")))
	d.print("", "# The plan: the old version stays until the new one is ready.")
	d.command(ctx, d.reconcile("--dry-run")...)
	d.print("", "# Execute the plan. A second dry run finds nothing to do.")
	d.command(ctx, d.reconcile()...)
	d.command(ctx, d.reconcile("--dry-run")...)
	d.command(ctx, d.list()...)
}

func (d *demo) path(name string) string { return filepath.Join(d.dir, name) }

func (d *demo) reconcile(more ...string) []string {
	return append([]string{"reconcile", "--config-dir", d.path("config"), "--disk", d.path("disk")}, more...)
}

func (d *demo) list() []string {
	return []string{"backing-image", "list", "--disk", d.path("disk"), "-o", "table"}
}

func (d *demo) print(lines ...string) {
	if d.failed == nil {
		_, d.failed = fmt.Fprintln(d.out, strings.Join(lines, "\n"))
	}
}

// write writes a file of the config directory and prints it.
func (d *demo) write(name, text string) {
	d.print("$ cat "+d.path("config/"+name), strings.TrimSuffix(text, "\n"))
	if d.failed == nil {
		d.failed = os.WriteFile(d.path("config/"+name), []byte(text), 0o644)
	}
}

// command prints a command line and runs it.
func (d *demo) command(ctx context.Context, args ...string) {
	d.print("$ backing-image-manager " + strings.Join(args, " "))
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

// demoServer serves the images of the demo on loopback.
type demoServer struct {
	url   string
	files map[string][]byte
}

// serveDemo serves the images until the server is closed.
func serveDemo() (*http.Server, demoServer, error) {
	parrot, err := unpackDemo("demo/parrot.qcow2.zst")
	if err != nil {
		return nil, demoServer{}, err
	}
	desert, err := unpackDemo("demo/desert.raw.zst")
	if err != nil {
		return nil, demoServer{}, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, demoServer{}, err
	}
	o := demoServer{"http://" + listener.Addr().String(), map[string][]byte{
		"parrot-1.qcow2": parrot, "parrot-2.qcow2": bytes.Replace(parrot, []byte("edition 1"), []byte("edition 2"), 1), "desert.raw": desert,
	}}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/")
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(o.files[name]))
	})}
	go server.Serve(listener) // it returns when the server is closed
	return server, o, nil
}

func (o demoServer) sha256(name string) ident.Digest {
	h := ident.SHA256.New()
	h.Write(o.files[name])
	return ident.SHA256.Digest(h)
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

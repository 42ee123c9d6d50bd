package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/backup"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
)

func newImageBackup() *cobra.Command {
	var f storeFlags
	var disks imageFlags
	var list, remove bool
	cmd := &cobra.Command{
		Use:   "backup NAME TARGET --disk PATH | --delete NAME TARGET | --list TARGET [flags]",
		Short: "Back up an image in Longhorn's format, or list or delete backups",
		Long: `Stores the ready image NAME of a disk in the backup store at TARGET. Longhorn can
restore the backup, and so can an image with the source restore. A block that the store
already has, of any image, is stored again only if it is damaged. In a folder, the
command reads and compares the block; in a bucket, it compares the size. The same
command completes an interrupted backup. A backup of other bytes under the same name
is not replaced: delete it first. NAME may also be <name>-<uuid>. The disk is only
read, so that a daemon may use it at the same time.

TARGET is s3://bucket@region/path, nfs://host:/path (mounted on this machine),
file:///path or the path of a folder.

With --delete, the command deletes the backup and all blocks that no other backup
uses. A backup that does not exist is an error. If another backup is incomplete or
unreadable, the blocks stay, because it may use them. Run the same command again
when that backup is complete.

To back up an image as long as it is declared, add backup: {target: …} to its
declaration.`,
		Example: `  backing-image-manager backing-image backup parrot /mnt/backups --disk /var/lib/longhorn
  backing-image-manager backing-image backup --list s3://backups@eu-central-1/ --secrets-dir /etc/secrets --credentials backups
  backing-image-manager backing-image backup --delete parrot /mnt/backups`,
		Args: func(cmd *cobra.Command, args []string) error {
			if list {
				return exactArgs("TARGET")(cmd, args)
			}
			return exactArgs("NAME", "TARGET")(cmd, args)
		},
	}
	disks.addDisks(cmd)
	f.add(cmd, "TARGET", "blocks", backup.DefaultWorkers)
	flags := cmd.Flags()
	flags.BoolVar(&list, "list", false, "list the backups of TARGET")
	flags.BoolVar(&remove, "delete", false, "delete the backup NAME")
	compression := choiceFlag(cmd, "compression", "", "compression of new blocks", backup.LZ4, backup.Gzip, backup.None)
	format := outputFlag(cmd, report.Table, report.JSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if list && remove || (list || remove) && len(disks.disks) > 0 {
			return errors.New("--list, --delete and --disk are mutually exclusive: give one of them")
		}
		store, err := f.open(args[len(args)-1])
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, store.Close()) }()
		out := printer{cmd.OutOrStdout(), format.value}
		switch {
		case list:
			return listBackups(cmd.Context(), store, out)
		case remove:
			return deleteBackup(cmd.Context(), store, args[0], out)
		case len(disks.disks) == 0:
			return errors.New("--disk is missing: name the disk of the image, or use --list or --delete")
		}
		w := backup.Creator{Store: store, Compression: compression.value, Workers: f.limit}
		return backUp(cmd.Context(), disks.disks, args[0], w, out, newProgress(cmd.ErrOrStderr()))
	}
	return cmd
}

// storeFlags are the flags for the access to a backup store, or to the destination of publish.
type storeFlags struct {
	secretsDir, credentials string
	limit                   int
	warn                    func(text string)
}

// add adds the flags for the access to a target. The argument pieces names what the target stores, for
// the help. By default, the command stores as many pieces in parallel as workers says.
func (f *storeFlags) add(cmd *cobra.Command, target, pieces string, workers int) {
	f.warn = once(func(text string) { report.WriteLine(cmd.ErrOrStderr(), "warning: %s", text) })
	flags := cmd.Flags()
	flags.StringVar(&f.secretsDir, "secrets-dir", "", "`DIR` with the folders of credentials")
	flags.StringVar(&f.credentials, "credentials", "", "`FOLDER` below --secrets-dir with the credentials for "+target)
	flags.IntVar(&f.limit, "concurrent-limit", workers, "store up to `N` "+pieces+" in parallel")
	complete(cmd, (*cobra.Command).MarkFlagDirname, "secrets-dir")
}

// client returns the client for a store. The client may use every path, and loopback addresses, because
// the command has the rights of its caller.
func (f *storeFlags) client() (*fetch.Client, error) {
	switch {
	case f.limit < 1:
		return nil, fmt.Errorf("--concurrent-limit is %d: it must be at least 1", f.limit)
	case f.credentials != "" && f.secretsDir == "":
		return nil, errors.New("--credentials names a folder below --secrets-dir: add --secrets-dir")
	}
	if err := checkFolder("secrets-dir", f.secretsDir); err != nil {
		return nil, err
	}
	return &fetch.Client{SecretsDir: f.secretsDir, AllowAnyFile: true, AllowLoopback: true, Warn: f.warn}, nil
}

// open opens the store.
func (f *storeFlags) open(target string) (backup.Store, error) {
	client, err := f.client()
	if err != nil {
		return nil, err
	}
	if !strings.Contains(target, ":") {
		path, err := filepath.Abs(target)
		if err != nil {
			return nil, err
		}
		target = path
	}
	return backup.Open(client, target, f.credentials)
}

// printer prints a result as text or as JSON.
type printer struct {
	io.Writer
	format report.Format
}

func (p printer) print(value any, lines ...string) error {
	return report.Print(p, p.format, value, lines...)
}

func backUp(ctx context.Context, paths []string, name string, w backup.Creator, out printer, bars *progress) (err error) {
	o, err := openDisks(paths)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	copies, err := o.find(name, nil)
	if err != nil {
		return err
	}
	best := copies[0]
	p := &fetch.Progress{}
	stop := bars.watch(singleTransfer(model.Backup, best.ID, best.Disk, p))
	err = w.Create(ctx, o.disks[best.Disk], best.ID, p)
	stop()
	switch {
	case errors.Is(err, disk.ErrNoManifest), errors.Is(err, disk.ErrDamaged):
		return fmt.Errorf("%w: backing-image verify %s --disk %s", err, best.ID, best.Disk)
	case ctx.Err() != nil:
		return errors.New("stopped; the same command completes the backup")
	case err != nil:
		return err
	}
	b, err := backup.LoadComplete(ctx, w.Store, best.ID.Name)
	if err != nil {
		return err
	}
	moved := p.UpstreamBytes.Load()
	return out.print(struct {
		storedView
		Stored int64 `json:"stored"` // bytes of new blocks
	}{storedView{Backup: b, Blocks: len(b.Blocks)}, moved}, fmt.Sprintf("%s: backed up to %s, %s stored\n", b.Name, backup.URL(w.Store.String(), b.Name), report.Size(moved)))
}

// storedView is one backup in the output. Its JSON is a stable interface.
type storedView struct {
	*backup.Backup
	Blocks int    `json:"blocks"`
	URL    string `json:"url,omitempty"`   // for source restore
	Error  string `json:"error,omitempty"` // the backup is unreadable
}

// listBackups prints the backups of a store. An unreadable backup is an entry with an error.
func listBackups(ctx context.Context, store backup.Store, out printer) error {
	names, err := backup.List(ctx, store)
	if err != nil {
		return err
	}
	views := make([]storedView, 0, len(names))
	rows := [][]string{{"NAME", "SIZE", "BLOCKS", "COMPRESSION", "COMPLETED", "MESSAGE"}}
	for _, name := range names {
		b, err := backup.Load(ctx, store, name)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && b == nil: // deleted since List returned
			continue
		case err != nil:
			views = append(views, storedView{Backup: &backup.Backup{Name: name}, Error: text.Line(err.Error())})
			rows = append(rows, []string{name, "-", "-", "-", "-", err.Error()})
			continue
		}
		v, completed, message := storedView{Backup: b, Blocks: len(b.Blocks)}, "-", "incomplete"
		if b.Complete() {
			v.URL, completed, message = backup.URL(store.String(), name), b.Completed.Format(time.RFC3339), ""
		}
		views = append(views, v)
		rows = append(rows, []string{name, report.Size(b.Size), strconv.Itoa(len(b.Blocks)), string(b.Compression), completed, message})
	}
	return out.print(views, report.Align(rows)...)
}

func deleteBackup(ctx context.Context, store backup.Store, name string, out printer) error {
	done, err := backup.Delete(ctx, store, name)
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("stopped; the same command continues the deletion")
		}
		return err
	}
	kept := ""
	text := fmt.Sprintf("%s: deleted, with %s", name, report.Count(done.RemovedBlocks, "block"))
	switch {
	case !done.Found && done.RemovedBlocks > 0:
		text = fmt.Sprintf("%s: no such backup; deleted %s that no backup uses", name, report.Count(done.RemovedBlocks, "block"))
	case !done.Found:
		return fmt.Errorf("%s has no backup %s: backing-image backup --list %s lists them", store, name, store)
	case done.BlocksKept != nil:
		kept = done.BlocksKept.Error()
		text = fmt.Sprintf("%s: deleted, but its blocks were kept: %s", name, kept)
	}
	return out.print(struct {
		Name   string `json:"name"`
		Found  bool   `json:"found"`
		Blocks int    `json:"blocks"`
		Kept   string `json:"kept,omitempty"`
	}{name, done.Found, done.RemovedBlocks, kept}, text)
}

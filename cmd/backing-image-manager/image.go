package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

func newImage() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "backing-image",
		SuggestFor: []string{"list", "ls", "get", "images", "upload", "download", "verify", "cleanup", "backup", "retry", "users"},
		Short:      "List, verify, upload, download, back up, retry and clean up images, and show who uses them",
		Example: `  backing-image-manager backing-image list --disk /var/lib/longhorn
  backing-image-manager backing-image verify parrot --disk /var/lib/longhorn`,
	}
	cmd.AddCommand(newImageList(), newImageGet(), newImageVerify(), newImageUpload(), newImageDownload(), newImageBackup(), newImageCleanup(), newImageUsers(), newImageRetry())
	return cmd
}

// imageFlags select images: on disks, or of a daemon.
type imageFlags struct {
	daemonFlags
	disks []string
	on    []string
}

func (f *imageFlags) add(cmd *cobra.Command) {
	f.addDisks(cmd)
	f.addURL(cmd)
}

func (f *imageFlags) addURL(cmd *cobra.Command) {
	f.daemonFlags.add(cmd)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if len(f.disks) > 0 && cmd.Flags().Changed("url") {
			return errors.New("--url and --disk are mutually exclusive: name a daemon or a disk")
		}
		return nil
	}
}

func (f *imageFlags) addDisks(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.disks, "disk", nil, "use the disk at `PATH`, without a daemon; may be repeated")
	complete(cmd, (*cobra.Command).MarkFlagDirname, "disk")
}

func (f *imageFlags) addOn(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.on, "on", nil, "only copies on the disk `NODE/DISK`, or with --disk on this path; may be repeated")
}

// images returns the images on the disks of --disk, or else the images of the daemon. An unknown disk
// in --on is an error, because a typing error must not look like a disk without images.
func (f *imageFlags) images(ctx context.Context) ([]status.ImageStatus, error) {
	if len(f.disks) == 0 {
		s, err := f.status(ctx)
		if err != nil {
			return nil, err
		}
		var known []string
		for _, d := range s.Disks {
			known = append(known, d.Node+"/"+d.Name)
		}
		return report.VisibleImages(s), f.checkOn(known)
	}
	o, err := openDisks(f.disks)
	if err != nil {
		return nil, err
	}
	return o.images, errors.Join(f.checkOn(slices.Sorted(maps.Keys(o.disks))), o.close())
}

// checkOn returns an error for a disk in --on that is not one of the known disks.
func (f *imageFlags) checkOn(known []string) error {
	for _, on := range f.on {
		if !slices.Contains(known, on) {
			return fmt.Errorf("--on %s: there is no such disk: the disks are %s", on, plan.JoinMax(known, ", ", maxNamedDisks))
		}
	}
	return nil
}

// maxNamedDisks is how many disks an error names. A cluster may have hundreds.
const maxNamedDisks = 20

func newImageList() *cobra.Command {
	var f imageFlags
	cmd := &cobra.Command{
		Use:   "list [--disk PATH | --url URL] [flags]",
		Short: "List images and their states",
		Long: `Prints a JSON object that maps the name of each image to its state. With --disk these
are the images on the disks. Otherwise they are the images of a daemon, including
declared images without a copy.

The entry of a name is the declared generation. Its field "generations" has the older
ones. If there are several copies, the entry shows the best one; --on selects copies.`,
		Example: `  backing-image-manager backing-image list --disk /var/lib/longhorn
  backing-image-manager backing-image list --url http://localhost:8000 -o table`,
		Args: exactArgs(),
	}
	f.add(cmd)
	f.addOn(cmd)
	format := outputFlag(cmd, report.JSON, report.Table)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		images, err := f.images(cmd.Context())
		if err != nil {
			return err
		}
		list := report.List(images, f.on)
		return report.Print(cmd.OutOrStdout(), format.value, list, report.ListTable(list)...)
	}
	return cmd
}

func newImageGet() *cobra.Command {
	var f imageFlags
	cmd := &cobra.Command{
		Use:   "get NAME [--disk PATH | --url URL] [flags]",
		Short: "Show one image and its state",
		Long:  `Prints the entry for NAME of backing-image list. NAME may also be <name>-<uuid>.`,
		Example: `  backing-image-manager backing-image get parrot --disk /var/lib/longhorn
  backing-image-manager backing-image get parrot --on node1/disk1`,
		Args: exactArgs("NAME"),
	}
	f.add(cmd)
	f.addOn(cmd)
	format := outputFlag(cmd, report.JSON, report.Table)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		images, err := f.images(cmd.Context())
		if err != nil {
			return err
		}
		one, err := report.Entry(images, args[0], f.on)
		if err != nil {
			return err
		}
		return report.Print(cmd.OutOrStdout(), format.value, one, report.ListTable(map[string]report.ListEntry{one.Name: one})...)
	}
	return cmd
}

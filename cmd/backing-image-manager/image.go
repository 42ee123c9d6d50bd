package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

func newImage() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "backing-image",
		SuggestFor: []string{"list", "ls", "get", "images", "upload", "download", "verify", "cleanup", "backup", "retry", "users"},
		Short:      "List, verify, upload, download, back up, retry and clean up images, and list their users",
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
	completeFolders(cmd, "disk")
}

func (f *imageFlags) addOn(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.on, "on", nil, "only copies on `NODE/DISK`, or on the path given to --disk; may be repeated")
}

// images returns the images on the disks, or those of the daemon. A disk in --on that does not exist
// is an error: otherwise a typing error would look like a disk without images.
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
	disks, err := openDisks(f.disks)
	if err != nil {
		return nil, err
	}
	var known []string
	for _, d := range disks {
		known = append(known, d.Path())
	}
	return imagesOn(disks), errors.Join(f.checkOn(known), closeDisks(disks))
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
		if format.value == report.JSON {
			return report.WriteJSON(cmd.OutOrStdout(), list)
		}
		_, err = io.WriteString(cmd.OutOrStdout(), report.ListTable(list))
		return err
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
		one, err := report.FindEntry(report.List(images, f.on), args[0])
		if err != nil {
			return err
		}
		if format.value == report.JSON {
			return report.WriteJSON(cmd.OutOrStdout(), one)
		}
		_, err = io.WriteString(cmd.OutOrStdout(), report.ListTable(map[string]report.ListEntry{one.Name: one}))
		return err
	}
	return cmd
}

// offlineDisk is a disk that a command uses without a daemon.
type offlineDisk struct {
	*disk.Disk
	copies []model.Copy
}

func openDisks(paths []string) (disks []offlineDisk, err error) {
	for _, path := range paths {
		d, err := disk.Open(path)
		if err != nil {
			return nil, errors.Join(err, closeDisks(disks))
		}
		listing, err := d.List()
		if err != nil {
			return nil, errors.Join(err, d.Close(), closeDisks(disks))
		}
		disks = append(disks, offlineDisk{d, listing.Copies})
	}
	return disks, nil
}

func closeDisks(disks []offlineDisk) error {
	var errs []error
	for _, d := range disks {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// imagesOn returns the images on disks in the form of a daemon's status. The name of a disk
// is its path, and no image is declared.
func imagesOn(disks []offlineDisk) []status.ImageStatus {
	var images []status.ImageStatus
	at := map[ident.ID]int{}
	for _, d := range disks {
		users := d.Users()
		for _, c := range d.copies {
			i, known := at[c.ID]
			if !known {
				i = len(images)
				at[c.ID] = i
				images = append(images, status.ImageStatus{Name: c.ID.Name, UUID: c.ID.UUID})
			}
			if images[i].Checksum.IsZero() {
				images[i].Checksum = c.CfgExpected
			}
			images[i].Copies = append(images[i].Copies, copyStatus(d.Path(), c, users))
		}
	}
	return images
}

// copyStatus returns the status of a copy on the disk at path.
func copyStatus(path string, c model.Copy, users disk.Users) status.CopyStatus {
	c.UsedBy, _ = users.InUse(c.ID)
	s := status.NewCopyStatus(ident.DiskRef{Disk: path}, c)
	if c.State == model.Pending && c.PartBytes > 0 {
		s.State = model.InProgress
	}
	return s
}

// localCopy is one copy on one disk.
type localCopy struct {
	disk *disk.Disk
	model.Copy
}

func (c localCopy) String() string { return fmt.Sprintf("%s on %s", c.ID, c.disk.Path()) }

// findCopies returns the copies with a name, which is the name of an image or
// <name>-<uuid>. The error for none lists the images on the disks.
func findCopies(disks []offlineDisk, name string) ([]localCopy, error) {
	var found []localCopy
	var others []string
	for _, d := range disks {
		for _, c := range d.copies {
			if c.ID.Name == name || c.ID.String() == name {
				found = append(found, localCopy{d.Disk, c})
			} else {
				others = append(others, c.ID.Name)
			}
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	if len(others) == 0 {
		return nil, fmt.Errorf("no image %q: the disk has no images", name)
	}
	return nil, fmt.Errorf("no image %q on the disk: it has %s", name, strings.Join(others, ", "))
}

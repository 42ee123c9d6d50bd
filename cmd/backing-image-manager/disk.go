package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
)

func newDisk() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "disk",
		Short:   "Initialise or check a disk",
		Example: "  backing-image-manager disk init /var/lib/longhorn\n  backing-image-manager disk check /var/lib/longhorn",
	}
	cmd.AddCommand(newDiskInit(), newDiskCheck())
	return cmd
}

func newDiskInit() *cobra.Command {
	return &cobra.Command{
		Use:   "init PATH",
		Short: "Give a folder the identity of a disk",
		Long: `Writes longhorn-disk.cfg with a new identity into the folder PATH, and prints the
identity. PATH must exist: otherwise the mount point of an unmounted disk could
become a disk. A disk that has an identity keeps it.`,
		Example: "  backing-image-manager disk init /var/lib/longhorn",
		Args:    exactArgs("PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			uuid, err := disk.Init(args[0])
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%w: mount the disk there, or make the folder", err)
			}
			if err != nil {
				return err
			}
			return report.WriteLine(cmd.OutOrStdout(), "%s", uuid)
		},
	}
}

// diskReport is the result of disk check. Its JSON is a stable interface.
type diskReport struct {
	model.Disk
	Problems []string `json:"problems"`
}

func newDiskCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check PATH",
		Short: "Print the content and the problems of a disk",
		Long: `Prints the identity of the disk at PATH, its space, its copies, and the folders that
this program does not manage. It reads metadata only (backing-image verify reads the
image data), changes nothing, and does not disturb a running daemon.

Exit status: 1 if there is a problem: no disk, a failed or unverified copy, or
unreadable metadata of a replica, which prevents all clean-ups on the disk.`,
		Example: "  backing-image-manager disk check /var/lib/longhorn\n  backing-image-manager disk check /var/lib/longhorn -o json",
		Args:    exactArgs("PATH"),
	}
	format := outputFlag(cmd, report.Text, report.JSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := checkDisk(args[0])
		if err != nil {
			return err
		}
		return errors.Join(report.Print(cmd.OutOrStdout(), format.value, r, r.lines()...), r.err())
	}
	return cmd
}

func checkDisk(path string) (diskReport, error) {
	d, err := disk.Open(path)
	if err != nil {
		return diskReport{}, err
	}
	defer d.Close() // it was only read, so the error does not matter
	listing, err := d.List()
	if err != nil {
		return diskReport{}, err
	}
	space, err := d.Space()
	if err != nil {
		return diskReport{}, err
	}
	users := d.Users()
	r := diskReport{model.Disk{Path: d.Path(), UUID: d.UUID(), Space: space, Copies: model.Copies{}, Unmanaged: listing.Unmanaged}, []string{}}
	if err := users.Err(); err != nil {
		r.Problems = append(r.Problems, "cannot determine what is in use: "+err.Error())
	}
	for _, c := range listing.Copies {
		r.add(c, users)
	}
	return r, nil
}

func (r *diskReport) add(c model.Copy, users disk.Users) {
	c.UsedBy = strings.Join(users.Replicas(c.ID), ", ")
	r.Copies[c.ID] = c
	if c.State == model.Failed || c.State == model.Unknown {
		problem := c.String()
		if c.State == model.Unknown && !c.Owned {
			problem += "; if you declare an image with this uuid, the copy is verified once and adopted"
		}
		r.Problems = append(r.Problems, problem)
	}
}

func (r diskReport) lines() []string {
	rows := [][]string{
		{"disk", r.UUID},
		{"path", r.Path},
		{"space", fmt.Sprintf("%s free of %s", report.Size(r.Free), report.Size(r.Total))},
	}
	for _, id := range slices.SortedFunc(maps.Keys(r.Copies), ident.ID.Compare) {
		rows = append(rows, []string{"copy", copyText(r.Copies[id])})
	}
	for _, folder := range r.Unmanaged {
		rows = append(rows, []string{"unmanaged", folder})
	}
	for _, p := range r.Problems {
		rows = append(rows, []string{"problem", p})
	}
	return report.Align(rows)
}

func copyText(c model.Copy) string {
	parts := []string{c.ID.String(), string(c.State)}
	switch {
	case c.Size > 0:
		parts = append(parts, fmt.Sprintf("%s (%s on disk)", report.Size(c.Size), report.Size(c.RealSize)))
	case c.PartBytes > 0:
		parts = append(parts, "partial file of "+report.Size(c.PartBytes))
	}
	if c.Format != "" {
		parts = append(parts, string(c.Format))
	}
	if c.UsedBy != "" {
		parts = append(parts, "used by "+c.UsedBy)
	}
	if !c.Owned {
		parts = append(parts, "not adopted")
	}
	return strings.Join(parts, ", ")
}

// err returns an error if the disk has problems.
func (r diskReport) err() error {
	switch n := len(r.Problems); n {
	case 0:
		return nil
	case 1:
		return errors.New("the disk has a problem")
	default:
		return fmt.Errorf("the disk has %d problems", n)
	}
}

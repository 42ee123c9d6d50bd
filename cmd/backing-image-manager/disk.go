package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/spf13/cobra"
)

func newDisk() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "disk",
		Short:   "Initialise a disk, or check what lies on it",
		Example: "  backing-image-manager disk init /var/lib/longhorn\n  backing-image-manager disk check /var/lib/longhorn",
	}
	cmd.AddCommand(newDiskInit(), newDiskCheck())
	return cmd
}

func newDiskInit() *cobra.Command {
	return &cobra.Command{
		Use:   "init PATH",
		Short: "Give a folder the identity of a disk",
		Long: `Writes longhorn-disk.cfg with a new identity into the folder PATH, which has to
be there: a disk that is not mounted must not be taken for an empty one. A disk
that has an identity keeps it. The identity is printed.`,
		Example: "  backing-image-manager disk init /var/lib/longhorn",
		Args:    exactly("PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			uuid, err := disk.Init(args[0])
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%w: mount the disk there, or make the folder", err)
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), uuid)
			return err
		},
	}
}

// diskReport is what disk check says of a disk. It is a stable interface; sizes
// are in bytes.
type diskReport struct {
	Path    string       `json:"path"`
	UUID    string       `json:"uuid"`
	Total   int64        `json:"total"`
	Free    int64        `json:"free"`
	Copies  []copyReport `json:"copies"`
	Foreign []string     `json:"foreign"` // not ours, left alone
	// Problems are what is wrong, in words; none: the disk is in order.
	Problems []string `json:"problems"`
}

type copyReport struct {
	Name      string      `json:"name"`
	UUID      string      `json:"uuid"`
	State     disk.State  `json:"state"`
	Message   string      `json:"message,omitempty"`
	Size      int64       `json:"size"`
	RealSize  int64       `json:"realSize"`
	Format    disk.Format `json:"format,omitempty"`
	SHA512    disk.Digest `json:"sha512"`
	Owned     bool        `json:"owned"`
	PartBytes int64       `json:"partBytes,omitempty"`
	InUse     string      `json:"inUse,omitempty"`
}

func newDiskCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check PATH",
		Short: "Say what lies on a disk and what is wrong with it",
		Long: `Prints the identity of the disk at PATH, its space, the copies on it, and what is
not ours. Image data is not read (backing-image verify does), nothing is changed,
and a running daemon is not disturbed.

Exit status: 1 when something is wrong: no disk, a copy that failed or that nothing
vouches for, or metadata of replicas that cannot be read, which keeps every copy of
the disk from being cleaned up.`,
		Example: "  backing-image-manager disk check /var/lib/longhorn\n  backing-image-manager disk check /var/lib/longhorn -o json",
		Args:    exactly("PATH"),
	}
	format := outputFlag(cmd, "text", "json")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := checkDisk(args[0])
		if err != nil {
			return err
		}
		if format.word == "json" {
			err = report.WriteJSON(cmd.OutOrStdout(), r)
		} else {
			_, err = io.WriteString(cmd.OutOrStdout(), r.text())
		}
		return errors.Join(err, r.verdict())
	}
	return cmd
}

func checkDisk(path string) (diskReport, error) {
	d, err := disk.Open(path)
	if err != nil {
		return diskReport{}, err
	}
	defer d.Close() // only read from: nothing to lose
	listing, err := d.List()
	if err != nil {
		return diskReport{}, err
	}
	space, err := d.Space()
	if err != nil {
		return diskReport{}, err
	}
	users := d.Users()
	r := diskReport{
		Path: d.Path(), UUID: d.UUID(), Total: space.Total, Free: space.Free,
		Copies: []copyReport{}, Foreign: append([]string{}, listing.Unmanaged...), Problems: []string{},
	}
	if err := users.Err(); err != nil {
		r.Problems = append(r.Problems, "cannot determine what is in use: "+err.Error())
	}
	for _, c := range listing.Copies {
		r.add(c, users)
	}
	return r, nil
}

func (r *diskReport) add(c disk.Copy, users disk.Users) {
	r.Copies = append(r.Copies, copyReport{
		Name: c.ID.Name, UUID: c.ID.UUID, State: c.State, Message: c.Message, Size: c.Size, RealSize: c.RealSize,
		Format: c.Format, SHA512: c.SHA512, Owned: c.Owned, PartBytes: c.PartBytes, InUse: strings.Join(users.Replicas(c.ID), ", "),
	})
	if c.State == disk.Failed || c.State == disk.Unknown {
		problem := fmt.Sprintf("%s is %s: %s", c.ID, c.State, c.Message)
		if c.State == disk.Unknown && !c.Owned {
			problem += "; declared with that uuid, it is read once and adopted"
		}
		r.Problems = append(r.Problems, problem)
	}
}

func (r diskReport) text() string {
	rows := [][]string{
		{"disk", r.UUID},
		{"path", r.Path},
		{"space", fmt.Sprintf("%s free of %s", report.Size(r.Free), report.Size(r.Total))},
	}
	for _, c := range r.Copies {
		rows = append(rows, []string{"copy", c.text()})
	}
	for _, f := range r.Foreign {
		rows = append(rows, []string{"foreign", f + " (left alone)"})
	}
	for _, p := range r.Problems {
		rows = append(rows, []string{"problem", p})
	}
	return strings.Join(report.Align(rows), "\n") + "\n"
}

func (c copyReport) text() string {
	parts := []string{c.Name + "-" + c.UUID, string(c.State)}
	switch {
	case c.Size > 0:
		parts = append(parts, fmt.Sprintf("%s (%s on disk)", report.Size(c.Size), report.Size(c.RealSize)))
	case c.PartBytes > 0:
		parts = append(parts, "a part of "+report.Size(c.PartBytes))
	}
	if c.Format != "" {
		parts = append(parts, string(c.Format))
	}
	if c.InUse != "" {
		parts = append(parts, "used by "+c.InUse)
	}
	if !c.Owned {
		parts = append(parts, "not adopted")
	}
	return strings.Join(parts, ", ")
}

func (r diskReport) verdict() error {
	switch n := len(r.Problems); n {
	case 0:
		return nil
	case 1:
		return errors.New("the disk has a problem")
	default:
		return fmt.Errorf("the disk has %d problems", n)
	}
}

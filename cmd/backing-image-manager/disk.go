package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/disk"
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

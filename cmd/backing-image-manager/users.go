package main

import (
	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

func newImageUsers() *cobra.Command {
	var daemon daemonFlags
	cmd := &cobra.Command{
		Use:   "users NAME[-UUID] [--url URL] [flags]",
		Short: "List what uses or needs the copies of an image",
		Long: `Lists what keeps the copies of an image, as the daemon knows it, and what ends each use:

  used      a replica on the disk of a copy names the copy, or a process has it open
  needed    a replica names a generation that its disk has no verified copy of. If the
            generation is no longer declared, every other copy of it is kept, on all
            nodes. A declared generation needs no such protection
  unknown   the users on a disk cannot be read. Therefore its node keeps every copy

NAME may also be <name>-<uuid>, for one generation.`,
		Example: `  backing-image-manager backing-image users parrot
  backing-image-manager backing-image users parrot-6846a0b2 -o json`,
		Args:              exactArgs("NAME"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	daemon.add(cmd)
	format := outputFlag(cmd, report.Table, report.JSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := daemon.status(cmd.Context())
		if err != nil {
			return err
		}
		generations := status.Generations(s.Images, args[0], nil)
		if len(generations) == 0 {
			return status.NoSuchImage(s.Images, args[0], nil)
		}
		users := report.Users(s, generations)
		return report.Print(cmd.OutOrStdout(), format.value, users, report.UsersTable(users)...)
	}
	return cmd
}

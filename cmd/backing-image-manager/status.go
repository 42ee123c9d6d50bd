package main

import (
	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/reconcile/report"
)

func newStatus() *cobra.Command {
	var f imageFlags
	cmd := &cobra.Command{
		Use:   "status [--watch] [--url URL] [flags]",
		Short: "Show the state of the cluster as a daemon sees it",
		Long: `Prints the state of the configuration at a daemon, the peers and whether they have the
same configuration, the disks, and each image with its copies on all nodes. For an
unreachable node it prints the last known state. The table is a summary: equal copies
share a line, and in a large cluster only nodes with problems are listed. -o json
prints everything.

The output of -o json can be saved as a --state for reconcile --dry-run.

--watch follows the state until Ctrl-C, and then exits with 0. On a terminal it redraws the
table. Elsewhere it prints one line for each change: at first the configuration, the images
and what is not ready. With -o json it prints one document in one line for each change.
While the daemon cannot be reached, the command says so and tries again.`,
		Example: `  backing-image-manager status
  backing-image-manager status --watch
  backing-image-manager status --url http://node1:8000 --token-file token -o json`,
		Args: exactArgs(),
	}
	output := outputFlag(cmd, report.Table, report.JSON)
	var watch bool
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "follow the state until Ctrl-C")
	f.addURL(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if watch {
			client, err := f.client()
			if err != nil {
				return err
			}
			return newStatusWatch(cmd.OutOrStdout(), cmd.ErrOrStderr(), output.value).follow(cmd.Context(), client)
		}
		s, err := f.status(cmd.Context())
		if err != nil {
			return err
		}
		if output.value == report.JSON {
			return report.WriteJSON(cmd.OutOrStdout(), s)
		}
		return report.WriteStatus(cmd.OutOrStdout(), s)
	}
	return cmd
}

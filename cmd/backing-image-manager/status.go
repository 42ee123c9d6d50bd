package main

import (
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/spf13/cobra"
)

func newStatus() *cobra.Command {
	var f imageFlags
	cmd := &cobra.Command{
		Use:   "status [--url URL] [flags]",
		Short: "Show the cluster as a daemon sees it: nodes, disks and images",
		Long: `Prints how a daemon understood the configuration, which other nodes answer it and
with which configuration, the disks, and each image with its copies on all nodes. Of a
node that does not answer it shows what that said last, as such. Copies that are alike
share a line, and of many nodes only those are listed that something is wrong with;
-o json has all.

A status saved with -o json is a --state for reconcile --dry-run.`,
		Example: `  backing-image-manager status
  backing-image-manager status --url http://node1:8000 --token-file token -o json`,
		Args: exactArgs(),
	}
	output := outputFlag(cmd, "table", "json")
	f.addURL(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := f.status(cmd.Context())
		if err != nil {
			return err
		}
		if output.word == "json" {
			return report.WriteJSON(cmd.OutOrStdout(), s)
		}
		return report.WriteStatus(cmd.OutOrStdout(), s)
	}
	return cmd
}

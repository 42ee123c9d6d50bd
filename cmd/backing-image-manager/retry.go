package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
)

func newImageRetry() *cobra.Command {
	var daemon daemonFlags
	var on []string
	cmd := &cobra.Command{
		Use:   "retry NAME [--on NODE/DISK]... [--url URL] [flags]",
		Short: "Try failed actions of an image again now",
		Long: `Requests that a daemon does not wait any longer after failed attempts to create, verify,
repair or back up copies of the declared image NAME on its disks. That includes
failures after which it would try again only when the declaration changes, such as a
wrong checksum. All rules, limits and suspensions apply: the daemon decides as if the
wait were over.

Each daemon retries only its own attempts. If the image has failed on another node, the
error names that node. An interrupted upload is resumed by backing-image upload.

Exit status: 0 if at least one attempt starts; 1 otherwise, with the reason.`,
		Example: `  backing-image-manager backing-image retry parrot
  backing-image-manager backing-image retry parrot --on node2/disk1 --url http://node2:8000 --token-file token`,
		Args:              exactArgs("NAME"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	daemon.add(cmd)
	cmd.Flags().StringArrayVar(&on, "on", nil, "only attempts on the disk `NODE/DISK`; may be repeated")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, ref := range on {
			if _, err := ident.ParseDiskRef(ref); err != nil {
				return fmt.Errorf("--on is %q: %w", ref, err)
			}
		}
		client, err := daemon.client()
		if err != nil {
			return err
		}
		message, err := client.Retry(cmd.Context(), args[0], on)
		if err != nil {
			return err
		}
		err = report.WriteLine(cmd.OutOrStdout(), "%s: %s", args[0], text.Line(message))
		return err
	}
	return cmd
}

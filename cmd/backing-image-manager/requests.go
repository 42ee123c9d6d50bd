package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/api"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
)

func newImageCleanup() *cobra.Command {
	var daemon daemonFlags
	var request api.CleanupRequest
	var disks []string
	cmd := &cobra.Command{
		Use:   "cleanup NAME [--on NODE/DISK]... [--url URL] [flags]",
		Short: "Delete a surplus copy before the clean-up interval ends",
		Long: `Requests that a daemon deletes the copies of an image on some of its disks without waiting
for the clean-up interval. All other rules apply: the daemon deletes a copy only if it
is surplus, not in use, and enough other copies are ready.

A use ends when the folder of its replica was deleted. If the folder cannot be seen, for
example because it is not mounted, the use continues. --use-ended ends such uses on all
disks of the daemon; without --on, it deletes no copy. --despite-need NODE deletes a copy
although that node claims to use or to need it. "backing-image users NAME" lists all uses
and needs.

NAME selects the declared generation. --uuid selects an older generation, or a
generation of an image that is no longer declared.

The copies are requested one after the other, so that each request sees the deletions
before it.

Exit status: 0 if each copy is being deleted or does not exist, 1 if one is kept, with
the reason.`,
		Example: `  backing-image-manager backing-image cleanup parrot --on node1/disk1
  backing-image-manager backing-image cleanup parrot --on node2/disk1 --uuid 6846a0b2 --url http://node2:8000 --token-file token
  backing-image-manager backing-image cleanup parrot --use-ended`,
		Args:              exactArgs("NAME"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	daemon.add(cmd)
	cmd.Flags().StringArrayVar(&disks, "on", nil, "the disk of the copy, as `NODE/DISK`; may be repeated")
	cmd.Flags().StringVar(&request.UUID, "uuid", "", "select the generation with this `UUID` instead of the declared generation")
	cmd.Flags().BoolVar(&request.UseEnded, "use-ended", false, "end the uses by replicas that are not found any more")
	cmd.Flags().StringArrayVar(&request.DespiteNeed, "despite-need", nil, "delete the copy although this `NODE` claims to use or to need it; may be repeated")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(disks) == 0 && !request.UseEnded {
			return errors.New("--on is missing: name the disk of the copy with --on NODE/DISK")
		}
		for _, on := range disks {
			if _, err := ident.ParseDiskRef(on); err != nil {
				return fmt.Errorf("--on is %q: %w", on, err)
			}
		}
		client, err := daemon.client()
		if err != nil {
			return err
		}
		if len(disks) == 0 {
			disks = []string{""} // "" means that the request only ends uses
		}
		var kept []error
		for _, on := range disks {
			request.On = on
			what := strings.TrimSuffix(args[0]+" on "+on, " on ")
			message, err := client.Cleanup(cmd.Context(), args[0], request)
			if err == nil {
				err = report.WriteLine(cmd.OutOrStdout(), "%s: %s", what, text.Line(message))
			} else if len(disks) > 1 {
				err = fmt.Errorf("%s: %w", what, err)
			}
			kept = append(kept, err)
		}
		return errors.Join(kept...)
	}
	return cmd
}

func newImageRetry() *cobra.Command {
	var daemon daemonFlags
	var on []string
	cmd := &cobra.Command{
		Use:   "retry NAME [--on NODE/DISK]... [--url URL] [flags]",
		Short: "Try failed actions of an image again now",
		Long: `Requests that a daemon does not wait any longer after failed attempts to create, verify,
repair or back up copies of the declared image NAME on its disks. That includes
failures after which the daemon tries again only when the declaration changes, such as
a wrong checksum. All rules, limits and suspensions apply: the daemon decides as if the
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
	cmd.Flags().StringArrayVar(&on, "on", nil, "retry only the attempts on the disk `NODE/DISK`; the flag may be repeated")
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
		return report.WriteLine(cmd.OutOrStdout(), "%s: %s", args[0], text.Line(message))
	}
	return cmd
}

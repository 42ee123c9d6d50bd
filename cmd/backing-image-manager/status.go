package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/reconcile"
)

func newStatus() *cobra.Command {
	var f imageFlags
	cmd := &cobra.Command{
		Use:   "status [--url URL] [flags]",
		Short: "Show the configuration, the disks and the images as a daemon sees them",
		Example: `  backing-image-manager status
  backing-image-manager status --url http://node1:8000 --token-file token -o json`,
		Args: exactly(),
	}
	output := outputFlag(cmd, "table", "json")
	f.addURL(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := fetchStatus(cmd.Context(), f.url, f.tokenFile)
		if err != nil {
			return err
		}
		if output.word == "json" {
			return writeJSON(cmd.OutOrStdout(), s)
		}
		return writeStatus(cmd.OutOrStdout(), s)
	}
	return cmd
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// writeStatus writes a status for people.
func writeStatus(w io.Writer, s reconcile.Status) error {
	fmt.Fprintf(w, "Node %s, as of %s\n", s.Node, s.Time.Format(time.RFC3339))
	writeConfigStatus(w, s.Config)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nDISK\tPATH\tFREE\tRESERVED\tTOTAL\tPROBLEM")
	for _, d := range s.Disks {
		fmt.Fprintf(t, "%s/%s\t%s\t%s\t%s\t%s\t%s\n", d.Node, d.Disk, d.Path, size(d.Free), size(d.Reserved), size(d.Total), d.Problem)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(t, "\nIMAGE\tUUID\tREADY\tDISK\tSTATE\tPROGRESS\tSIZE\tMESSAGE")
	for _, image := range s.Images {
		writeImageStatus(t, image)
	}
	return t.Flush()
}

func writeConfigStatus(w io.Writer, c reconcile.ConfigStatus) {
	switch {
	case c.Fault != "":
		fmt.Fprintf(w, "Configuration: cannot be used (%s): %s\n", c.Allowed, c.Fault)
	case c.Digest == "":
		fmt.Fprintf(w, "Configuration: %s (%s)\n", count(len(c.Errors), "error"), c.Allowed)
	default:
		fmt.Fprintf(w, "Configuration: valid, digest %.12s\n", c.Digest)
	}
	for _, p := range c.Errors {
		fmt.Fprintf(w, "  error: %s\n", p)
	}
	for _, p := range c.Warnings {
		fmt.Fprintf(w, "  warning: %s\n", p)
	}
}

func writeImageStatus(w io.Writer, image reconcile.ImageStatus) {
	ready := fmt.Sprintf("%d/%d", image.Ready, image.Wanted)
	if !image.Declared {
		ready = "not declared"
	}
	if len(image.Copies) == 0 || image.Message != "" {
		fmt.Fprintf(w, "%s\t%s\t%s\t\t\t\t\t%s\n", image.Name, image.UUID, ready, image.Message)
	}
	for _, c := range image.Copies {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s/%s\t%s\t%d %%\t%s\t%s\n",
			image.Name, image.UUID, ready, c.Node, c.Disk, c.State, c.Progress, size(max(c.Size, c.Total)), remark(c))
	}
}

// remark says what is to be said of a copy, and until when it waits.
func remark(c reconcile.CopyStatus) string {
	parts := []string{}
	for _, part := range []string{c.Message, c.InUse} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if !c.Until.IsZero() {
		parts = append(parts, "until "+c.Until.Format(time.RFC3339))
	}
	return strings.Join(parts, "; ")
}

// size writes bytes for people; unknown ones are a question mark.
func size(bytes int64) string {
	if bytes < 0 {
		return "?"
	}
	return humanize.IBytes(uint64(bytes))
}

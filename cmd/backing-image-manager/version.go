package main

import (
	"cmp"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version, the commit and the version of Go",
		Example: "  backing-image-manager version",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprintln(cmd.OutOrStdout(), version())
			return nil
		},
	}
}

// A build without a git checkout, such as that of a container image, sets these by the
// linker: -X main.builtVersion=v1.2.3 -X main.builtCommit=0123456789ab.
var builtVersion, builtCommit string

// version returns the version, commit and Go version that the build recorded.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "backing-image-manager, unknown build"
	}
	release, commit := cmp.Or(builtVersion, info.Main.Version), cmp.Or(builtCommit, "unknown")
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			if s.Value == "true" {
				commit += "+changes"
			}
		}
	}
	return fmt.Sprintf("backing-image-manager %s, commit %s, %s", release, commit, info.GoVersion)
}

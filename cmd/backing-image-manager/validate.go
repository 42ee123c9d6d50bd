package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

func newValidate() *cobra.Command {
	var strict bool
	cmd := &cobra.Command{
		Use:   "validate PATH... [flags]",
		Short: "Check config directories or single files",
		Long: `Checks a config directory as a whole, and prints every error with its position. Each
directory is one configuration. Single files of the same folder are one configuration,
too, as if the folder had no other files.

Exit status: 1 if there is an error, or with --strict a warning.`,
		Example: `  backing-image-manager validate config
  backing-image-manager validate config/parrot.yaml config/nodes.yaml --strict
  backing-image-manager validate config -o json`,
		Args: needArgs("name a directory or a file to check"),
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "treat warnings as errors")
	format := outputFlag(cmd, report.Text, report.JSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		limitGarbage()
		all, err := validate(cmd.Context(), cmd.ErrOrStderr(), args)
		if err != nil {
			return err
		}
		return errors.Join(report.WriteValidations(cmd.OutOrStdout(), all, format.value), invalidError(all, strict))
	}
	return cmd
}

// validate loads each directory as a configuration, and all single files of a folder as one configuration.
func validate(ctx context.Context, errOut io.Writer, paths []string) ([]report.Validation, error) {
	var all []report.Validation
	files := map[string][]configdir.File{}
	var folders []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if info.IsDir() {
			result, err := loadConfig(ctx, errOut, path)
			if err != nil {
				return nil, err
			}
			all = append(all, report.Validation{Path: path, Result: result})
			continue
		}
		if !configdir.IsConfig("x" + filepath.Ext(path)) { // "x": a hidden file is read if the user names it
			return nil, fmt.Errorf("%s is not a configuration file: its name must be *.yaml, *.yml, *.json or *.cue", path)
		}
		folder := filepath.Dir(path)
		if files[folder] == nil {
			folders = append(folders, folder)
		}
		data, err := configdir.ReadFile(path)
		files[folder] = append(files[folder], configdir.File{Path: filepath.Base(path), Data: data, Err: err})
	}
	for _, folder := range folders {
		all = append(all, report.Validation{Path: folder, Result: load.NewLoader().Load(ctx, configdir.Snapshot{Files: files[folder]})})
	}
	for i, one := range all {
		all[i].Warnings = one.WarningsAt(time.Now())
	}
	return all, ctx.Err()
}

// invalidError returns the error that ends the command, if there is one.
func invalidError(all []report.Validation, strict bool) error {
	errs, warnings := 0, 0
	for _, v := range all {
		errs += len(v.Errors)
		warnings += len(v.Warnings)
	}
	switch {
	case errs > 0:
		return fmt.Errorf("the configuration is invalid: %s", report.Count(errs, "error"))
	case strict && warnings > 0:
		return fmt.Errorf("the configuration has %s, which --strict treats as errors", report.Count(warnings, "warning"))
	}
	return nil
}

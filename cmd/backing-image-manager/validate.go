package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/spf13/cobra"
)

func newValidate() *cobra.Command {
	var strict bool
	cmd := &cobra.Command{
		Use:   "validate PATH... [flags]",
		Short: "Check config directories or single files",
		Long: `Checks what a directory declares as a whole, and prints every mistake with its
place. Each directory is a configuration of its own; so are the single files of one
folder together, as if the folder had no others.

Exit status: 1 when there is a mistake, with --strict also for a warning.`,
		Example: `  backing-image-manager validate config
  backing-image-manager validate config/parrot.yaml config/nodes.yaml --strict
  backing-image-manager validate config -o json`,
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "let warnings count as mistakes")
	format := outputFlag(cmd, "text", "json")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return errors.New("name a directory or a file to check")
		}
		all, err := validate(cmd.Context(), cmd.ErrOrStderr(), args)
		if err != nil {
			return err
		}
		if format.word == "json" {
			err = report.WriteJSON(cmd.OutOrStdout(), report.NewValidationView(all))
		} else {
			err = report.WriteValidations(cmd.OutOrStdout(), all)
		}
		return errors.Join(err, verdict(all, strict))
	}
	return cmd
}

// validate loads directories each by itself, and files by the folder they are in.
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
			result, err := load(ctx, errOut, path)
			if err != nil {
				return nil, err
			}
			all = append(all, report.Validation{Path: path, Result: result})
			continue
		}
		if !slices.Contains([]string{".yaml", ".yml", ".json", ".cue"}, filepath.Ext(path)) {
			return nil, fmt.Errorf("%s is not configuration: it has to be *.yaml, *.yml, *.json or *.cue", path)
		}
		folder := filepath.Dir(path)
		if files[folder] == nil {
			folders = append(folders, folder)
		}
		data, err := os.ReadFile(path)
		files[folder] = append(files[folder], configdir.File{Path: filepath.Base(path), Data: data, Err: err})
	}
	for _, folder := range folders {
		all = append(all, report.Validation{Path: folder, Result: schema.NewLoader().Load(ctx, configdir.Snapshot{Files: files[folder]})})
	}
	for i, one := range all {
		all[i].ChangedSettings = changedSettings(ctx, one.Config.Settings)
		all[i].Warnings = one.WarningsAt(time.Now())
	}
	return all, ctx.Err()
}

func verdict(all []report.Validation, strict bool) error {
	errs, warnings := 0, 0
	for _, v := range all {
		errs += len(v.Errors)
		warnings += len(v.Warnings)
	}
	switch {
	case errs > 0:
		return fmt.Errorf("the configuration is not valid: %s", report.Count(errs, "error"))
	case strict && warnings > 0:
		return fmt.Errorf("the configuration has %s, and --strict lets no warning pass", report.Count(warnings, "warning"))
	}
	return nil
}

// changedSettings counts the settings that are not as they are by default.
func changedSettings(ctx context.Context, s schema.Settings) int {
	nothing := configdir.Snapshot{Files: []configdir.File{{Path: "nothing.yaml", Data: []byte("images: {}")}}}
	defaults := reflect.ValueOf(schema.NewLoader().Load(ctx, nothing).Config.Settings)
	n, now := 0, reflect.ValueOf(s)
	for i := range now.NumField() {
		if !reflect.DeepEqual(now.Field(i).Interface(), defaults.Field(i).Interface()) {
			n++
		}
	}
	return n
}

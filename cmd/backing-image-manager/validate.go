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

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// validated is a configuration and what is wrong with it.
type validated struct {
	path string // of the folder that its files are in
	schema.Result
	settings int // that are not as they are by default
}

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
			err = writeJSON(cmd.OutOrStdout(), viewValidated(all))
		} else {
			err = writeValidated(cmd.OutOrStdout(), all)
		}
		return errors.Join(err, verdict(all, strict))
	}
	return cmd
}

// validate loads directories each by itself, and files by the folder they are in.
func validate(ctx context.Context, errOut io.Writer, paths []string) ([]validated, error) {
	var all []validated
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
			all = append(all, validated{path: path, Result: result})
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
		all = append(all, validated{path: folder, Result: schema.NewLoader().Load(ctx, configdir.Snapshot{Files: files[folder]})})
	}
	for i, one := range all {
		all[i].settings = changedSettings(ctx, one.Config.Settings)
		all[i].Warnings = one.WarningsAt(time.Now())
	}
	return all, ctx.Err()
}

func writeValidated(w io.Writer, all []validated) error {
	for _, v := range all {
		printProblems(w, v.path, v.Result)
	}
	for _, v := range all {
		for _, s := range v.Skipped {
			s.File = filepath.Join(v.path, s.File)
			fmt.Fprintf(w, "%s: skipped: %s %s %q %s\n", s.Position, s.APIVersion, s.Kind, s.Name, s.Why)
		}
	}
	for _, v := range all {
		if _, err := fmt.Fprintln(w, v.summary()); err != nil {
			return err
		}
	}
	return nil
}

// summary says in one line what was understood.
func (v validated) summary() string {
	text := fmt.Sprintf("%s: %s, %s, %s", v.path, count(len(v.Config.Images), "image"),
		count(len(v.Config.Nodes), "node"), count(v.settings, "setting"))
	if n := len(v.Manifests); n > 0 {
		text += fmt.Sprintf("; %s read", count(n, "manifest"))
	}
	if n := len(v.Skipped); n > 0 {
		text += fmt.Sprintf("; %s skipped", count(n, "document"))
	}
	if n := len(v.Errors); n > 0 {
		text += "; " + count(n, "error")
	}
	if n := len(v.Warnings); n > 0 {
		text += "; " + count(n, "warning")
	}
	if len(v.Errors)+len(v.Warnings) == 0 {
		text += "; valid"
	}
	return text
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

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func verdict(all []validated, strict bool) error {
	errs, warnings := 0, 0
	for _, v := range all {
		errs += len(v.Errors)
		warnings += len(v.Warnings)
	}
	switch {
	case errs > 0:
		return fmt.Errorf("the configuration is not valid: %s", count(errs, "error"))
	case strict && warnings > 0:
		return fmt.Errorf("the configuration has %s, and --strict lets no warning pass", count(warnings, "warning"))
	}
	return nil
}

package main

import (
	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/schema/load"
)

func newSchema() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schema [flags]",
		Short: "Print the schema of the config directory",
		Long: `Prints the schema of the files in a config directory: as CUE, which this program uses
itself, or as JSON Schema, which editors use to complete and check YAML. The CUE also
describes the Kubernetes manifests that this program reads.`,
		Example: `  backing-image-manager schema | cue vet -c -d '#Config' - config/*.yaml
  backing-image-manager schema --format jsonschema >backing-images.schema.json`,
		Args: exactArgs(),
	}
	const cue, jsonSchema = "cue", "jsonschema"
	format := choiceFlag(cmd, "format", "", "format of the schema", cue, jsonSchema)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		text := load.CUE()
		if format.value == jsonSchema {
			var err error
			if text, err = load.JSONSchema(); err != nil {
				return err
			}
		}
		_, err := cmd.OutOrStdout().Write(text)
		return err
	}
	return cmd
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/seed-26586806/backing-image-manager/fetch/redact"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

func newHandle() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "handle",
		Short: "Read or write a bi:// handle, by which CSI names a backing image",
		Long: `The snapshotHandle of a VolumeSnapshotContent names a backing image of Longhorn:

  bi://backing?backingImage=NAME&backingImageDataSourceType=TYPE&KEY=VALUE…

Longhorn's own text about it ("Extend CSI snapshot to support Longhorn BackingImage")
and Longhorn's code differ. This program goes by the code:

  checksum        The text has the key "checksum". It is "backingImageChecksum":
                  Longhorn takes "checksum" for a parameter of the source, and no
                  image is equal to that. Here it is an error.
                    not  …&url=https%3A%2F%2Fexample.com%2Fa.raw&checksum=304f…
                    but  …&url=https%3A%2F%2Fexample.com%2Fa.raw&backingImageChecksum=304f…
  order           The text begins with backingImageDataSourceType. Any order is read;
                  written are the keys in alphabetical order, by Longhorn and by encode.
                    bi://backing?backingImage=a1&backingImageDataSourceType=export-from-volume&export-type=raw&volume-name=vm1
  escapes         The text escapes values, and so does encode. Longhorn escapes nothing
                  when it writes, so that what it wrote cannot be read again where
                  a value has one of & + # % ; in it. When it reads, "+" is a space.
                    not  …&url=https://example.com/a.raw?x=1&y=2
                    but  …&url=https%3A%2F%2Fexample.com%2Fa.raw%3Fx%3D1%26y%3D2
  the type        The text has "export-form-volume" once. It is "export-from-volume".

What Longhorn drops without a word, such as all that follows a "#", is an error.`,
		Example: `  backing-image-manager handle decode 'bi://backing?backingImage=a1&backingImageDataSourceType=upload'
  backing-image-manager handle encode --backing-image a1 --type download --url https://example.com/a.raw`,
	}
	cmd.AddCommand(newHandleDecode(), newHandleEncode())
	return cmd
}

func newHandleDecode() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "decode HANDLE [flags]",
		Short: "Print what a handle says, and the image that it declares",
		Long: `Prints what a handle says and, as configuration of this program, the image that it
stands for where nothing else declares one of that name. The user and the query of
an address are left out, unless --show-secrets is given.

Exit status: 1 when a config directory with this handle would not be valid.`,
		Example: `  backing-image-manager handle decode 'bi://backing?backingImage=a1&backingImageDataSourceType=download&url=https%3A%2F%2Fexample.com%2Fa.raw'
  backing-image-manager handle decode "$(kubectl get volumesnapshotcontent a1 -o jsonpath={.spec.source.snapshotHandle})" -o json`,
		Args: exactArgs("HANDLE"),
	}
	var secrets bool
	cmd.Flags().BoolVar(&secrets, "show-secrets", false, "print addresses with user and query")
	format := outputFlag(cmd, "text", "json")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		h, err := schema.ParseHandle(args[0])
		if err != nil {
			return err
		}
		images, problems := imageOf(cmd.Context(), cmd.ErrOrStderr(), args[0], h)
		view := viewHandle(h, images, secrets)
		view.wrong = problems != nil
		if view.hidden {
			fmt.Fprintln(cmd.ErrOrStderr(), "warning: the user or the query of an address is left out: --show-secrets prints it")
		}
		if format.word == "json" {
			err = report.WriteJSON(cmd.OutOrStdout(), view)
		} else {
			err = view.write(cmd.OutOrStdout())
		}
		return errors.Join(err, problems)
	}
	return cmd
}

func newHandleEncode() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "encode --backing-image NAME --type TYPE [flags]",
		Short: "Print the handle of an image",
		Long: `Prints the handle of an image, to be the snapshotHandle of a VolumeSnapshotContent.
Longhorn makes the image of a handle where it has none of that name, by download or
by export-from-volume; for the other types, and to name an image that is there, the
parameters of the source may be left out.

Exit status: 1 when a config directory with this handle would not be valid; it is
printed all the same.`,
		Example: `  backing-image-manager handle encode --backing-image a1 --type download --url https://example.com/a.raw --checksum "$(sha512sum a.raw | cut -d' ' -f1)"
  backing-image-manager handle encode --backing-image a1 --type export-from-volume --volume-name vm1 --export-type qcow2`,
		Args: exactArgs(),
	}
	var h schema.Handle
	var url, volume string
	cmd.Flags().StringVar(&h.BackingImage, "backing-image", "", "the `NAME` of the image")
	kind := choiceFlag(cmd, "type", "", "kind of source", "download", "export-from-volume", "upload", "restore", "clone")
	kind.word, cmd.Flags().Lookup("type").DefValue = "", "" // it has to be given
	cmd.Flags().StringVar(&h.Checksum, "checksum", "", "the `SHA-512` of the image, in hex")
	cmd.Flags().StringVar(&url, "url", "", "the `ADDRESS` to download from")
	cmd.Flags().StringVar(&volume, "volume-name", "", "the `NAME` of the volume to export")
	exportType := choiceFlag(cmd, "export-type", "", "format of the export", "raw", "qcow2")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		given := cmd.Flags().Changed
		if !given("backing-image") || !given("type") {
			return errors.New("name the image with --backing-image, and the kind of its source with --type")
		}
		for flag, of := range map[string]string{"url": "download", "volume-name": "export-from-volume", "export-type": "export-from-volume"} {
			if given(flag) && kind.word != of {
				return fmt.Errorf("--%s is for --type %s", flag, of)
			}
		}
		h.SourceType, h.Parameters = kind.word, map[string]string{}
		if given("url") {
			h.Parameters["url"] = url
		}
		if given("volume-name") || given("export-type") {
			h.Parameters["volume-name"], h.Parameters["export-type"] = volume, exportType.word
		}
		text, err := h.Encode()
		if err != nil {
			return err
		}
		_, problems := imageOf(cmd.Context(), cmd.ErrOrStderr(), text, h)
		_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
		return errors.Join(err, problems)
	}
	return cmd
}

// imageOf returns the image that a handle declares where nothing else does, by its
// name, and what is wrong with it. A handle of some types only names an image that is
// there. It loads the configuration that has nothing but a manifest with the handle.
func imageOf(ctx context.Context, errOut io.Writer, text string, h schema.Handle) (map[string]schema.Image, error) {
	if err := h.Check(); err != nil || !h.Declares() {
		return nil, err
	}
	manifest := map[string]any{
		"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "metadata": map[string]any{"name": "handle"},
		"spec": map[string]any{"driver": "driver.longhorn.io", "source": map[string]any{"snapshotHandle": text}},
	}
	data, err := json.Marshal(manifest)
	if err != nil {
		return nil, err
	}
	result := schema.NewLoader().Load(ctx, configdir.Snapshot{Files: []configdir.File{
		{Path: "handle.json", Data: data},
		// Whether a configuration allows such an address, a handle cannot tell.
		{Path: "settings.yaml", Data: []byte("settings: {allowLoopbackSources: true}")},
	}})
	var problems []error
	for _, p := range result.Errors {
		problems = append(problems, errors.New(ofHandle(p)))
	}
	for _, p := range result.Warnings {
		fmt.Fprintf(errOut, "warning: %s\n", ofHandle(p))
	}
	return result.Config.Images, errors.Join(problems...)
}

// ofHandle is a problem without the place in a manifest that nobody wrote.
func ofHandle(p document.Problem) string {
	p.Position = document.Position{}
	if handle := (document.Path{"spec", "source", "snapshotHandle"}); p.Path.Within(handle) {
		p.Path = p.Path[len(handle):]
	}
	return p.String()
}

// handleView is what handle decode prints.
type handleView struct {
	BackingImage string                   `json:"backingImage"`
	SourceType   string                   `json:"backingImageDataSourceType"`
	Checksum     string                   `json:"backingImageChecksum,omitempty"`
	Parameters   map[string]string        `json:"parameters"`
	Images       map[string]imageOfHandle `json:"images,omitempty"`
	hidden       bool                     // a part of an address is left out
	wrong        bool                     // nothing can be said of an image
}

// imageOfHandle is what one would write to declare an image, without what is so by
// default.
type imageOfHandle struct {
	Source   map[string]map[string]string `json:"source"`
	Checksum string                       `json:"checksum,omitempty"`
}

func viewHandle(h schema.Handle, images map[string]schema.Image, secrets bool) handleView {
	shown := redact.Text
	if secrets {
		shown = func(text string) string { return text }
	}
	v := handleView{
		BackingImage: h.BackingImage, SourceType: h.SourceType, Checksum: h.Checksum,
		Parameters: map[string]string{}, Images: map[string]imageOfHandle{},
	}
	for key, value := range h.Parameters {
		v.Parameters[key] = shown(value)
		v.hidden = v.hidden || shown(value) != value
	}
	for name, m := range images {
		d := imageOfHandle{Source: map[string]map[string]string{}, Checksum: m.Checksum.String()}
		switch source := m.Source; source.Kind() {
		case schema.KindDownload:
			d.Source["download"] = map[string]string{"url": shown(source.Download.URL)}
		case schema.KindExportFromVolume:
			e := source.ExportFromVolume
			d.Source["exportFromVolume"] = map[string]string{"volumeName": e.VolumeName, "exportType": string(e.ExportType)}
		}
		v.Images[name] = d
	}
	return v
}

// write prints a file for a config directory, in which what the handle says is a
// comment.
func (v handleView) write(w io.Writer) error {
	var b bytes.Buffer
	comment := func(key, value string) {
		if line := fmt.Sprintf("%s: %s", key, value); strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
			fmt.Fprintf(&b, "# %s: %q\n", key, value)
		} else {
			fmt.Fprintf(&b, "# %s\n", line)
		}
	}
	comment("backingImage", v.BackingImage)
	comment("backingImageDataSourceType", v.SourceType)
	if v.Checksum != "" {
		comment("backingImageChecksum", v.Checksum)
	}
	for _, key := range slices.Sorted(maps.Keys(v.Parameters)) {
		comment(key, v.Parameters[key])
	}
	switch {
	case v.wrong:
	case len(v.Images) == 0:
		fmt.Fprintln(&b, "# It declares no image: one of that name has to be there.")
	default:
		images, err := yaml.Marshal(map[string]any{"images": v.Images})
		if err != nil {
			return err
		}
		b.Write(images)
	}
	_, err := w.Write(b.Bytes())
	return err
}

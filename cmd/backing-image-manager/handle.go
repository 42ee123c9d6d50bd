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
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/load"
	"github.com/seed-26586806/backing-image-manager/schema/manifest"
)

func newHandle() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "handle",
		Short: "Decode or encode a CSI bi:// snapshot handle",
		Long: `The snapshotHandle of a VolumeSnapshotContent names a Longhorn backing image:

  bi://backing?backingImage=NAME&backingImageDataSourceType=TYPE&KEY=VALUE…

Longhorn's documentation ("Extend CSI snapshot to support Longhorn BackingImage") and
Longhorn's code differ. This program follows the code:

  checksum   The documentation has the key "checksum". The correct key is
             "backingImageChecksum". Longhorn treats "checksum" as a parameter of the
             source, and then no image matches. Here it is an error.
               wrong  …&url=https%3A%2F%2Fexample.com%2Fa.raw&checksum=304f…
               right  …&url=https%3A%2F%2Fexample.com%2Fa.raw&backingImageChecksum=304f…
  order      The documentation begins with backingImageDataSourceType. Any order is
             valid. Longhorn and encode write the keys in alphabetical order.
               bi://backing?backingImage=a1&backingImageDataSourceType=export-from-volume&export-type=raw&volume-name=vm1
  escapes    The documentation escapes values, and so does encode. Longhorn does not
             escape what it writes, so it cannot read its own handles with & + # % or ;
             in a value. When it reads, "+" is a space.
               wrong  …&url=https://example.com/a.raw?x=1&y=2
               right  …&url=https%3A%2F%2Fexample.com%2Fa.raw%3Fx%3D1%26y%3D2
  type       The documentation once has "export-form-volume". The correct type is
             "export-from-volume".

Parts that Longhorn silently ignores, such as everything after a "#", are errors.`,
		Example: `  backing-image-manager handle decode 'bi://backing?backingImage=a1&backingImageDataSourceType=upload'
  backing-image-manager handle encode --backing-image a1 --type download --url https://example.com/a.raw`,
	}
	cmd.AddCommand(newHandleDecode(), newHandleEncode())
	return cmd
}

func newHandleDecode() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "decode HANDLE [flags]",
		Short: "Print the fields of a handle and the image that it declares",
		Long: `Prints the fields of a handle and, as configuration of this program, the image that it
declares if no other file declares an image of that name. User info and query of an
address are left out, unless --show-secrets is given.

Exit status: 1 if a config directory with this handle would be invalid.`,
		Example: `  backing-image-manager handle decode 'bi://backing?backingImage=a1&backingImageDataSourceType=download&url=https%3A%2F%2Fexample.com%2Fa.raw'
  backing-image-manager handle decode "$(kubectl get volumesnapshotcontent a1 -o jsonpath={.spec.source.snapshotHandle})" -o json`,
		Args: exactArgs("HANDLE"),
	}
	var secrets bool
	cmd.Flags().BoolVar(&secrets, "show-secrets", false, "print addresses with user info and query")
	format := outputFlag(cmd, report.Text, report.JSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		h, err := manifest.ParseHandle(args[0])
		if err != nil {
			return err
		}
		declared, problems := declaredBy(cmd.Context(), cmd.ErrOrStderr(), args[0], h)
		view := viewHandle(h, declared, secrets)
		view.wrong = problems != nil
		if view.hidden {
			fmt.Fprintln(cmd.ErrOrStderr(), "warning: the user info or the query of an address is left out: --show-secrets prints it")
		}
		if format.value == report.JSON {
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
		Long: `Prints the handle of an image, for the snapshotHandle of a VolumeSnapshotContent.
If Longhorn has no image of that name, it creates one by download or by
export-from-volume. Longhorn needs the parameters of the source only for these two
types, and only if the image does not exist yet.

Exit status: 1 if a config directory with this handle would be invalid. The handle is
printed even then.`,
		Example: `  backing-image-manager handle encode --backing-image a1 --type download --url https://example.com/a.raw --checksum "$(sha512sum a.raw | cut -d' ' -f1)"
  backing-image-manager handle encode --backing-image a1 --type export-from-volume --volume-name vm1 --export-type qcow2`,
		Args: exactArgs(),
	}
	var h manifest.Handle
	var url, volume string
	cmd.Flags().StringVar(&h.BackingImage, "backing-image", "", "the `NAME` of the image")
	kind := choiceFlag(cmd, "type", "", "source type", "download", "export-from-volume", "upload", "restore", "clone")
	kind.value, cmd.Flags().Lookup("type").DefValue = "", "" // required
	cmd.Flags().StringVar(&h.Checksum, "checksum", "", "the `SHA-512` of the image, in hex")
	cmd.Flags().StringVar(&url, "url", "", "the `ADDRESS` to download from")
	cmd.Flags().StringVar(&volume, "volume-name", "", "the `NAME` of the volume to export")
	exportType := choiceFlag(cmd, "export-type", "", "format of the export", "raw", "qcow2")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		given := cmd.Flags().Changed
		if !given("backing-image") || !given("type") {
			return errors.New("name the image with --backing-image, and its source type with --type")
		}
		for flag, of := range map[string]string{"url": "download", "volume-name": "export-from-volume", "export-type": "export-from-volume"} {
			if given(flag) && kind.value != of {
				return fmt.Errorf("--%s is for --type %s", flag, of)
			}
		}
		h.SourceType, h.Parameters = kind.value, map[string]string{}
		if given("url") {
			h.Parameters["url"] = url
		}
		if given("volume-name") || given("export-type") {
			h.Parameters["volume-name"], h.Parameters["export-type"] = volume, exportType.value
		}
		text, err := h.Encode()
		if err != nil {
			return err
		}
		_, problems := declaredBy(cmd.Context(), cmd.ErrOrStderr(), text, h)
		_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
		return errors.Join(err, problems)
	}
	return cmd
}

// declaredBy returns the image that a handle declares, and the errors in the declaration. It loads
// a configuration that has only a manifest with the handle. A handle of some types declares no
// image, but refers to an existing image.
func declaredBy(ctx context.Context, errOut io.Writer, text string, h manifest.Handle) ([]load.Origin, error) {
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
	result := load.NewLoader().Load(ctx, configdir.Snapshot{Files: []configdir.File{
		{Path: "handle.json", Data: data},
		// The real configuration decides whether loopback addresses are allowed.
		{Path: "settings.yaml", Data: []byte("settings: {allowLoopbackSources: true}")},
	}})
	var problems []error
	for _, p := range result.Errors {
		problems = append(problems, errors.New(withoutPosition(p)))
	}
	for _, p := range result.Warnings {
		report.WriteLine(errOut, "warning: %s", withoutPosition(p))
	}
	images := slices.DeleteFunc(result.Origins(), func(o load.Origin) bool { return o.Section != "images" })
	return images, errors.Join(problems...)
}

// withoutPosition returns the text of a problem without its position in the manifest, because the
// user did not write the manifest.
func withoutPosition(p document.Problem) string {
	p.Position = document.Position{}
	if handle := (document.Path{"spec", "source", "snapshotHandle"}); p.Path.Within(handle) {
		p.Path = p.Path[len(handle):]
	}
	return p.String()
}

// handleView is the output of handle decode.
type handleView struct {
	manifest.Handle
	Images map[string]any `json:"images,omitempty"` // without the defaults
	hidden bool           // part of an address is left out
	wrong  bool           // the declaration of the image has errors
}

func viewHandle(h manifest.Handle, declared []load.Origin, secrets bool) handleView {
	v := handleView{Handle: h, Images: map[string]any{}}
	v.Parameters = map[string]string{}
	shown := func(value string) string {
		if clean := text.Redact(value); clean != value && !secrets {
			v.hidden = true
			return clean
		}
		return value
	}
	for key, value := range h.Parameters {
		v.Parameters[key] = shown(value)
	}
	for _, o := range declared {
		image := map[string]any{}
		for _, value := range o.Values {
			at, path := image, strings.Split(value.Path, ".")
			for _, field := range path[:len(path)-1] {
				if at[field] == nil {
					at[field] = map[string]any{}
				}
				at = at[field].(map[string]any)
			}
			at[path[len(path)-1]] = shown(value.Text)
		}
		v.Images[o.Name] = image
	}
	return v
}

// write prints a file for a config directory. The fields of the handle are a comment in it.
func (v handleView) write(w io.Writer) error {
	var b bytes.Buffer
	comment := func(key, value string) {
		if value != text.Line(value) {
			value = strconv.Quote(value)
		}
		report.WriteLine(&b, "# %s: %s", key, value)
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
		fmt.Fprintln(&b, "# It declares no image: an image of that name must exist.")
	default:
		if err := report.WriteYAML(&b, map[string]any{"images": v.Images}); err != nil {
			return err
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

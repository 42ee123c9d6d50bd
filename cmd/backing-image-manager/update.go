package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/track"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/edit"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

func newUpdate() *cobra.Command {
	u := &updater{}
	cmd := &cobra.Command{
		Use:   "update DIR [NAME]... [flags]",
		Short: "Write the newest versions of tracked images into the configuration",
		Long: `Finds the newest version of each image that has the field "track", or of the named images,
and writes it into the files of the config directory DIR. Only the values of url, index,
checksum, checksumURL and signatureURL change. All other bytes of the files stay, such as
comments.

An update never goes back in time. A checksum that changed although the version did not
is refused, until the image is named with --confirm. If the newest version has no checksum
yet, the version before it counts. If the command cannot change a value without changing
others, it prints the place and the lines to write.

If an image has the field "verify", or its tracker has keys, a key in --keys-dir must have
signed the vendor's lists. Lists without such a signature are not used. If an image is
refused, the others are updated. Managers ignore the field "track".

Exit status: 0 if each image is updated or up to date; 1 after an error, or if an image is refused.`,
		Example: `  backing-image-manager update config --dry-run
  backing-image-manager update config ubuntu-24.04
  backing-image-manager update config -o markdown >pull-request.md`,
		Args: needArgs("backing-image-manager update takes a config directory, and perhaps names of images"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return nil, cobra.ShellCompDirectiveFilterDirs
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
	}
	flags := cmd.Flags()
	u.warn = once(func(text string) { report.WriteLine(cmd.ErrOrStderr(), "warning: %s", text) })
	flags.BoolVar(&u.dryRun, "dry-run", false, "write no file")
	flags.StringArrayVar(&u.confirmed, "confirm", nil, "accept that the checksum of the image `NAME` changed although its version did not; may be repeated")
	u.secretFlags.add(cmd, "lists")
	format := outputFlag(cmd, report.Text, report.JSON, report.Markdown)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		limitGarbage()
		snapshot, err := readConfig(cmd.Context(), cmd.ErrOrStderr(), args[0])
		if err != nil {
			return err
		}
		result, err := u.run(cmd.Context(), args[0], snapshot, args[1:])
		if err != nil {
			return err
		}
		err = result.Write(cmd.OutOrStdout(), format.value)
		if n := result.Count(report.NotEdited); n > 0 {
			return errors.Join(err, fmt.Errorf("%s refused", report.Count(n, "image")))
		}
		return err
	}
	return cmd
}

// updater is a run of the command update.
type updater struct {
	secretFlags
	dryRun    bool
	confirmed []string
	warn      func(text string)
}

// maxResolving is how many images are resolved at the same time.
const maxResolving = 8

// run updates the named images, or all tracked images.
func (u *updater) run(ctx context.Context, dir string, s configdir.Snapshot, names []string) (report.Updates, error) {
	result := report.Updates{DryRun: u.dryRun, Images: []report.ImageUpdate{}}
	loaded := load.NewLoader().Load(ctx, s)
	if len(loaded.Errors) > 0 {
		return result, fmt.Errorf("the configuration is invalid: %s (run validate for all errors)", loaded.Errors[0])
	}
	names, err := u.tracked(loaded.Config, names)
	if err != nil {
		return result, err
	}
	found := u.resolve(ctx, loaded, names)
	if ctx.Err() != nil {
		return result, ctx.Err()
	}
	if err := u.edit(ctx, dir, s, loaded, found); err != nil {
		return result, err
	}
	for _, f := range found {
		result.Images = append(result.Images, f.ImageUpdate)
	}
	return result, nil
}

// tracked returns the names of the images to update, sorted.
func (u *updater) tracked(c schema.Config, names []string) ([]string, error) {
	var all []string
	for name, m := range c.Images {
		if m.Track != nil {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	for _, name := range slices.Concat(names, u.confirmed) {
		switch _, declared := c.Images[name]; {
		case !declared:
			var near []string
			if one, found := document.Nearest(name, slices.Collect(maps.Keys(c.Images))); found {
				near = append(near, one)
			}
			return nil, suggest(fmt.Errorf("image %q is not declared", name), near)
		case !slices.Contains(all, name):
			return nil, fmt.Errorf("image %q is not tracked: add the field track", name)
		}
	}
	if len(names) > 0 {
		all = slices.DeleteFunc(all, func(name string) bool { return !slices.Contains(names, name) })
	}
	return all, nil
}

// imageUpdate is the update of an image, and the values to write for it.
type imageUpdate struct {
	report.ImageUpdate
	values edit.Values
}

// resolve finds the newest versions of images.
func (u *updater) resolve(ctx context.Context, loaded load.Result, names []string) []imageUpdate {
	resolver := track.NewResolver(&fetch.Client{SecretsDir: u.secretsDir, KeysDir: u.keysDir, Warn: u.warn, AllowLoopback: loaded.Config.Settings.AllowLoopbackSources})
	declared := map[string]bool{} // images that declare their packing: it counts instead of the end of the address
	for _, o := range loaded.Origins() {
		for _, v := range o.Values {
			if o.Section == "images" && v.Path == "source.download.unpack" && v.Text != "auto" {
				declared[o.Name] = true
			}
		}
	}
	found := make([]imageUpdate, len(names))
	slots := make(chan struct{}, maxResolving)
	var wg sync.WaitGroup
	for i, name := range names {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			m := loaded.Config.Images[name]
			d := m.Source.Download
			tracked := track.Image{URL: d.URL, Checksum: m.Checksum, ChecksumURL: d.ChecksumURL, Credentials: d.Credentials,
				Verify: job.DownloadRequest(m).Verify}
			if declared[name] {
				tracked.Unpack = string(d.Unpack)
			}
			answer, err := resolver.Resolve(ctx, *m.Track, tracked)
			if r, ok := errors.AsType[*track.Refusal](err); ok && r.Reason == track.ChangedInPlace && slices.Contains(u.confirmed, name) {
				answer.Update, err = true, nil
			}
			found[i] = newImageUpdate(name, m, answer, err)
		})
	}
	wg.Wait()
	return found
}

func newImageUpdate(name string, m schema.Image, answer track.Answer, err error) imageUpdate {
	d := m.Source.Download
	u := imageUpdate{ImageUpdate: report.ImageUpdate{Image: name, Result: report.UpToDate, Incomplete: answer.PassedOver,
		From: report.NewImageVersion(answer.Pinned, d.URL, m.Checksum.String())}}
	if err != nil {
		u.refuse("unreadable", err.Error())
		if r, ok := errors.AsType[*track.Refusal](err); ok {
			u.Reason = string(r.Reason)
		}
		return u
	}
	if !answer.Update {
		return u
	}
	u.Result, u.To = report.Updated, report.NewImageVersion(answer.Version, answer.URL, answer.Checksum.String())
	u.values = edit.Values{URL: answer.URL, Index: d.Index, Checksum: answer.Checksum, ChecksumURL: answer.ChecksumURL, SignatureURL: answer.SignatureURL}
	if reason, message := mustStay(m, answer); reason != "" {
		u.refuse(reason, reason+": "+message)
	} else if d.Index != "" {
		u.values.Index = answer.URL + strings.TrimPrefix(d.Index, d.URL)
	}
	return u
}

// mustStay returns why a declared value may not fit the new version, although the command does not change it. An
// empty reason: all values fit.
func mustStay(m schema.Image, a track.Answer) (reason, message string) {
	d := m.Source.Download
	moved := a.URL != d.URL
	switch {
	case moved && strings.ContainsAny(d.URL, "?#"):
		return "pinned-query", "the declared address has a query or a fragment, which may not fit another file: change the address by hand"
	case m.UUIDDeclared:
		return "pinned-uuid", "the declared uuid belongs to the declared version: remove it"
	case moved && len(d.Mirrors) > 0:
		return "pinned-mirrors", "the mirrors have the declared version: remove them, or change them by hand"
	case !d.PackedChecksum.IsZero():
		return "pinned-packed-checksum", "packedChecksum belongs to the declared version: remove it"
	case moved && d.Index != "" && !strings.HasPrefix(d.Index, d.URL):
		return "pinned-index", "the address of the index does not begin with the address of the image: change the index by hand"
	}
	return "", ""
}

func (u *imageUpdate) refuse(reason, message string) {
	u.Result, u.Reason, u.Message = report.NotEdited, reason, message
}

// edit writes the new values, and sets the places or the refusals of the images.
func (u *updater) edit(ctx context.Context, dir string, s configdir.Snapshot, loaded load.Result, found []imageUpdate) error {
	wanted := map[string]edit.Values{}
	for _, f := range found {
		if f.Result == report.Updated {
			wanted[f.Image] = f.values
		}
	}
	edited, err := edit.Edit(ctx, s, loaded, wanted)
	if err != nil {
		return err
	}
	for i, f := range found {
		if refusal := edited.Refused[f.Image]; refusal != nil {
			found[i].refuse("not-editable", "not-editable: "+refusal.Error())
		}
		for _, place := range edited.Places[f.Image] {
			found[i].Places = append(found[i].Places, place.String())
		}
	}
	if u.dryRun {
		return nil
	}
	return edit.Write(dir, s, edited.Files)
}

package main

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/seed-26586806/backing-image-manager/fetch/backup"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// warnOfMissing tells of what a run would miss on this machine, as far as a look at it
// shows that: a plan does not depend on it, and the run would fail.
func (c *convergence) warnOfMissing(d reconcile.Desired, p reconcile.Plan) {
	var said []string
	for _, a := range p.Actions {
		image, declared := d.Config.Images[a.Image]
		if !declared || a.Idle() || a.Node != d.Node {
			continue
		}
		secrets, store := needs(a.Kind, image)
		for _, why := range []string{c.missingSecret(secrets), missingStore(store)} {
			if text := fmt.Sprintf("warning: image %s: %s\n", a.Image, why); why != "" && !slices.Contains(said, text) {
				said = append(said, text)
				fmt.Fprint(c.err, text)
			}
		}
	}
}

// needs are the folder of secrets and the backup store that an action goes to.
func needs(kind reconcile.Kind, image schema.Image) (secrets, store string) {
	s := image.Source
	switch {
	case kind == reconcile.Backup && image.Backup != nil:
		return image.Backup.Credentials, image.Backup.Target
	case kind == reconcile.Download && s.Download != nil:
		return s.Download.Credentials, ""
	case kind == reconcile.Restore && s.Restore != nil:
		target, _, _ := backup.ParseURL(s.Restore.BackupURL) // the schema has read it
		return s.Restore.Credentials, target
	case kind == reconcile.Clone && s.Clone != nil && s.Clone.Encryption != schema.EncryptionIgnore:
		return s.Clone.Secret, ""
	}
	return "", ""
}

func (c *convergence) missingSecret(name string) string {
	switch {
	case name == "":
		return ""
	case c.secretsDir == "":
		return fmt.Sprintf("it needs the secrets %q: give their directory with --secrets-dir", name)
	}
	if _, err := os.Stat(filepath.Join(c.secretsDir, name)); err != nil {
		return fmt.Sprintf("it needs the secrets %q: %v", name, err)
	}
	return ""
}

func missingStore(target string) string {
	u, err := url.Parse(target)
	if err != nil || !slices.Contains([]string{"", "file", "vfs"}, u.Scheme) || u.Path == "" {
		return ""
	}
	if _, err := os.Stat(u.Path); err != nil {
		return fmt.Sprintf("its backup store is missing: %v: mount it there, or make the folder", err)
	}
	return ""
}

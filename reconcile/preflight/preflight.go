// Package preflight finds what a machine lacks for the actions of a plan: credentials, keys and backup stores. A plan does not
// depend on them, but its actions would fail.
package preflight

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/backup"
	"github.com/seed-26586806/backing-image-manager/fetch/signature"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Machine is where the actions of one node are executed.
type Machine struct {
	SecretsDir string // with the folders of credentials; "": none
	KeysDir    string // with the folders of keys; "": none
}

// Check returns an error for each requirement of the plan p that the machine lacks. The machine is the node of d.
func (m Machine) Check(d plan.Desired, p plan.Plan) (missing []error) {
	known := map[string]bool{}
	for _, a := range p.Actions {
		image, declared := d.Config.Images[a.Image]
		if !declared || a.Idle() || a.Node != d.Node {
			continue
		}
		for _, err := range m.check(a.Op, image) {
			if err = fmt.Errorf("image %s: %w", a.Image, err); !known[err.Error()] {
				known[err.Error()] = true
				missing = append(missing, err)
			}
		}
	}
	return missing
}

// check returns the errors for one action.
func (m Machine) check(op model.Op, image schema.Image) []error {
	var errs []error
	s := image.Source
	switch {
	case op == model.Backup && image.Backup != nil:
		errs = []error{m.checkSecret(image.Backup.Credentials), checkStore(image.Backup.Target)}
	case op == model.Download && s.Download != nil:
		errs = []error{m.checkSecret(s.Download.Credentials), m.checkKeys(image.Verify)}
	case op == model.Restore && s.Restore != nil:
		target, _, _ := backup.ParseURL(s.Restore.BackupURL) // the schema has checked it
		errs = []error{m.checkSecret(s.Restore.Credentials), checkStore(target)}
	case op == model.Clone && s.Clone != nil && s.Clone.Encryption != schema.EncryptionIgnore:
		errs = []error{m.checkSecret(s.Clone.Secret)}
	}
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

// checkSecret checks that a folder of credentials exists. Without a name, none is used.
func (m Machine) checkSecret(name string) error {
	switch {
	case name == "":
		return nil
	case m.SecretsDir == "":
		return fmt.Errorf("it needs the credentials %q: name their directory with --secrets-dir", name)
	}
	if _, err := os.Stat(filepath.Join(m.SecretsDir, name)); err != nil {
		return fmt.Errorf("it needs the credentials %q: %w: provide this folder", name, err)
	}
	return nil
}

// checkKeys checks that a folder with keys exists, and that its keys can be used.
func (m Machine) checkKeys(v *schema.Verify) error {
	switch {
	case v == nil:
		return nil
	case m.KeysDir == "":
		return fmt.Errorf("it needs the keys %q: name their directory with --keys-dir", v.Keys)
	}
	_, err := signature.ReadKeys(filepath.Join(m.KeysDir, v.Keys), signature.Scheme(v.Scheme))
	return err
}

// checkStore checks a backup target that is a folder of this machine.
func checkStore(target string) error {
	u, err := url.Parse(target)
	if err != nil || !slices.Contains([]string{"", "file", "vfs"}, u.Scheme) || u.Path == "" {
		return nil
	}
	if _, err := os.Stat(u.Path); err != nil {
		return fmt.Errorf("its backup store is missing: %w: mount it there, or make the folder", err)
	}
	return nil
}

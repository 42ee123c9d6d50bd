package commit

import (
	"path/filepath"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/signature"
)

// SSH is the scheme of a Result for a commit that an SSH key signed. Its Signer is the principals of the key.
const SSH signature.Scheme = "ssh"

// Keys are the keys that may sign commits. Keys is safe for concurrent use.
type Keys struct {
	openPGP *signature.Keys // nil: none
	ssh     []allowedSigner
}

// allowedSigners is the name of the file with SSH keys.
const allowedSigners = "allowed_signers"

// ReadKeys reads the folder dir. It ignores files with other names than allowed_signers, *.asc and *.gpg. Errors are a
// *signature.Error.
func ReadKeys(dir string) (*Keys, error) {
	files, err := signature.KeyFiles(dir)
	if err != nil {
		return nil, err
	}
	k := &Keys{}
	var openPGP []signature.KeyFile
	for _, f := range files {
		switch {
		case f.Name == allowedSigners:
			if k.ssh, err = parseAllowedSigners(f.Bytes); err != nil {
				return nil, err
			}
		case filepath.Ext(f.Name) == ".asc" || filepath.Ext(f.Name) == ".gpg":
			openPGP = append(openPGP, f)
		}
	}
	if len(openPGP) > 0 {
		if k.openPGP, err = signature.NewKeys(signature.OpenPGP, openPGP); err != nil {
			return nil, err
		}
	}
	if k.openPGP == nil && len(k.ssh) == 0 {
		return nil, signature.Errorf(signature.NoKeys, "folder %s contains neither %s nor a file *.asc or *.gpg: put the keys there",
			dir, allowedSigners)
	}
	return k, nil
}

// Verify judges the signature of a commit object. The date of the commit decides whether the key was valid. Therefore this
// date must not be more than MaxSkew later than now, or than the date of an OpenPGP signature. Errors are a *signature.Error.
func (k *Keys) Verify(object []byte, now time.Time) (signature.Result, error) {
	o, err := parse(object)
	if err != nil {
		return signature.Result{}, err
	}
	r, err := k.verify(o, now)
	switch dated := o.committed.Add(-signature.MaxSkew); {
	case err != nil:
		return signature.Result{}, err
	case dated.After(now):
		return signature.Result{}, signature.Errorf(signature.FromFuture, "the commit is dated %s, ahead of the clock of this node", o.committed.Format(time.RFC3339))
	case dated.After(r.Time):
		return signature.Result{}, signature.Errorf(signature.OlderThanCommit, "it is dated %s, before the commit, which is dated %s", r.Time.Format(time.RFC3339), o.committed.Format(time.RFC3339))
	}
	return r, nil
}

func (k *Keys) verify(o object, now time.Time) (signature.Result, error) {
	if o.isSSH() {
		const namespace = "git"
		signer, err := verifySSH(k.ssh, o.signed, o.signature, namespace, o.committed)
		return signature.Result{Scheme: SSH, Signer: signer.principals, Time: o.committed}, err
	}
	if k.openPGP == nil {
		return signature.Result{}, signature.Errorf(signature.UnknownKey,
			"the commit has an OpenPGP signature, and the folder contains no OpenPGP key")
	}
	v, err := k.openPGP.NewVerifier(o.signature, "", now)
	if err != nil {
		return signature.Result{}, err
	}
	v.Write(o.signed) // a hash returns no error
	return v.Verify()
}

package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/checksum"
	"github.com/seed-26586806/backing-image-manager/fetch/signature"
)

// Verify declares who must have signed the image of a Request.
type Verify struct {
	Scheme       signature.Scheme
	Keys         string // name of a folder below Client.KeysDir
	SignatureURL string // empty: the signature is in the list, or beside the signed file where the scheme expects it
	// SignsFile: the file at Request.URL is signed, not unpacked. Otherwise the list at Request.ChecksumURL is
	// signed.
	SignsFile bool
}

// verification is the state of the verification of one image by a signature.
type verification struct {
	by       signature.Result // who signed the list
	warnings []string

	needsPacked bool // only the bytes of the packed file are signed

	newVerifier func() (*signature.Verifier, error) // for the signature of a file; nil: the list is signed
	verifier    *signature.Verifier                 // for the bytes since the last call of begin
	err         error                               // of newVerifier
}

// ReadSignature reads the signature that r.Verify declares, and judges the signature of a list. It returns the request
// for Download. The digests that r does not declare come from the signed bytes of the list. If r.Verify is nil, it
// returns r.
//
// The errors are those of Download. Without a valid signature, the class is BadSource and the error wraps a
// *signature.Error. For missing or damaged keys, the class is BadConfig. If the list has another checksum than r, the
// error wraps a *disk.ChecksumError.
func (c *Client) ReadSignature(ctx context.Context, r Request) (Request, error) {
	v := r.Verify
	if v == nil {
		return r, nil
	}
	keys, err := c.keys(v.Keys, v.Scheme)
	if err != nil {
		return r, err
	}
	t, err := c.newTransfer(r, nil)
	if err != nil {
		return r, err
	}
	defer t.net.close()
	r.signed = &verification{warnings: keys.Warnings()}
	now := c.clock()
	if !v.SignsFile {
		return t.readSignedList(ctx, r, keys, now)
	}
	at, err := v.signatureAddress(t.addresses[0])
	if err != nil {
		return r, rejected(t.addresses[0], err)
	}
	sig, err := t.readSmall(ctx, at)
	if err != nil {
		return r, fmt.Errorf("read signature: %w", err)
	}
	name := t.addresses[0].base()
	r.signed.newVerifier = func() (*signature.Verifier, error) { return keys.NewVerifier(sig, name, now) }
	r.signed.needsPacked = r.IsPacked()
	if _, err := r.signed.newVerifier(); err != nil { // no bytes could make it valid
		return r, rejected(at, err)
	}
	return r, nil
}

func (c *Client) clock() time.Time {
	if c.now != nil {
		return c.now()
	}
	return time.Now()
}

// rejected returns the error for an invalid signature. a is the address of the signature, or of the signed file.
func rejected(a address, err error) error {
	return &Error{Class: BadSource, URL: a.String(), Err: fmt.Errorf("signature: %w", err)}
}

// KeyWarnings returns, after ReadSignature, one line for each file that should not be in the folder with the keys.
func (r Request) KeyWarnings() []string {
	if r.signed == nil {
		return nil
	}
	return r.signed.warnings
}

// NeedsPackedFile reports, after ReadSignature, whether only the bytes of the packed file are signed. Then an index
// does not help, because it describes the unpacked image.
func (r Request) NeedsPackedFile() bool { return r.signed != nil && r.signed.needsPacked }

// errNotRead is a mistake of the caller. The image is rejected.
var errNotRead = errors.New("the signature was not read before the download")

// SignatureCheck returns the check for the partial file of r. Call it after ReadSignature and LookUpChecksum.
func (r Request) SignatureCheck() disk.SignatureCheck {
	v := r.signed
	switch {
	case r.Verify == nil:
		return disk.SignatureCheck{Digest: r.alsoStored}
	case v == nil:
		return disk.SignatureCheck{End: func() (model.Signature, error) { return model.Signature{}, errNotRead }}
	case v.newVerifier == nil || v.needsPacked:
		return disk.SignatureCheck{Digest: r.alsoStored, End: v.end}
	}
	return disk.SignatureCheck{Digest: r.alsoStored, Begin: v.begin, End: v.end}
}

// begin starts the verification of a file. It returns a writer for its bytes.
func (v *verification) begin() io.Writer {
	if v.verifier, v.err = v.newVerifier(); v.err != nil {
		return io.Discard
	}
	return v.verifier
}

// end returns the verified signature.
func (v *verification) end() (model.Signature, error) {
	by, err := v.by, v.err
	switch {
	case v.newVerifier == nil || err != nil:
	case v.verifier == nil:
		err = errNotRead
	default:
		by, err = v.verifier.Verify()
	}
	if err != nil {
		return model.Signature{}, err
	}
	return model.Signature{Scheme: string(by.Scheme), Signer: by.Signer, Time: by.Time.UTC(), Warning: string(by.Warning)}, nil
}

// keys reads a folder with keys below KeysDir.
func (c *Client) keys(name string, scheme signature.Scheme) (*signature.Keys, error) {
	switch {
	case c.KeysDir == "":
		return nil, Errorf(BadConfig, "the keys %q are declared: name their directory with --keys-dir", name)
	case name == "" || name == "." || name == ".." || filepath.Base(name) != name:
		return nil, Errorf(BadConfig, "%q is not the name of a folder with keys: use a name without slashes", name)
	}
	keys, err := signature.ReadKeys(filepath.Join(c.KeysDir, name), scheme)
	if err != nil {
		return nil, &Error{Class: BadConfig, Err: err}
	}
	return keys, nil
}

// readSignedList judges the signature of the list, and adds the digests in the signed list to r.
func (t *transfer) readSignedList(ctx context.Context, r Request, keys *signature.Keys, now time.Time) (Request, error) {
	list, err := parseAddress(r.ChecksumURL)
	if err != nil {
		return r, err
	}
	b, err := t.readSmall(ctx, list)
	if err != nil {
		return r, fmt.Errorf("look up checksum: %w", err)
	}
	signed, by, err := r.Verify.list(keys, b, list, now, func(at address) ([]byte, error) { return t.readSmall(ctx, at) })
	if err != nil {
		return r, err
	}
	without := checksum.Named
	if !r.Digest.IsZero() || !r.PackedDigest.IsZero() { // the declared digest shows that the list belongs to the image
		without = checksum.Renamed
	}
	found, err := t.lookUp(signed, list, without)
	if err != nil {
		return r, fmt.Errorf("look up checksum: %w", err)
	}
	r.signed.by, r.signed.needsPacked = by, len(found.Stored) == 0
	if err := r.require(found); err != nil {
		return r, &Error{Class: BadSource, URL: list.String(), Err: fmt.Errorf("the signed list has another checksum than the declaration: %w", err)}
	}
	return r, nil
}

// VerifyList returns the signed bytes of a list that was read from addr. If the list does not contain its signature,
// VerifyList calls read with the address of the signature. Without a valid signature, the error wraps a *signature.Error.
// Other errors are those of read, or an *Error for keys or an address.
func (c *Client) VerifyList(v Verify, list []byte, addr string, read func(addr string) ([]byte, error)) (signed []byte, err error) {
	keys, err := c.keys(v.Keys, v.Scheme)
	if err != nil {
		return nil, err
	}
	at, err := parseAddress(addr)
	if err != nil {
		return nil, err
	}
	signed, _, err = v.list(keys, list, at, c.clock(), func(at address) ([]byte, error) { return read(at.raw) })
	return signed, err
}

// list returns the signed bytes of the checksum list b from address list, and who signed it. read reads a signature.
func (v Verify) list(keys *signature.Keys, b []byte, list address, now time.Time, read func(address) ([]byte, error)) (signed []byte,
	by signature.Result, err error) {
	if v.SignatureURL == "" && v.isEmbedded(b) {
		if signed, by, err = keys.VerifyEmbedded(b, now); err != nil {
			return nil, by, rejected(list, err)
		}
		return signed, by, nil
	}
	at, err := v.signatureAddress(list)
	if err != nil {
		return nil, by, rejected(list, err)
	}
	sig, err := read(at)
	if err != nil {
		return nil, by, fmt.Errorf("read signature: %w", err)
	}
	if by, err = keys.VerifyList(b, sig, list.base(), now); err != nil {
		return nil, by, rejected(list, err)
	}
	return b, by, nil
}

// isEmbedded reports whether a list contains its signature, by the line with which the scheme marks it.
func (v Verify) isEmbedded(list []byte) bool {
	mark := map[signature.Scheme]string{signature.OpenPGP: "-----BEGIN PGP SIGNED MESSAGE-----", signature.Signify: "untrusted comment:"}[v.Scheme]
	return mark != "" && bytes.Contains(list, []byte(mark))
}

// signatureSuffixes are the suffixes that the programs themselves use. OpenPGP and cosign have several, so their
// address must be declared.
var signatureSuffixes = map[signature.Scheme]string{signature.Minisign: ".minisig", signature.Signify: ".sig"}

// signatureAddress returns the address of the signature of the file at an address.
func (v Verify) signatureAddress(file address) (address, error) {
	if v.SignatureURL != "" {
		return parseAddress(v.SignatureURL)
	}
	suffix := signatureSuffixes[v.Scheme]
	if suffix == "" {
		return address{}, signature.Errorf(signature.Unsigned, "the file contains no signature: declare signatureURL")
	}
	beside := *file.url
	beside.Path, beside.RawPath = beside.Path+suffix, ""
	raw := beside.String()
	if file.force != "" {
		raw = file.force + "::" + raw
	}
	return parseAddress(raw)
}

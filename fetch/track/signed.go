package track

import (
	"context"
	"errors"
	"net/url"
	"path"
	"strings"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/signature"
)

// readList returns the list at an address. If m needs a signature, the document has only the signed bytes of the list, and
// without a valid signature the error is a *Refusal.
func (r *Resolver) readList(ctx context.Context, addr string, m Image) (*doc, error) {
	plain, err := r.read(ctx, addr, m.Credentials)
	if m.Verify == nil {
		return plain, err
	}
	if errors.Is(err, fetch.ErrNoDocument) && strings.HasSuffix(addr, ".sjson") {
		return nil, &Refusal{Reason: Unsigned, Err: err}
	}
	if err != nil {
		return nil, err
	}
	v := *m.Verify
	if v.SignsFile {
		return nil, refuse(Unsigned, "the signature of the image is that of the file, and the list has none: change it by hand")
	}
	if v.SignatureURL != "" {
		if v.SignatureURL, err = signatureOf(addr, m); err != nil {
			return nil, err
		}
	}
	return r.load(ctx, docKey{addr, m.Credentials, v}, func() (fetch.Document, error) {
		text, err := r.client.VerifyList(v, plain.Data, addr, func(at string) ([]byte, error) {
			d, err := r.read(ctx, at, m.Credentials)
			if errors.Is(err, fetch.ErrNoDocument) {
				return nil, signature.Errorf(signature.Unsigned, "the list has no signature: %v", err)
			}
			if err != nil {
				return nil, err
			}
			return d.Data, nil
		})
		if e, ok := errors.AsType[*signature.Error](err); ok {
			err = &Refusal{Reason: Reason(e.Reason), Err: errors.New(e.Text)}
		}
		return fetch.Document{Data: text, From: plain.From}, err
	})
}

// signatureOf returns the address of the signature of the list at an address. It is named like the declared signature of the
// declared list, which may be in another folder, or have the name of another file in its own. Its query may be a secret, which
// another server does not get.
func signatureOf(list string, m Image) (string, error) {
	at, err := url.Parse(list)
	declared, err2 := url.Parse(m.Verify.SignatureURL)
	if err := errors.Join(err, err2); err != nil {
		return "", refuse(ForeignAddress, "the address of the list or of its signature is not a URL")
	}
	bases := []string{path.Base(at.Path)}
	if u, err := url.Parse(m.ChecksumURL); err == nil && m.ChecksumURL != "" {
		bases = append(bases, path.Base(u.Path))
	}
	for _, base := range bases {
		suffix, ok := strings.CutPrefix(path.Base(declared.Path), base)
		if ok && strings.HasPrefix(suffix, ".") {
			at.Path, at.RawPath, at.RawQuery = at.Path+suffix, "", ""
			if at.Scheme == declared.Scheme && at.Host == declared.Host {
				at.RawQuery = declared.RawQuery
			}
			return at.String(), nil
		}
	}
	return "", refuse(Unsigned, "the name of the signature at signatureURL is not that of the list and an extension")
}

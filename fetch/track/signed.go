package track

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/signature"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
)

// readList returns the list at an address. file is the name of the listed file, for schema.Track.Signature. If m needs a
// signature, the document has only the signed bytes of the list. Without a valid signature, the error is a *Refusal.
func (r *Resolver) readList(ctx context.Context, addr, file string, m Image) (*doc, error) {
	if m.Verify == nil {
		return r.read(ctx, addr, m.Credentials)
	}
	v, err := *m.Verify, error(nil)
	switch {
	case m.signature != "": // an address, or a name beside the list
		at, errAt := url.Parse(addr)
		if errAt == nil {
			at, errAt = at.Parse(strings.ReplaceAll(m.signature, "{file}", file))
		}
		if errAt != nil { // errAt has the whole address
			return nil, refuse(ForeignAddress, "the address of the list or of its signature is not a URL")
		}
		v.SignatureURL = at.String()
	case v.SignsFile && m.ChecksumURL == "":
		return nil, refuse(Unsigned, "source.download.checksumURL is missing, so signatureURL belongs to the file, and no list is signed: declare checksumURL, or keys in track")
	case v.SignsFile:
		return nil, refuse(Unsigned, "the declared signature signs the file, not the list: declare keys in track, or change the image by hand")
	case v.SignatureURL != "":
		v.SignatureURL, err = signatureOf(addr, m)
	}
	if err != nil {
		return nil, err
	}
	return r.readSigned(ctx, addr, m.Credentials, v)
}

// readSigned returns the signed bytes of the list at an address.
func (r *Resolver) readSigned(ctx context.Context, addr, credentials string, v fetch.Verify) (*doc, error) {
	plain, err := r.read(ctx, addr, credentials)
	if errors.Is(err, fetch.ErrNoDocument) && strings.HasSuffix(addr, ".sjson") {
		return nil, &Refusal{Reason: Unsigned, Err: err}
	}
	if err != nil {
		return nil, err
	}
	return r.load(docKey{addr, credentials, v}, func() (fetch.Document, error) {
		text, err := r.client.VerifyList(v, plain.Data, addr, func(at string) ([]byte, error) {
			d, err := r.read(ctx, at, credentials)
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

// signatureOf returns the address of the signature of a list: the address of the list with the extension of the
// declared signature. The declared signature has the name of this list, or of the declared list, before the extension.
// Its query may be a secret, so only its own server gets the query.
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
	return "", refuse(Unsigned, "the name in signatureURL is not the name of the list with an extension: declare keys and signature in track")
}

// follow sets a.ChecksumURL and a.SignatureURL for a new version of m. The address of an unsigned list changes only
// if the new list has the checksum of the new file. A signed list must have that checksum.
func (r *Resolver) follow(ctx context.Context, m Image, a *Answer) error {
	a.ChecksumURL, a.SignatureURL = a.moved(m.ChecksumURL), a.moved(a.SignatureURL)
	v, signed := m.Verify, m.Verify != nil && !m.Verify.SignsFile
	if v != nil && v.SignsFile && v.SignatureURL != "" {
		if _, err := r.read(ctx, a.SignatureURL, m.Credentials); err != nil || a.SignatureURL == v.SignatureURL {
			return refuse(PinnedSignatureURL, "there is no signature of %s at %s: wait, or change signatureURL by hand", a.Version, text.RedactURL(a.SignatureURL))
		}
	}
	if m.ChecksumURL == "" || !signed && a.ChecksumURL == m.ChecksumURL {
		return nil
	}
	list, err := r.read(ctx, a.ChecksumURL, m.Credentials)
	if signed {
		of := *v
		of.SignatureURL = a.SignatureURL
		list, err = r.readSigned(ctx, a.ChecksumURL, m.Credentials, of)
	}
	if _, refused := errors.AsType[*Refusal](err); refused || ctx.Err() != nil {
		return err
	}
	if err == nil {
		var sums []ident.Digest
		sums, err = listedChecksums(list.Data, a.ChecksumURL, a.URL, m)
		switch {
		case slices.Contains(sums, a.Checksum):
			return nil
		case contradicts(sums, a.Checksum):
			return refuse(Ambiguous, "the list at the new checksumURL has another checksum for %s than the tracker", a.Version)
		}
		err = cmp.Or(err, errors.New("it has no checksum of the same algorithm"))
	}
	if signed {
		return refuse(PinnedChecksumURL, "the list at checksumURL does not vouch for %s: %w: wait, or change checksumURL and signatureURL by hand", a.Version, err)
	}
	a.ChecksumURL = m.ChecksumURL
	return nil
}

// moved returns an address with the new version in its path in place of the declared version. A part of the version is
// replaced only where no digit is directly before or after it: "12" is not replaced in "112".
func (a Answer) moved(addr string) string {
	u, err := url.Parse(addr)
	if err != nil {
		return addr
	}
	path := u.Path
	for i := 0; i < len(path); i++ {
		for j, part := range a.from[:min(len(a.from), len(a.to))] {
			after, ok := strings.CutPrefix(path[i:], part)
			if ok && part != "" && (i == 0 || !isDigit(path[i-1])) && (after == "" || !isDigit(after[0])) {
				path = path[:i] + a.to[j] + after
				i += len(a.to[j]) - 1
				break
			}
		}
	}
	if path != u.Path {
		u.Path, u.RawPath = path, ""
		return u.String()
	}
	return addr
}

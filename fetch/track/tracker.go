package track

import (
	"context"
	"encoding/json"
	"net/url"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/signature"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Image is what the configuration declares about a tracked image.
type Image struct {
	URL         string       // empty: none
	Checksum    ident.Digest // zero: none
	ChecksumURL string       // of the checksum list; empty: none
	Credentials string       // name of a folder of the client's secrets; empty: none
	Unpack      string       // like fetch.Request.Unpack
	// Verify declares who must have signed the image, and the lists of a tracker without keys; nil: nobody. If it is set,
	// unsigned text is not used.
	Verify    *fetch.Verify
	signature string // like schema.Track.Signature, if Verify has the keys of the tracker
}

// path returns the path of the declared address, without escapes.
func (m Image) path() string {
	u, err := url.Parse(m.URL)
	if err != nil {
		return ""
	}
	return u.Path
}

// Release is a published version of an image.
type Release struct {
	Version  string // for people; empty if the tracker has none
	URL      string
	Checksum ident.Digest // of the unpacked file
}

// Answer is the newest release of a tracked image.
type Answer struct {
	Release
	// Update is true if the declaration must change. If it is false, Release is what is declared.
	Update bool
	// Pinned is the declared version, or empty if it is unknown.
	Pinned string
	// ChecksumURL and SignatureURL are the addresses that belong to URL in the declaration.
	ChecksumURL, SignatureURL string
	// PassedOver are newer versions without a checksum: their upload is probably not complete.
	PassedOver []string

	from, to version // the parts of Pinned (nil: unknown) and of Release.Version
}

// Resolver finds releases. It keeps each document that it read, so use a new Resolver for each command. It is safe for
// concurrent use.
type Resolver struct {
	client  *fetch.Client
	maxTime time.Duration // for each document

	mu   sync.Mutex
	kept int                             // bytes of all documents
	docs map[docKey]func() (*doc, error) // reads a document once
}

// docKey identifies a document: credentials may change its content, and so does the verification of its signature.
type docKey struct {
	url, credentials string
	verify           fetch.Verify // zero: the document as it was read
}

// doc is a document that was read.
type doc struct {
	fetch.Document
	// products parses a product file of simplestreams, once for all images in it.
	products func() (map[string]json.RawMessage, error)
}

// NewResolver returns a Resolver that reads documents with a client.
func NewResolver(c *fetch.Client) *Resolver {
	return &Resolver{client: c, maxTime: maxTime, docs: map[docKey]func() (*doc, error){}}
}

const (
	// maxDocument is the maximum size of a document. The product file of all releases of Ubuntu has about 5 MiB.
	maxDocument = 16 << 20
	// maxTime limits the time for a document, with all attempts. A server may send it slowly.
	maxTime = 5 * time.Minute
	// maxKept limits the documents that a Resolver keeps.
	maxKept = 64 << 20
)

// Resolve returns the newest release that t publishes for m. Every error is a *Refusal, or the error of ctx.
func (r *Resolver) Resolve(ctx context.Context, t schema.Track, m Image) (Answer, error) {
	lists := m
	if t.Keys != "" {
		lists.Verify, lists.signature = &fetch.Verify{Scheme: signature.OpenPGP, Keys: t.Keys}, t.Signature
		if m.Verify != nil {
			lists.Verify.Scheme = m.Verify.Scheme
		}
	}
	answer, err := r.resolve(ctx, t, lists)
	answer.ChecksumURL = m.ChecksumURL
	if m.Verify != nil {
		answer.SignatureURL = m.Verify.SignatureURL
	}
	if err == nil && answer.Update && answer.URL != m.URL {
		err = r.follow(ctx, m, &answer)
	}
	return answer, err
}

func (r *Resolver) resolve(ctx context.Context, t schema.Track, m Image) (Answer, error) {
	switch {
	case t.Simplestreams != nil:
		return r.simplestreams(ctx, *t.Simplestreams, m)
	case t.CoreOS != nil:
		return r.coreOS(ctx, *t.CoreOS, m)
	case t.Listing != nil:
		return r.listing(ctx, *t.Listing, m)
	case t.HTTP != nil:
		return r.http(ctx, m)
	}
	panic("track: tracker without a kind")
}

// read returns the document at an address. A Resolver requests each address once.
func (r *Resolver) read(ctx context.Context, addr, credentials string) (*doc, error) {
	return r.load(docKey{url: addr, credentials: credentials}, func() (fetch.Document, error) {
		return r.request(ctx, addr, credentials)
	})
}

// load returns a document. It calls read, unless another call has read the document or does so now. All calls have the same context.
func (r *Resolver) load(k docKey, read func() (fetch.Document, error)) (*doc, error) {
	r.mu.Lock()
	load, known := r.docs[k]
	if !known {
		load = sync.OnceValues(func() (*doc, error) {
			document, err := read()
			r.forget(k, len(document.Data))
			return &doc{document, sync.OnceValues(func() (map[string]json.RawMessage, error) { return parseStreamsProducts(document.Data) })}, err
		})
		r.docs[k] = load
	}
	r.mu.Unlock()
	return load()
}

// request reads a document within the time limit.
func (r *Resolver) request(ctx context.Context, addr, credentials string) (fetch.Document, error) {
	limited, cancel := context.WithTimeout(ctx, r.maxTime)
	defer cancel()
	d, err := r.client.ReadDocument(limited, addr, credentials, maxDocument)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = refuse(Unreadable, "%s: the server did not send the document within %v", text.RedactURL(addr), r.maxTime)
	}
	return d, err
}

// forget removes a document of some bytes if the Resolver keeps too much.
func (r *Resolver) forget(k docKey, bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept+bytes > maxKept {
		delete(r.docs, k)
		return
	}
	r.kept += bytes
}

// parseBase parses the address of a folder, such as the address of a tracker. The result has no query, and its path
// ends with a slash.
func parseBase(addr string) (*url.URL, error) {
	u, err := url.Parse(addr)
	if err != nil || u.Host == "" { // err has the whole address
		return nil, refuse(ForeignAddress, "the address of the tracker is not a URL")
	}
	u.RawQuery, u.Fragment, u.RawPath = "", "", ""
	if len(u.Path) == 0 || u.Path[len(u.Path)-1] != '/' {
		u.Path += "/"
	}
	return u, nil
}

// below returns the address of a path below a folder.
func below(base *url.URL, path string) *url.URL {
	u := *base
	u.Path += path
	return &u
}

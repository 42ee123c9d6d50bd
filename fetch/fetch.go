package fetch

import (
	"cmp"
	"context"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// Client downloads images. It is safe for concurrent use if its fields are not changed after the
// first use.
type Client struct {
	SecretsDir    string   // the folder that contains all credentials folders; empty: none
	KeysDir       string   // the folder that contains all folders with keys for signatures; empty: none
	FileRoots     []string // absolute paths of the folders below which file:// addresses are allowed
	AllowAnyFile  bool     // allow file:// addresses of all files, for one-shot commands
	AllowLoopback bool     // allow all hosts, also loopback and link-local hosts, for tests and demos
	UserAgent     string   // sent to servers; empty: "backing-image-manager"

	// Warn receives a text about unused files in a credentials folder, at each read of the folder; nil: no warnings.
	Warn func(text string)

	timing timing
	now    func() time.Time // the time for which signatures must be valid; nil: time.Now
}

// defaultUserAgent is used if Client.UserAgent is empty.
const defaultUserAgent = "backing-image-manager"

// timing contains all timeouts of a transfer. Tests use shorter ones.
type timing struct{ connect, firstByte, stall time.Duration }

var defaultTiming = timing{connect: 30 * time.Second, firstByte: time.Minute, stall: 30 * time.Second}

// Request is one image to download.
type Request struct {
	URL           string
	Mirrors       []string // alternative addresses of the same file, tried in order
	SkipAddresses int      // how many of URL and Mirrors to skip; at least one must remain

	// Index is the address of an index of the unpacked image, and Store the address of a chunk store with its chunks;
	// empty: none. Both have the rules and the credentials of URL. Index requires Digest, and Store requires Index.
	Index, Store string

	Credentials string // name of a folder below SecretsDir; empty: none
	ChecksumURL string // address of a SHA256SUMS or SHA512SUMS file, or of a file with one checksum

	Digest       ident.Digest // of the stored (unpacked) image; zero: not declared
	PackedDigest ident.Digest // of the packed file; zero: not declared
	// alsoStored and alsoPacked are digests in another algorithm, from the list at ChecksumURL; zero: none.
	alsoStored, alsoPacked ident.Digest
	Unpack                 string // "", "auto", "none", "gz", "xz", "zst" or "bz2"

	// Verify declares who must have signed the image; nil: nobody. If it is set, call ReadSignature before Download,
	// and open the partial file with SignatureCheck.
	Verify *Verify
	signed *verification // nil before ReadSignature

	MaxSize        int64 // maximum size of the stored image in bytes; 0: no limit
	BandwidthLimit int64 // bytes per second from the network; 0: no limit

	// Restart discards the bytes in the partial file, and prevents that bytes from several addresses
	// are combined. Set it for the attempt after a wrong checksum if the bytes were from several
	// responses (Progress.Joined), or if SkipAddresses changes.
	Restart bool
}

// CanResume reports whether a download may continue a partial file from this source. It returns true
// if the source has the same address, or if a digest or a strong ETag will detect a different file.
func (r Request) CanResume(o disk.PartSource) bool {
	for _, raw := range append([]string{r.URL}, r.Mirrors...) {
		if (address{raw: strings.TrimSpace(raw)}).id() == o.ID {
			return true
		}
	}
	if r.Digest.IsZero() {
		return o.ETag != "" && addressIDPattern.MatchString(o.ID)
	}
	return o.Size >= 0
}

// Address returns an address of r without secrets. index is like Progress.AddressIndex. "" means that the address is
// not valid.
func (r Request) Address(index int) string {
	a, err := parseAddress(append([]string{r.URL}, r.Mirrors...)[index])
	if err != nil {
		return ""
	}
	return a.String()
}

// IsPacked reports whether the file at URL is packed. Ranges of a packed file are not ranges of the image.
func (r Request) IsPacked() bool {
	addresses, err := oneAddress(r.URL)
	if err != nil {
		return false
	}
	p, err := packingOf(r.Unpack, addresses)
	return err == nil && p != notPacked
}

// transfer is the state of one Download. It covers all addresses, connections and attempts.
type transfer struct {
	client    *Client
	net       *network
	addresses []address
	request   Request
	packing   packing
	limiter   *rate.Limiter
	progress  *Progress

	hasDigest bool // a digest of the received bytes is compared at the end
	restart   bool // discard the bytes in the sink
}

// Download fills part with the image of r. It resumes at the end of part if part's bytes are from the
// same source. It returns when part has all bytes; the caller commits it. After a dropped connection
// it reconnects immediately, a few times in a row. After other errors the caller retries (see Error
// and Backoff); part keeps its bytes. If ctx is canceled, Download returns within one read. progress
// may be nil.
//
// Download unpacks a packed image while it receives it, and compares PackedDigest. Part.Commit
// compares the digest of the stored image.
func (c *Client) Download(ctx context.Context, r Request, part *disk.Part, progress *Progress) error {
	t, err := c.newTransfer(r, progress)
	if err != nil {
		return err
	}
	defer t.net.close()
	if r.Verify != nil && r.signed == nil {
		return &Error{Class: BadConfig, Err: errNotRead}
	}
	t.hasDigest = !r.Digest.IsZero() || !r.PackedDigest.IsZero()
	if err := part.DropIndex(); err != nil { // nothing compares the bytes with it
		return err
	}
	if t.packing == notPacked {
		return ClassifyDiskError(t.fetchAny(ctx, part))
	}
	return ClassifyDiskError(t.unpack(ctx, part))
}

func (c *Client) newTransfer(r Request, progress *Progress) (*transfer, error) {
	if progress == nil {
		progress = new(Progress)
	}
	t := &transfer{client: c, request: r, limiter: NewLimiter(r.BandwidthLimit), progress: progress, restart: r.Restart}
	for _, raw := range append([]string{r.URL}, r.Mirrors...) {
		a, err := parseAddress(raw)
		if err != nil {
			return nil, err
		}
		t.addresses = append(t.addresses, a)
	}
	var err error
	if t.packing, err = packingOf(r.Unpack, t.addresses); err != nil {
		return nil, err
	}
	creds, err := c.credentials(r.Credentials)
	if err != nil {
		return nil, err
	}
	t.net, err = c.network(creds, t.addresses[0])
	return t, err
}

func (c *Client) userAgent() string { return cmp.Or(c.UserAgent, defaultUserAgent) }

func (c *Client) timings() timing {
	if c.timing == (timing{}) {
		return defaultTiming
	}
	return c.timing
}

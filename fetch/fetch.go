package fetch

import (
	"cmp"
	"context"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// Client fetches images. Its fields must not change once it is in use; any number
// of goroutines may then use it at once.
type Client struct {
	SecretsDir    string   // folders of credentials lie below it; empty: there are none
	FileRoots     []string // file:// may read below these folders (absolute paths)
	AllowAnyFile  bool     // file:// may read whatever the process may: for one-shot commands
	AllowLoopback bool     // loopback and link-local hosts may be sources: for tests and demos
	UserAgent     string   // sent to servers; empty: DefaultUserAgent

	timing timing
}

// defaultUserAgent is what servers see of a Client without a UserAgent.
const defaultUserAgent = "backing-image-manager"

// timing holds every duration that a fetch depends on, for tests to shorten.
type timing struct{ connect, firstByte, stall time.Duration }

var defaultTiming = timing{connect: 30 * time.Second, firstByte: time.Minute, stall: 30 * time.Second}

// Request says which image to fetch, and what is known of it.
type Request struct {
	URL           string
	Mirrors       []string // other addresses of the same bytes, in the order to try them
	SkipAddresses int      // how many of URL and Mirrors are left out, from the front; at least one is not

	Credentials string // a folder below SecretsDir; empty: none
	ChecksumURL string // a SHA256SUMS or SHA512SUMS file, or one bare checksum

	Digest       disk.Digest // of the image as it is stored, zero when not declared
	PackedDigest disk.Digest // of the packed file, zero when not declared
	Unpack       string      // "", "auto", "none", "gz", "xz", "zst" or "bz2"

	MaxSize        int64 // most bytes that the stored image may have; 0: no bound of our own
	BandwidthLimit int64 // most bytes per second from the network; 0: no limit

	// Restart asks for the image in one piece: nothing of the part is kept, and
	// bytes of several addresses are not joined. It is for the retries after a
	// wrong checksum: of an image that came in pieces (Progress.Joined), or from
	// an address that is skipped now.
	Restart bool
}

// CanResume reports whether a download may go on with a part of this origin: one of the same
// address, or where something else tells that it is of the same file.
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

// transfer is the state of one Download: what stays the same over all addresses,
// connections and tries.
type transfer struct {
	client    *Client
	net       *network
	addresses []address
	request   Request
	packing   packing
	limiter   *rate.Limiter
	progress  *Progress

	hasDigest      bool // a digest of what is read is known, and will be compared
	selfDelimiting bool // the end of the bytes shows in the bytes themselves
	restart        bool // what the sink holds is not to be kept
}

// Download reads the image of r into part, from where part ends if what it holds
// is of the same source, and returns when part holds the whole; the caller commits
// it. A dropped connection is taken up again at once, a few times in a row; other
// errors, of type *Error but for the exceptions named there, are the caller's to
// retry (Backoff), and what the part holds then is kept. A cancelled ctx ends it
// within one read. progress may be nil.
//
// A packed image is unpacked as it comes, and PackedDigest is compared here. The
// digest of the stored image is the part's to compare.
func (c *Client) Download(ctx context.Context, r Request, part *disk.Part, progress *Progress) error {
	t, err := c.newTransfer(r, progress)
	if err != nil {
		return err
	}
	defer t.net.close()
	t.hasDigest = !r.Digest.IsZero() || !r.PackedDigest.IsZero()
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

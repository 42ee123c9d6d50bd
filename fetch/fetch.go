package fetch

import (
	"cmp"
	"context"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// Client downloads images. Do not change its fields after the first use; any number of
// goroutines may then use it at once.
type Client struct {
	SecretsDir    string   // the parent of all credentials folders; empty: there are none
	FileRoots     []string // the folders below which file:// may read (absolute paths)
	AllowAnyFile  bool     // file:// may read every path that the process may read: for one-shot commands
	AllowLoopback bool     // allow loopback and link-local hosts: for tests and demos
	UserAgent     string   // sent to servers; empty: "backing-image-manager"

	timing timing
}

// defaultUserAgent is the User-Agent of a Client without one.
const defaultUserAgent = "backing-image-manager"

// timing is all timeouts of a transfer. Tests shorten them.
type timing struct{ connect, firstByte, stall time.Duration }

var defaultTiming = timing{connect: 30 * time.Second, firstByte: time.Minute, stall: 30 * time.Second}

// Request is one image to download.
type Request struct {
	URL           string
	Mirrors       []string // other addresses of the same bytes, in the order of the attempts
	SkipAddresses int      // how many of URL and Mirrors to skip, at most all but one

	Credentials string // the name of a folder below SecretsDir; empty: none
	ChecksumURL string // a SHA256SUMS or SHA512SUMS file, or a file with one checksum

	Digest       disk.Digest // of the stored (unpacked) image; zero: not declared
	PackedDigest disk.Digest // of the packed file; zero: not declared
	Unpack       string      // "", "auto", "none", "gz", "xz", "zst" or "bz2"

	MaxSize        int64 // of the stored image, in bytes; 0: no limit
	BandwidthLimit int64 // bytes per second from the network; 0: no limit

	// Restart discards the bytes in the partial file, and does not join bytes of several
	// addresses. Set it for the attempt after a wrong checksum if the image was joined from
	// several responses (Progress.Joined), or if SkipAddresses changes.
	Restart bool
}

// CanResume reports whether a download may continue a partial file from this source: one
// from the same address, or one for which a digest or a strong ETag detects another file.
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

// transfer is the state of one Download across all addresses, connections and attempts.
type transfer struct {
	client    *Client
	net       *network
	addresses []address
	request   Request
	packing   packing
	limiter   *rate.Limiter
	progress  *Progress

	hasDigest      bool // a digest of the received bytes is compared at the end
	selfDelimiting bool // the bytes themselves show whether they are complete
	restart        bool // discard what the sink has
}

// Download fills part with the image of r, and continues where part ends if part's bytes
// are of the same source. It returns when part has all bytes; the caller commits it.
// Download reconnects at once after a dropped connection, a few times in a row. The
// caller retries after other errors, see Error and Backoff; part keeps its bytes. A
// cancelled ctx ends Download within one read. progress may be nil.
//
// Download unpacks a packed image while it receives it, and compares PackedDigest. part
// compares the digest of the stored image.
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

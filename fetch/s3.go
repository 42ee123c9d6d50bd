package fetch

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/minio/minio-go/v7"
	s3credentials "github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"
)

// s3Source reads an object in a bucket.
type s3Source struct {
	core        minio.Core
	bucket, key string
}

func (t *transfer) newS3Source(a address) (source, error) {
	b, err := t.net.bucket(a, t.net.anonymous)
	if err != nil {
		return nil, err
	}
	if b.key == "" {
		return nil, Errorf(BadConfig, "address %s does not name a bucket and a key: write it like s3://BUCKET/KEY", a)
	}
	return &s3Source{minio.Core{Client: b.Client}, b.Name, b.key}, nil
}

// get sends one GetObject request. With If-Match, the server returns only the version that q
// requests.
func (s *s3Source) get(ctx context.Context, q rangeRequest) (*response, error) {
	var o minio.GetObjectOptions
	o.Set("Accept-Encoding", "identity")
	if q.isPartial() {
		if err := o.SetRange(q.offset, max(q.end-1, 0)); err != nil {
			return nil, errChanged
		}
		if etag := strings.Trim(q.validator, `"`); etag != "" {
			o.Set("If-Match", `"`+etag+`"`)
		}
	}
	body, _, header, err := s.core.GetObject(ctx, s.bucket, s.key, o)
	if err != nil {
		return nil, s.classify(ctx, err, q)
	}
	got := &response{body: body, total: -1, delimited: true}
	got.etag, _ = validators(header)
	if q.offset > 0 || q.isPartial() && header.Get("Content-Range") != "" {
		err = got.checkContinuation(header, q)
	} else if n, perr := strconv.ParseInt(header.Get("Content-Length"), 10, 64); perr == nil {
		got.total = n
	}
	if err != nil {
		body.Close()
		return nil, err
	}
	return got, nil
}

// classify converts an error of minio to an *Error. errChanged means that the partial file has bytes
// of another version.
func (s *s3Source) classify(ctx context.Context, err error, q rangeRequest) error {
	switch code := minio.ToErrorResponse(err).StatusCode; {
	case q.isPartial() && (code == http.StatusPreconditionFailed || code == http.StatusRequestedRangeNotSatisfiable):
		return errChanged
	}
	return s3Error(ctx, err)
}

// Bucket is a bucket of an S3 server, or the objects of a bucket below a path. Requests of Client
// follow the rules of this package for hosts, proxies, authorities and credentials. Redirects and
// retries are disabled, and a request that stalls fails.
type Bucket struct {
	*minio.Client
	Name string // the name of the bucket
	Path string // without a slash at the beginning or end; empty: the whole bucket

	key     string // Path with all slashes of the address
	address string
	net     *network
}

// OpenBucket returns the bucket at an address: s3://bucket/path, s3::https://host/bucket/path or, as
// in Longhorn, s3://bucket@region/path. It sends no request. The caller closes the Bucket.
func (c *Client) OpenBucket(target, credentials string) (*Bucket, error) {
	a, err := parseBucket(target)
	if err != nil {
		return nil, err
	}
	creds, err := c.credentials(credentials)
	if err != nil {
		return nil, err
	}
	net, err := c.network(creds, a)
	if err != nil {
		return nil, err
	}
	if a.force != "" && creds.files["access-key-id"] != "" && !net.mayAuthenticate(a.url) {
		return nil, Errorf(BadConfig, "credentials would be sent unencrypted: use https for %s", a)
	}
	net.keepConnections()
	return net.bucket(a, &stallTransport{net.anonymous, c.timings().stall, c.timings().firstByte})
}

// Close closes idle connections.
func (b *Bucket) Close() { b.net.close() }

// Put stores an object with one request, so that an interruption leaves no multipart upload. The signature of the request
// covers the checksum, so that an S3 server rejects different bytes. Pass errors of Put to Classify.
func (b *Bucket) Put(ctx context.Context, key, contentType string, data []byte) error {
	sum := sha256.Sum256(data)
	o := minio.PutObjectOptions{ContentType: contentType, DisableContentSha256: true}
	info, err := minio.Core{Client: b.Client}.PutObject(ctx, b.Name, key, bytes.NewReader(data), int64(len(data)), "", hex.EncodeToString(sum[:]), o)
	if err == nil && info.ETag == "" {
		err = errNotS3
	}
	return err
}

// String returns the address without secrets.
func (b *Bucket) String() string { return b.address }

// Classify converts an error of b.Client to an *Error. It omits the text of the server, which may
// contain the signed request.
func (b *Bucket) Classify(ctx context.Context, err error) error { return s3Error(ctx, err) }

// parseBucket parses an address like parseAddress, and also s3://bucket@region/path, the form of Longhorn.
func parseBucket(raw string) (address, error) {
	region := ""
	if u, err := url.Parse(strings.TrimSpace(raw)); err == nil && u.Scheme == "s3" && u.User != nil {
		if _, secret := u.User.Password(); !secret && u.User.Username() != "" && u.Host != "" {
			region, u.Host, u.User = u.Host, u.User.Username(), nil
			raw = u.String()
		}
	}
	a, err := parseAddress(raw)
	if err == nil && a.force == "" && a.url.Scheme != "s3" {
		err = Errorf(BadConfig, "address %s is not an S3 address: write it like s3://BUCKET/PATH", a)
	}
	a.region = region
	return a, err
}

// bucket returns the client for s3::https://host/bucket/path, or for s3://bucket/path with the
// endpoint of the credentials. The default endpoint is Amazon's.
func (n *network) bucket(a address, transport http.RoundTripper) (*Bucket, error) {
	endpoint, path := &url.URL{Scheme: a.url.Scheme, Host: a.url.Host}, a.url.Path
	if a.force == "" {
		var err error
		if endpoint, err = n.creds.endpoint(); err != nil {
			return nil, err
		}
		path = "/" + a.url.Host + a.url.Path
	}
	name, path, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if err := s3utils.CheckValidBucketName(name); err != nil {
		return nil, Errorf(BadConfig, "address %s has no valid bucket name: %w", a, err)
	}
	if a.url.RawQuery != "" {
		return nil, Errorf(BadConfig, "address %s has a query, which S3 addresses do not have: remove it", a)
	}
	if err := n.checkHost(endpoint); err != nil {
		return nil, err
	}
	client, err := minio.New(endpoint.Host, &minio.Options{
		Creds:        n.s3Credentials(a, endpoint),
		Secure:       endpoint.Scheme == "https",
		Region:       cmp.Or(a.region, n.creds.files["region"], "us-east-1"), // without a region, minio would first request it from the server
		BucketLookup: n.creds.bucketLookup(),
		Transport:    transport,
		MaxRetries:   1,
	})
	if err != nil {
		return nil, Errorf(BadConfig, "address %s is not an S3 address: %w", a, err)
	}
	shown := a.String()
	if a.region != "" {
		shown = "s3://" + name + "@" + a.region + a.url.Path
	}
	return &Bucket{Client: client, Name: name, Path: strings.Trim(path, "/"), key: path, address: strings.TrimRight(shown, "/"), net: n}, nil
}

// s3Credentials returns the keys that sign requests to endpoint. It returns anonymous credentials if
// endpoint must not receive the keys.
func (n *network) s3Credentials(a address, endpoint *url.URL) *s3credentials.Credentials {
	if a.force != "" && !n.mayAuthenticate(endpoint) {
		return s3credentials.NewStaticV4("", "", "") // anonymous
	}
	files := n.creds.files
	return s3credentials.NewStaticV4(files["access-key-id"], files["secret-access-key"], files["session-token"])
}

var errNotS3 = Errorf(Refused, "the server does not respond like an S3 server: check the address")

// s3Error converts an error of minio to an *Error.
func s3Error(ctx context.Context, err error) error {
	var known *Error
	var answer minio.ErrorResponse
	var request *url.Error
	switch {
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case errors.As(err, &known):
		return known
	case errors.As(err, &request):
		return requestError(ctx, err)
	case !errors.As(err, &answer) || answer.StatusCode == 0:
		return errNotS3
	}
	class := Refused
	switch code := answer.StatusCode; {
	case code == http.StatusMovedPermanently, answer.Code == "AuthorizationHeaderMalformed":
		return Errorf(Refused, "the bucket is in another region: set the region in the file \"region\" of the credentials, or in the address of a backup (s3://bucket@region/path)")
	case code == http.StatusInsufficientStorage, strings.HasSuffix(answer.Code, "QuotaExceeded"):
		class = NoSpace
	case code >= 500, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout:
		class = Network
	}
	return Errorf(class, "S3 responds with %d %s", answer.StatusCode, answer.Code)
}

// listBody is the body with one page of a list. A response that is not a list (a web page, an error with status
// 200) must not be interpreted as an empty list, because a backup deletes objects that are not
// listed.
type listBody struct {
	io.Reader
	checked bool
	read    int
}

const (
	// maxListBody is the largest page: 1000 keys of at most 1 KiB each.
	maxListBody = 4 << 20
	// listBodyHead is the number of first bytes that must contain the name of the root element.
	listBodyHead = 1 << 10
)

func (l *listBody) Read(p []byte) (int, error) {
	if !l.checked {
		head := make([]byte, listBodyHead)
		n, err := io.ReadFull(l.Reader, head)
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return 0, err
		}
		if !isListResult(head[:n]) {
			return 0, errNotS3
		}
		l.Reader, l.checked = io.MultiReader(bytes.NewReader(head[:n]), l.Reader), true
	}
	n, err := l.Reader.Read(p)
	if l.read += n; l.read > maxListBody {
		return n, Errorf(Refused, "a page of the server's list has more than %d MiB, which no S3 server sends: check the address", maxListBody>>20)
	}
	return n, err
}

func isListResult(head []byte) bool {
	for tokens := xml.NewDecoder(bytes.NewReader(head)); ; {
		token, err := tokens.Token()
		if err != nil {
			return false
		}
		if root, ok := token.(xml.StartElement); ok {
			return root.Name.Local == "ListBucketResult"
		}
	}
}

package fetch

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/minio/minio-go/v7"
	s3credentials "github.com/minio/minio-go/v7/pkg/credentials"
)

// s3Source is an object in a bucket.
type s3Source struct {
	net         *network
	core        *minio.Core
	bucket, key string
}

// s3 reads s3::https://host/bucket/key, and s3://bucket/key with the host from the
// credentials, by default Amazon's.
func (t *transfer) s3(a address) (source, error) {
	creds := t.net.creds
	endpoint, path := &url.URL{Scheme: a.url.Scheme, Host: a.url.Host}, a.url.Path
	if a.force == "" {
		e, err := url.Parse(cmp.Or(creds.files["endpoint"], "https://s3.amazonaws.com"))
		if err != nil || e.Scheme != "http" && e.Scheme != "https" || e.Host == "" || e.User != nil {
			return nil, failf(Config, "file \"endpoint\" of the credentials is not an address of a server")
		}
		endpoint, path = e, "/"+a.url.Host+a.url.Path
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if bucket == "" || key == "" {
		return nil, failf(Config, "address %s does not name a bucket and a key", a)
	}
	if a.url.RawQuery != "" {
		return nil, failf(Config, "address %s has a query: S3 has no use for it", a)
	}
	if err := t.net.allow(endpoint); err != nil {
		return nil, err
	}
	signed := s3credentials.NewStaticV4("", "", "") // anonymous
	if a.force == "" || t.net.mayTell(endpoint) {
		signed = s3credentials.NewStaticV4(creds.files["access-key-id"], creds.files["secret-access-key"], creds.files["session-token"])
	}
	core, err := minio.NewCore(endpoint.Host, &minio.Options{
		Creds:      signed,
		Secure:     endpoint.Scheme == "https",
		Region:     cmp.Or(creds.files["region"], "us-east-1"), // without one, each download would begin by asking
		Transport:  t.net.bare,
		MaxRetries: 1,
	})
	if err != nil {
		return nil, failf(Config, "address %s is not one of S3: %w", a, err)
	}
	return &s3Source{t.net, core, bucket, key}, nil
}

// get makes one GetObject; If-Match keeps it to the version that q goes on from.
func (s *s3Source) get(ctx context.Context, q question) (*answer, error) {
	var o minio.GetObjectOptions
	o.Set("Accept-Encoding", "identity")
	if q.part() {
		if err := o.SetRange(q.offset, max(q.end-1, 0)); err != nil {
			return nil, errChanged
		}
		if etag := strings.Trim(q.validator, `"`); etag != "" {
			o.Set("If-Match", `"`+etag+`"`)
		}
	}
	body, _, header, err := s.core.GetObject(ctx, s.bucket, s.key, o)
	if err != nil {
		return nil, s.failure(ctx, err, q)
	}
	got := &answer{body: body, total: -1, framed: true}
	got.etag, _ = validators(header)
	if q.offset > 0 || q.part() && header.Get("Content-Range") != "" {
		err = got.continues(header, q)
	} else if n, perr := contentLength(header); perr == nil {
		got.total = n
	}
	if err != nil {
		body.Close()
		return nil, err
	}
	return got, nil
}

// failure gives an error of minio its class. Its text is not passed on: it may
// quote what was signed.
func (s *s3Source) failure(ctx context.Context, err error, q question) error {
	var answer minio.ErrorResponse
	if !errors.As(err, &answer) || answer.StatusCode == 0 {
		return requestError(ctx, err)
	}
	switch code := answer.StatusCode; {
	case code == http.StatusPreconditionFailed, code == http.StatusRequestedRangeNotSatisfiable:
		if q.part() {
			return errChanged
		}
	case code == http.StatusMovedPermanently, answer.Code == "AuthorizationHeaderMalformed":
		return failf(Refused, "the bucket is in another region: name it in the file \"region\" of the credentials")
	case code >= 500, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout:
		return failf(Network, "S3 answers %d %s", code, answer.Code)
	}
	return failf(Refused, "S3 answers %d %s", answer.StatusCode, answer.Code)
}

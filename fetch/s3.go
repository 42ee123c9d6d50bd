package fetch

import (
	"context"
	"net/http"
	"strings"

	"github.com/minio/minio-go/v7"
)

// s3Source is an object in a bucket.
type s3Source struct {
	net         *network
	core        minio.Core
	bucket, key string
}

func (t *transfer) s3(a address) (source, error) {
	b, err := t.net.bucket(a, t.net.bare)
	if err != nil {
		return nil, err
	}
	if b.Path == "" {
		return nil, failf(Config, "address %s does not name a bucket and a key", a)
	}
	return &s3Source{t.net, minio.Core{Client: b.Client}, b.Name, b.Path}, nil
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

// failure gives an error of minio its class, but for what means that the part is of
// no use.
func (s *s3Source) failure(ctx context.Context, err error, q question) error {
	switch code := minio.ToErrorResponse(err).StatusCode; {
	case q.part() && (code == http.StatusPreconditionFailed || code == http.StatusRequestedRangeNotSatisfiable):
		return errChanged
	}
	return s3Error(ctx, err)
}

package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/s3test"
)

// secret is the secret key. No error may contain it.
const secret = "s3cr3t"

// bucketAt returns a Store in a bucket of a faulty server.
func bucketAt(t *testing.T, url string) Store {
	t.Helper()
	c := &fetch.Client{SecretsDir: t.TempDir(), AllowLoopback: true}
	writeCredentials(t, filepath.Join(c.SecretsDir, "bucket"), map[string]string{
		"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": secret, "AWS_ENDPOINTS": url,
		"AWS_CERT": "", "VIRTUAL_HOSTED_STYLE": "false\n",
	})
	return mustOpen(t, c, "s3://images@eu-central-1/deep", "bucket")
}

func writeCredentials(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func read(ctx context.Context, s Store, key string) error {
	r, err := s.Open(ctx, key)
	if err != nil {
		return err
	}
	_, err = io.ReadAll(r)
	return errors.Join(err, r.Close())
}

// TestBucketReadErrors injects faults into responses to GET requests.
func TestBucketReadErrors(t *testing.T) {
	t.Parallel()
	type fault = fetchtest.Fault
	other := fetchtest.Start(t)
	server := fetchtest.Start(t)
	s := bucketAt(t, server.URL)
	content := randomBytes(1, 100<<10)
	for i, tt := range []struct {
		fault fault
		class fetch.Class // 0: no error expected
		words string
	}{
		{fault{Kind: fetchtest.Chunked}, 0, ""},
		{fault{Kind: fetchtest.Cut, At: 10}, fetch.Dropped, "connection broke"},
		{fault{Kind: fetchtest.Reset, At: 10}, fetch.Dropped, "connection broke"},
		{fault{Kind: fetchtest.Long, At: 5}, fetch.Dropped, "5 bytes before the end"},
		{fault{Kind: fetchtest.NoLength}, fetch.Refused, "length"},
		{fault{Kind: fetchtest.Gzip}, fetch.BadSource, "gzip"},
		{fault{Kind: fetchtest.Page}, fetch.Refused, "not respond like an S3"},
		{fault{Kind: fetchtest.HTML}, fetch.Refused, "web page"},
		{fault{Kind: fetchtest.Unavailable}, fetch.Network, "503"},
		{fault{Kind: fetchtest.Busy}, fetch.Network, "429"},
		{fault{Kind: fetchtest.Basic}, fetch.Refused, "401"},
		{fault{Kind: fetchtest.Redirect, To: other.URL + "/images/deep/x.blk"}, fetch.Refused, "302"},
	} {
		key := fmt.Sprint(i, ".blk")
		server.Serve("/images/deep/"+key, fetchtest.Bytes(content), tt.fault)
		err := read(t.Context(), s, key)
		if tt.class == 0 {
			mustHave(t, s, key, content)
			continue
		}
		if e, ok := errors.AsType[*fetch.Error](err); !ok || e.Class != tt.class || !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%v: got %v, want one of class %v with %q", tt.fault, err, tt.class, tt.words)
		}
	}
	if got := other.Requests(); len(got) > 0 {
		t.Errorf("a redirect was followed: %+v", got)
	}
	for _, q := range server.Requests() {
		if got := q.Header.Get("Authorization"); !strings.Contains(got, "eu-central-1/s3/aws4_request") {
			t.Errorf("got authorization %q, want a signature for the region", got)
		}
	}
}

const listHead = `<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">`

func respondS3Error(status int, code string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(status)
		fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>for %s: %s</Message></Error>`, code, secret, r.Header.Get("Authorization"))
	}
}

func respond(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) }
}

// TestBucketErrors injects faults into all responses.
func TestBucketErrors(t *testing.T) {
	t.Parallel()
	const put, list, remove, get = "put", "list", "remove", "get"
	abort := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	for _, tt := range []struct {
		answer http.HandlerFunc
		class  fetch.Class
		words  string
		by     string
	}{
		{respondS3Error(403, "AccessDenied"), fetch.Refused, "S3 responds with 403 AccessDenied", "put list remove get"},
		{respondS3Error(403, "QuotaExceeded"), fetch.NoSpace, "403 QuotaExceeded", "put"},
		{respondS3Error(404, "NoSuchBucket"), fetch.Refused, "404 NoSuchBucket", "put list remove get"},
		{respondS3Error(400, "AuthorizationHeaderMalformed"), fetch.Refused, "another region", "put list remove get"},
		{respondS3Error(301, "PermanentRedirect"), fetch.Refused, "another region", "put list remove get"},
		{respondS3Error(503, "SlowDown"), fetch.Network, "503 SlowDown", "put list remove get"},
		{respondS3Error(500, "InternalError"), fetch.Network, "500 InternalError", "put list remove get"},
		{respondS3Error(507, "XMinioStorageFull"), fetch.NoSpace, "507 XMinioStorageFull", "put"},
		{respondS3Error(200, "InternalError"), fetch.Refused, "not respond like an S3", "list"},
		{respond("<!doctype html><title>Log in</title>"), fetch.Refused, "not respond like an S3", "put list"},
		{respond(listHead + "<Name>images</Name>"), fetch.Refused, "not respond like an S3", "list"},
		{respond(listHead + "<IsTruncated>true</IsTruncated></ListBucketResult>"), fetch.Refused, "not respond like an S3", "list"},
		{respond(listHead + "<Contents><Key>other/place</Key></Contents></ListBucketResult>"), fetch.Refused, "outside of the requested folder", "list"},
		{respond(listHead + "<Contents><Key>deep/folder/below/it</Key></Contents></ListBucketResult>"), fetch.Refused, "outside of the requested folder", "list"},
		{respond(listHead + "<Contents><Key>deep/folder/a</Key><Size>1e9</Size></Contents></ListBucketResult>"), fetch.Refused, "not respond like an S3", "list"},
		{respond(listHead + strings.Repeat(" ", 5<<20) + "</ListBucketResult>"), fetch.Refused, "more than 4 MiB", "list"},
		{abort, fetch.Dropped, "connection broke", "put list remove get"},
	} {
		server := httptest.NewServer(tt.answer)
		s := bucketAt(t, server.URL)
		for by := range strings.FieldsSeq(tt.by) {
			var err error
			switch by {
			case put:
				err = s.Put(t.Context(), "folder/a", randomBytes(1, 2<<20))
			case list:
				_, err = s.List(t.Context(), "folder")
			case remove:
				err = s.Delete(t.Context(), "folder/a")
			case get:
				err = read(t.Context(), s, "folder/a")
			}
			wantError(t, err, tt.class, tt.words, "s3://images@eu-central-1/deep/folder")
			if strings.Contains(fmt.Sprint(err), secret) || strings.Contains(fmt.Sprint(err), "AWS4") {
				t.Errorf("the error contains a secret: %v", err)
			}
		}
		server.Close()
	}
}

// TestBucketPermissionErrors uses a real server that rejects wrong credentials and missing
// buckets.
func TestBucketPermissionErrors(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t, "images")
	c := &fetch.Client{SecretsDir: t.TempDir(), AllowLoopback: true}
	if err := server.Credentials(filepath.Join(c.SecretsDir, "right")); err != nil {
		t.Fatal(err)
	}
	for name, files := range map[string]map[string]string{
		"wrong":   {"access-key-id": s3test.AccessKey, "secret-access-key": secret, "endpoint": server.URL},
		"unknown": {"access-key-id": "nobody", "secret-access-key": secret, "endpoint": server.URL},
		"nobody":  {"endpoint": server.URL},
	} {
		writeCredentials(t, filepath.Join(c.SecretsDir, name), files)
	}
	for _, tt := range []struct{ target, credentials, words string }{
		{"s3://images@us-east-1/", "wrong", "403 SignatureDoesNotMatch"},
		{"s3://images@us-east-1/", "unknown", "S3 responds with 404 XAdminUserNotFound"},
		{"s3://images@us-east-1/", "nobody", "403 AccessDenied"},
		{"s3://images@eu-central-1/", "right", "another region"},
		{"s3://other@us-east-1/", "right", "404 NoSuchBucket"},
	} {
		s := mustOpen(t, c, tt.target, tt.credentials)
		_, listed := s.List(t.Context(), "a")
		for _, err := range []error{read(t.Context(), s, "a/b"), listed, s.Put(t.Context(), "a/b", nil), s.Delete(t.Context(), "a/b")} {
			wantError(t, err, fetch.Refused, tt.words)
		}
	}
	plain := &fetch.Client{SecretsDir: c.SecretsDir}
	_, err := openStore(plain, "s3://images@us-east-1/", "right")
	wantError(t, err, fetch.BadConfig, "loopback")
}

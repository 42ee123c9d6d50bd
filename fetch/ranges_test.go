package fetch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

// readRange reads the bytes [from, to).
func (r *fixture) readRange(req Request, from, to int64) ([]byte, error) {
	r.t.Helper()
	addresses, done, err := r.client.OpenRanges(req, 0)
	if err != nil {
		return nil, err
	}
	defer done()
	body, err := addresses[0].Open(r.t.Context(), from, to)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(body)
}

func TestRangeReader(t *testing.T) {
	size := int64(len(image))
	type fault = fetchtest.Fault
	for _, tt := range []struct {
		name  string
		url   string
		at    []fault
		class Class // class of the error for a range in the middle
		word  string
	}{
		{name: "http", url: "SERVER/image.raw"},
		{name: "redirected", url: "SERVER/moved.raw"},
		{name: "s3", url: "s3://images/image.raw"},
		{name: "file", url: "file://FOLDER/image.raw"},
		{name: "changed meanwhile", url: "SERVER/image.raw", at: []fault{{Kind: fetchtest.Changing}}},
		{name: "no ranges", url: "SERVER/image.raw", at: []fault{{Kind: fetchtest.NoRange}}, class: Refused, word: "parts"},
		{name: "another range", url: "SERVER/image.raw", at: []fault{{Kind: fetchtest.BadRange}}, class: Refused, word: "does not have the bytes"},
		{name: "away", url: "SERVER/nothing.raw", class: Refused, word: "404"},
		{name: "unavailable", url: "SERVER/image.raw", at: []fault{{Kind: fetchtest.Unavailable}}, class: Network, word: "503"},
		{name: "no such file", url: "file://FOLDER/nothing.raw", class: Refused, word: "no such file"},
		{name: "file outside the allowed folders", url: "file:///etc/hostname", class: BadConfig, word: "not below an allowed folder"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newFixture(t)
			r.useS3Credentials()
			folder := t.TempDir()
			r.client.FileRoots = []string{folder}
			if err := os.WriteFile(filepath.Join(folder, "image.raw"), image, 0o644); err != nil {
				t.Fatal(err)
			}
			r.server.Serve("/image.raw", fetchtest.Bytes(image), tt.at...)
			r.server.Serve("/images/image.raw", fetchtest.Bytes(image), tt.at...)
			r.server.Serve("/moved.raw", fetchtest.Bytes(nil), fault{Kind: fetchtest.Redirect, To: r.server.URL + "/image.raw"})
			req := Request{URL: strings.NewReplacer("SERVER", r.server.URL, "FOLDER", folder).Replace(tt.url), Digest: digest(image)}
			if strings.HasPrefix(tt.url, "s3") {
				req.Credentials = "bucket"
			}
			for _, span := range [][2]int64{{1 << 20, 2 << 20}, {0, 1}, {0, size}, {size - 1, size}} {
				got, err := r.readRange(req, span[0], span[1])
				if tt.class != 0 {
					wantError(t, err, tt.class, tt.word)
					return
				}
				if err != nil || !bytes.Equal(got, image[span[0]:span[1]]) {
					t.Errorf("bytes %v: got %d, error %v", span, len(got), err)
				}
			}
			if _, err := r.readRange(req, size-1, size+1); err == nil {
				t.Error("the reader returned bytes after the end")
			}
		})
	}
}

func TestRangeReaderOfEachAddress(t *testing.T) {
	r := newFixture(t)
	addresses, done, err := r.client.OpenRanges(Request{
		URL:     r.server.Serve("/image.raw", fetchtest.Bytes(image), fetchtest.Fault{Kind: fetchtest.NoRange}),
		Mirrors: []string{r.server.Serve("/mirror.raw", fetchtest.Bytes(image)), r.server.URL + "/away.raw", r.server.Serve("/other.raw", fetchtest.Bytes(image[:1<<20]))},
		Digest:  digest(image),
	}, int64(len(image)))
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	for i, want := range []string{"image.raw: the server does not send parts", "", "away.raw: the server responds with 404", "other.raw: the file has another size"} {
		body, err := addresses[i].Open(t.Context(), 100, 200)
		if want == "" && err == nil {
			got, err := io.ReadAll(body)
			if err = errors.Join(err, body.Close()); err != nil || !bytes.Equal(got, image[100:200]) {
				t.Errorf("got %d bytes, error %v", len(got), err)
			}
		} else if want == "" || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("address %d: got %v, want %q", i, err, want)
		}
	}
}

func TestRangeReaderRefusesWhatDownloadRefuses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*fixture, *Request)
		class  Class
		word   string
	}{
		{"loopback", func(r *fixture, _ *Request) { r.client.AllowLoopback = false }, BadConfig, "loopback"},
		{"no digest", func(_ *fixture, q *Request) { q.Digest = ident.Digest{} }, BadConfig, "declared checksum"},
		{"packed", func(_ *fixture, q *Request) { q.Unpack = "gz" }, BadConfig, "packed"},
		{"no credentials", func(_ *fixture, q *Request) { q.Credentials = "nobody" }, BadConfig, "no such folder"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newFixture(t)
			req := Request{URL: withSecretQuery(r.server.Serve("/image.raw", fetchtest.Bytes(image))), Digest: digest(image)}
			tt.change(r, &req)
			_, err := r.readRange(req, 0, 100)
			wantError(t, err, tt.class, tt.word)
			if len(r.server.Requests()) > 0 {
				t.Error("the server received a request")
			}
		})
	}
}

func TestRangeReaderEndsWithContext(t *testing.T) {
	r := newFixture(t)
	addresses, done, err := r.client.OpenRanges(Request{
		URL: r.server.Serve("/image.raw", fetchtest.Bytes(image), fetchtest.Fault{Kind: fetchtest.Silent}), Digest: digest(image),
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	if _, err := addresses[0].Open(ctx, 0, 100); !errors.Is(err, why) {
		t.Errorf("got %v, want %v", err, why)
	}
}

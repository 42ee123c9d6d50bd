package fetch

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// DownloadIndex writes the index at the address r.Index to the empty file f. An index of more than limit bytes is an
// error. verify reads the bytes while they arrive; its error ends the download. Errors are those of Download and of
// verify. progress counts the bytes from the upstream.
func (c *Client) DownloadIndex(ctx context.Context, r Request, f *os.File, limit int64, verify func(io.Reader) error, progress *Progress) error {
	t, err := c.newTransfer(r, nil)
	if err != nil {
		return err
	}
	defer t.net.close()
	if t.addresses, err = oneAddress(r.Index); err != nil {
		return err
	}
	t.packing, t.restart, t.request.MaxSize, t.request.SkipAddresses = notPacked, false, limit, 0
	err = t.fetchAny(ctx, &fileSink{f: f, limit: limit, verify: verify})
	progress.UpstreamBytes.Add(t.progress.UpstreamBytes.Load())
	return ClassifyDiskError(err)
}

// AddressID returns the disk.PartSource.ID of bytes from an address: a hash that does not reveal the address.
func AddressID(raw string) string { return address{raw: strings.TrimSpace(raw)}.id() }

// OpenLocal opens the index at an address without a request. A file:// address is opened itself. For other addresses,
// it opens the file in folder dir whose name is the last element of the address; dir may be empty. The error wraps
// fs.ErrNotExist if there is no such file.
func (c *Client) OpenLocal(raw, dir string) (*os.File, error) {
	a, err := parseAddress(raw)
	if err != nil {
		return nil, err
	}
	path := a.url.Path
	if a.url.Scheme != "file" {
		if dir == "" {
			return nil, fs.ErrNotExist
		}
		path = filepath.Join(dir, a.base())
	}
	f, err := c.OpenFile(path, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close() // it was not read
		return nil, cmp.Or[error](err, Errorf(BadSource, "%s is not a regular file", path))
	}
	return f, nil
}

// NameInFolder returns the name of the file that OpenLocal opens in its folder for an address. "" means none: the
// address is that of a local file, or not valid.
func NameInFolder(raw string) string {
	a, err := parseAddress(raw)
	if err != nil || a.url.Scheme == "file" {
		return ""
	}
	return a.base()
}

func oneAddress(raw string) ([]address, error) {
	a, err := parseAddress(raw)
	return []address{a}, err
}

// fileSink writes received bytes to a small file, and passes them to verify at the same time.
type fileSink struct {
	received
	f      *os.File
	limit  int64
	verify func(io.Reader) error
}

// Begin discards the bytes.
func (s *fileSink) Begin(o disk.PartSource) error {
	s.received = received{source: o}
	_, err := s.f.Seek(0, io.SeekStart)
	return errors.Join(err, s.f.Truncate(0))
}

// ReadFrom appends the bytes of r, up to the limit. After a broken connection, verify begins again from the file.
func (s *fileSink) ReadFrom(r io.Reader) (int64, error) {
	start := s.offset
	added := &ErrorRecorder{R: io.TeeReader(io.LimitReader(r, s.limit-start+1), s.f)}
	all := io.MultiReader(io.NewSectionReader(s.f, 0, start), added)
	wrong := s.verify(all)
	if wrong == nil { // verify may not have read all bytes
		_, wrong = io.Copy(io.Discard, all)
	}
	var err error
	if s.offset, err = s.f.Seek(0, io.SeekCurrent); err == nil && s.offset > s.limit {
		err = Errorf(BadSource, "the file has more than %d bytes", s.limit)
	}
	return s.offset - start, cmp.Or(added.Err, err, wrong)
}

// ChunkStore reads the files of a chunk store. It is safe for concurrent use.
type ChunkStore struct {
	t    *transfer
	base address
}

// OpenChunkStore returns the chunk store at the address r.Store. It sends no request. The caller closes it. Errors
// are those of Download.
func (c *Client) OpenChunkStore(r Request) (*ChunkStore, error) {
	t, err := c.newTransfer(r, nil)
	if err != nil {
		return nil, err
	}
	t.net.keepConnections()
	t.packing = notPacked
	a, err := parseAddress(r.Store)
	if err != nil {
		t.net.close()
		return nil, err
	}
	return &ChunkStore{t, a}, nil
}

// Close closes idle connections.
func (s *ChunkStore) Close() { s.t.net.close() }

// String returns the address without secrets.
func (s *ChunkStore) String() string { return s.base.String() }

// Open opens a file of the chunk store. Its bytes are not verified. size is -1 if the server does not send it. Errors of
// the body are those of Download. An error of class Refused means that the chunk store does not have the file.
func (s *ChunkStore) Open(ctx context.Context, name string) (body io.ReadCloser, size int64, err error) {
	a := s.base
	u := *a.url
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/")+"/"+name, ""
	if s.base.url.RawPath != "" {
		u.RawPath = strings.TrimRight(s.base.url.RawPath, "/") + "/" + url.PathEscape(name)
		u.RawPath = strings.ReplaceAll(u.RawPath, "%2F", "/")
	}
	a.url = &u
	attempt, cancel := context.WithCancelCause(ctx) // a stall cancels attempt, but not ctx
	var got *response
	err = s.t.dispatch(attempt, a, func(_ context.Context, src source) (err error) {
		got, err = src.get(attempt, rangeRequest{total: -1})
		return err
	})
	switch {
	case err == nil && got.isHTML:
		got.body.Close()
		err = Errorf(Refused, "the server sent a web page instead of the chunk")
	case errors.Is(err, errChanged), errors.Is(err, errComplete):
		err = Errorf(Refused, "the server does not send the chunk")
	}
	if err != nil {
		cancel(nil)
		return nil, 0, err
	}
	return watchBody(attempt, cancel, got.body, got.total, s.t.client.timings().stall), got.total, nil
}

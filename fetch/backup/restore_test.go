package backup

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// limitedStore counts the requested blocks, and cancels the restore at the limit.
type limitedStore struct {
	Store
	end context.CancelFunc

	mu     sync.Mutex
	blocks int
	left   int
}

func (a *limitedStore) Open(ctx context.Context, key string) (io.ReadCloser, error) {
	if strings.HasSuffix(key, blockSuffix) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.left--; a.left < 0 {
			a.end()
			return nil, ctx.Err()
		}
		a.blocks++
	}
	return a.Store.Open(ctx, key)
}

// TestRestoreResumes checks that an interrupted restore resumes after the last written block. It
// requests again only the blocks that were in progress.
func TestRestoreResumes(t *testing.T) {
	t.Parallel()
	d, dir := newDisk(t), t.TempDir()
	want := makeImage(t, d, "a1", testBytes(1, 13<<20+512))
	synctest.Test(t, func(t *testing.T) { mustBackUp(t, dir, d, "a1") })
	for n := range 7 {
		if race.Enabled && n%3 != 1 {
			continue
		}
		other := newDisk(t)
		ctx, cancel := context.WithCancel(t.Context())
		s := &limitedStore{Store: openTarget(t, dir), left: n, end: cancel}
		if _, err := restore(ctx, s, other, "a1"); !errors.Is(err, context.Canceled) {
			t.Fatalf("after %d blocks: %v", n, err)
		}
		if c := other.Stat(id("a1")); c.State != model.Pending {
			t.Fatalf("after %d blocks the copy is %s", n, c.State)
		}
		resumable := other.Stat(id("a1")).PartBytes
		s = &limitedStore{Store: s.Store, left: 100}
		if got, err := restore(t.Context(), s, other, "a1"); err != nil || got.SHA512 != want.SHA512 {
			t.Errorf("after %d blocks: %v (%v)", n, got.SHA512, err)
		}
		if most := 7 - int(resumable/blockSize); s.blocks > most {
			t.Errorf("after %d blocks the partial file had %d bytes, and %d blocks were requested, want at most %d", n, resumable, s.blocks, most)
		}
	}
}

// TestRestoreOfChangedBackupStartsAgain checks that the bytes of a partial file are discarded if they
// are from another backup.
func TestRestoreOfChangedBackupStartsAgain(t *testing.T) {
	t.Parallel()
	d, dir := newDisk(t), t.TempDir()
	makeImage(t, d, "a1", testBytes(1, 8<<20))
	synctest.Test(t, func(t *testing.T) { mustBackUp(t, dir, d, "a1") })
	part := newDisk(t)
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := restore(ctx, &limitedStore{Store: openTarget(t, dir), left: 3, end: cancel}, part, "a1"); err == nil {
		t.Fatal("the restore was not interrupted")
	}
	again, other := newDisk(t), t.TempDir()
	want := makeImage(t, again, "a1", testBytes(2, 8<<20))
	synctest.Test(t, func(t *testing.T) { mustBackUp(t, other, again, "a1") })
	if got, err := restore(t.Context(), openTarget(t, other), part, "a1"); err != nil || got.SHA512 != want.SHA512 {
		t.Errorf("restored %v (%v), want %v", got.SHA512, err, want.SHA512)
	}
}

// droppingStore breaks the connection once for each object, in the middle of the object.
type droppingStore struct {
	Store
	mu   sync.Mutex
	seen map[string]bool
}

func (s *droppingStore) Open(ctx context.Context, key string) (io.ReadCloser, error) {
	r, err := s.Store.Open(ctx, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || s.seen[key] || !strings.HasSuffix(key, blockSuffix) {
		return r, err
	}
	s.seen[key] = true
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(io.LimitReader(r, 1000), brokenReader{}), r}, nil
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) {
	return 0, fetch.Errorf(fetch.Dropped, "the connection broke")
}

func TestRestoreRetriesDroppedBlocks(t *testing.T) {
	t.Parallel()
	d, dir := newDisk(t), t.TempDir()
	want := makeImage(t, d, "a1", testBytes(1, 5<<20))
	synctest.Test(t, func(t *testing.T) { mustBackUp(t, dir, d, "a1") })
	s := &droppingStore{Store: openTarget(t, dir), seen: map[string]bool{}}
	if got, err := restore(t.Context(), s, newDisk(t), "a1"); err != nil || got.SHA512 != want.SHA512 || len(s.seen) != 3 {
		t.Errorf("restored %v (%v), want %v", got.SHA512, err, want.SHA512)
	}
}

// TestDecode checks that decode detects the format by the block file. If the format is ambiguous, the
// block id determines it.
func TestDecode(t *testing.T) {
	race.Skip(t)
	plain := testBytes(1, 1<<20)
	pack := func(c Compression, data []byte) []byte {
		var room bytes.Buffer
		file, err := newEncoder(c).encode(data, &room)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Clone(file)
	}
	packed := pack(Gzip, plain) // used as the bytes of a block
	bomb := pack(LZ4, make([]byte, 64<<20))
	d := newDecoder()
	for _, c := range []struct {
		name   string
		plain  []byte
		stored []byte
		want   string // expected in the error; "": no error
	}{
		{"lz4", plain, pack(LZ4, plain), ""},
		{"gzip", plain, pack(Gzip, plain), ""},
		{"unpacked", plain, plain, ""},
		{"bytes with a magic number, unpacked", packed, packed, ""},
		{"bytes with a magic number, packed", packed, pack(LZ4, packed), ""},
		{"empty file", plain, nil, "does not contain the bytes"},
		{"short", plain, pack(LZ4, plain[:1000]), "unexpected EOF"},
		{"too many bytes", plain[:1000], pack(LZ4, plain), "more than 1000 bytes"},
		{"uncompressed, too long", plain[:1000], plain, "does not contain the bytes"},
		{"a decompression bomb", plain, bomb, "more than 1048576 bytes"},
		{"wrong bytes", plain, pack(Gzip, testBytes(2, 1<<20)), "does not contain the bytes"},
		{"cut", plain, pack(Gzip, plain)[:1000], "unexpected EOF"},
	} {
		got := make([]byte, len(c.plain))
		err := d.decode(got, c.stored, blockIDOf(c.plain))
		switch {
		case c.want == "" && (err != nil || !bytes.Equal(got, c.plain)):
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// FuzzDecode checks that decode returns either an error or the bytes that match the block id, for any
// input file.
func FuzzDecode(f *testing.F) {
	plain := testBytes(1, 4096)
	var room bytes.Buffer
	for _, c := range []Compression{LZ4, Gzip, None} {
		file, err := newEncoder(c).encode(plain, &room)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(bytes.Clone(file))
	}
	sum, d := blockIDOf(plain), newDecoder()
	f.Fuzz(func(t *testing.T, stored []byte) {
		got := make([]byte, len(plain))
		if err := d.decode(got, stored, sum); err == nil && !bytes.Equal(got, plain) {
			t.Error("decode returned wrong bytes")
		}
	})
}

package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/s3test"
)

// eachStore runs a test with a new, empty Store of each kind.
func eachStore(t *testing.T, test func(t *testing.T, s Store)) {
	t.Run("folder", func(t *testing.T) { test(t, folderStore(t, t.TempDir())) })
	t.Run("bucket", func(t *testing.T) {
		server := s3test.Start(t, "images")
		test(t, bucketStore(t, server, "s3://images@us-east-1/deep/path/"))
	})
	t.Run("bucket, TLS", func(t *testing.T) {
		server := s3test.StartTLS(t, "images")
		test(t, bucketStore(t, server, "s3::"+server.URL+"/images/"))
	})
}

func folderStore(t testing.TB, dir string) Store {
	t.Helper()
	return mustOpen(t, &fetch.Client{FileRoots: []string{dir}}, dir, "")
}

func bucketStore(t testing.TB, server *s3test.Server, target string) Store {
	t.Helper()
	c := &fetch.Client{SecretsDir: t.TempDir(), AllowLoopback: true}
	if err := server.Credentials(filepath.Join(c.SecretsDir, "bucket")); err != nil {
		t.Fatal(err)
	}
	return mustOpen(t, c, target, "bucket")
}

func mustOpen(t testing.TB, c *fetch.Client, target, credentials string) Store {
	t.Helper()
	s, err := openStore(c, target, credentials)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func randomBytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b)
	return b
}

func mustPut(t testing.TB, s Store, key string, data []byte) {
	t.Helper()
	if err := s.Put(t.Context(), key, data); err != nil {
		t.Fatal(err)
	}
}

func mustHave(t testing.TB, s Store, key string, want []byte) {
	t.Helper()
	r, err := s.Open(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%s has %d bytes that differ from the %d stored bytes", key, len(got), len(want))
	}
}

// mustList returns the content of a folder, as "name size" and "name/".
func mustList(t testing.TB, s Store, folder string) []string {
	t.Helper()
	entries, err := s.List(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	l := []string{}
	for _, e := range entries {
		if e.Dir {
			l = append(l, e.Name+"/")
			continue
		}
		l = append(l, fmt.Sprint(e.Name, " ", e.Size))
		if age := time.Since(e.Modified); age < -time.Minute || age > time.Minute {
			t.Errorf("%s was stored just now, but its modification time is %v ago", e.Name, age)
		}
	}
	return l
}

// TestStore checks the contract of Store.
func TestStore(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s Store) {
		const folder = "backupstore/blocks/ab"
		want := func(folder string, entries ...string) {
			t.Helper()
			if got := mustList(t, s, folder); !slices.Equal(got, entries) {
				t.Errorf("%s has %q, want %q", folder, got, entries)
			}
		}
		want(folder)
		if _, err := s.Open(t.Context(), folder+"/away.blk"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "away.blk") {
			t.Errorf("got %v for a missing object", err)
		}
		if err := s.Delete(t.Context(), folder+"/away.blk"); err != nil {
			t.Errorf("delete a missing object: %v", err)
		}
		large, small := randomBytes(1, 2<<20), []byte("{}")
		for key, data := range map[string][]byte{"/one.blk": large, "/two.blk": {}, "/00/three.blk": small, "/Z_.-.cfg": small} {
			mustPut(t, s, folder+key, data)
			mustHave(t, s, folder+key, data)
		}
		want(folder, "00/", "Z_.-.cfg 2", "one.blk 2097152", "two.blk 0")
		want("backupstore", "blocks/")
		want("backupstore/blocks/a") // a prefix of a key, but not a folder
		mustPut(t, s, folder+"/one.blk", small)
		mustHave(t, s, folder+"/one.blk", small)
		for _, name := range []string{"/one.blk", "/two.blk", "/Z_.-.cfg", "/Z_.-.cfg"} {
			if err := s.Delete(t.Context(), folder+name); err != nil {
				t.Fatal(err)
			}
		}
		want(folder, "00/")
		if err := s.Delete(t.Context(), folder+"/00/three.blk"); err != nil {
			t.Fatal(err)
		}
		want("backupstore")
		want(".")
	})
}

// TestStoreConcurrency creates, reads and deletes objects in shared folders concurrently.
func TestStoreConcurrency(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s Store) {
		if _, ok := s.(*bucket); ok { // the server itself fails when its folders are created and deleted concurrently
			mustPut(t, s, "blocks/0/stays", nil)
			mustPut(t, s, "blocks/1/stays", nil)
		}
		var running sync.WaitGroup
		for n := range 6 {
			running.Go(func() {
				key, data := fmt.Sprintf("blocks/%d/%d.blk", n%2, n), randomBytes(uint64(n), 100<<10)
				for range 10 {
					err := s.Put(t.Context(), key, data)
					if err == nil {
						_, err = s.List(t.Context(), fmt.Sprintf("blocks/%d", n%2))
					}
					if err == nil {
						mustHave(t, s, key, data)
						err = s.Delete(t.Context(), key)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		running.Wait()
		for _, folder := range []string{"blocks/0", "blocks/1"} {
			if got := mustList(t, s, folder); len(got) > 0 && !slices.Equal(got, []string{"stays 0"}) {
				t.Errorf("entries left: %q", got)
			}
		}
	})
}

// TestStoreCancellation calls the methods of a Store with a context that has ended.
func TestStoreCancellation(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s Store) {
		mustPut(t, s, "a/b", nil)
		why := errors.New("the caller has ended")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		_, err := s.Open(ctx, "a/b")
		_, err2 := s.List(ctx, "a")
		for _, err := range []error{err, err2, s.Put(ctx, "a/b", nil), s.Delete(ctx, "a/b")} {
			if !errors.Is(err, why) && !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		}
		mustHave(t, s, "a/b", nil)
	})
}

// TestStoreListsManyPages lists more entries than fit in one page.
func TestStoreListsManyPages(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t, "images")
	s := bucketStore(t, server, "s3://images/")
	const n = 1100
	for i := range n { // directly, which is faster than through the server
		path := filepath.Join(server.Dir, "images/blocks", fmt.Sprintf("%04d.blk", i))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	got := mustList(t, s, "blocks")
	if len(got) != n || !slices.IsSorted(got) {
		t.Errorf("got %d entries of %d, sorted: %v", len(got), n, slices.IsSorted(got))
	}
}

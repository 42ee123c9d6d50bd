package main

import (
	"errors"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/fetch/publish"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/s3test"
)

// The program is killed by SIGKILL again and again while it publishes an image to a bucket. An index
// that exists must be complete, and the bucket must have each of its chunks.
func TestKilledPublishRecovers(t *testing.T) {
	skipKilled(t)
	t.Parallel()
	server := s3test.Start(t, "images")
	s := newKillingProxy(server.URL)
	proxy := httptest.NewServer(s)
	defer proxy.Close()
	random := rand.New(rand.NewPCG(*killSeed, 2))
	dir := t.TempDir()
	secrets, image := filepath.Join(dir, "secrets"), filepath.Join(dir, "parrot.raw")
	err := errors.Join(server.Credentials(filepath.Join(secrets, "bucket")),
		os.WriteFile(filepath.Join(secrets, "bucket", "endpoint"), []byte(proxy.URL), 0o600),
		os.WriteFile(image, fetchtest.Random(8, 3<<20), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"publish", image, "--out", "s3://images/golden", "--store", "--secrets-dir", secrets, "--credentials", "bucket"}
	s.runKilled(t, random, 3**killTimes, args...)
	if out := s.runKilled(t, random, 0, args...); !strings.Contains(out, "unchanged") {
		t.Errorf("a repeated publish prints %q", out)
	}
	if n := server.Uploads(t, "images"); n > 0 {
		t.Errorf("%d multipart uploads were started and not ended", n)
	}
	checkPublished(t, filepath.Join(server.Dir, "images", "golden"), "parrot.raw.caibx")
}

// checkPublished verifies that the chunk store beside an index has all of its chunks.
func checkPublished(t *testing.T, dir, name string) {
	t.Helper()
	table, err := openIndex(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	unpacker := caibx.NewUnpacker()
	for n := range table.Len() {
		i := table.Item(n)
		packed, err := os.ReadFile(filepath.Join(dir, publish.StoreName, i.ID.PackedPath()))
		if err == nil {
			err = unpacker.Unpack(make([]byte, i.Length), packed, table.Header().Digest, i.ID)
		}
		if err != nil {
			t.Errorf("chunk %d: %v", n, err)
		}
	}
}

package clone

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

var (
	sourceID = ident.ID{Name: "parrot", UUID: "6846a0b2"}
	cloneID  = ident.ID{Name: "polly", UUID: "00c0ffee"}
)

// fixture contains a disk, and a secret with cheap parameters.
type fixture struct {
	dir     string
	disk    *disk.Disk
	secrets string
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	r := &fixture{dir: t.TempDir(), secrets: t.TempDir()}
	if _, err := disk.Init(r.dir); err != nil {
		t.Fatal(err)
	}
	d, err := disk.Open(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	r.disk = d
	r.writeSecret(t, "vault", map[string]string{
		fileValue: "correct horse\n", filePBKDF: "argon2id", fileIterations: "4", fileMemory: "64",
	})
	return r
}

func (r *fixture) writeSecret(t testing.TB, name string, files map[string]string) {
	t.Helper()
	dir := filepath.Join(r.secrets, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// randomBytes returns size bytes. Every second MiB is zeros.
func randomBytes(size int) []byte {
	b := make([]byte, size)
	random := rand.NewChaCha8([32]byte{1})
	for at := 0; at < size; at += 2 << 20 {
		random.Read(b[at:min(at+1<<20, size)])
	}
	return b
}

// addImage creates a ready image.
func (r *fixture) addImage(t testing.TB, id ident.ID, b []byte) model.Copy {
	t.Helper()
	p, err := r.disk.OpenPart(context.Background(), id, disk.PartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Begin(disk.PartSource{ID: "test", Size: int64(len(b))}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReadFrom(bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	c, err := p.Commit(ident.Digest{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// clone creates a clone of an image. If it fails, clone closes the partial file, like a job.
func (r *fixture) clone(t testing.TB, ctx context.Context, from, to ident.ID, e Encryption, secret string) (model.Copy, error) {
	t.Helper()
	source, err := r.disk.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	p, err := r.disk.OpenPart(ctx, to, disk.PartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var progress fetch.Progress
	q := Request{Source: source, Manifest: r.manifest(t, from), Copy: r.disk.Stat(from), Encryption: e, SecretsDir: r.secrets, Secret: secret}
	if err := Fill(ctx, p, q, &progress); err != nil {
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		return model.Copy{}, err
	}
	if done, total := progress.Done.Load(), progress.Total.Load(); done != total || total != p.Offset() {
		t.Errorf("progress is %d of %d bytes, want %d", done, total, p.Offset())
	}
	return p.Commit(ident.Digest{})
}

func (r *fixture) manifest(t testing.TB, id ident.ID) *disk.Manifest {
	t.Helper()
	m, err := r.disk.Manifest(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func (r *fixture) bytes(t testing.TB, id ident.ID) []byte {
	t.Helper()
	b, err := os.ReadFile(r.path(id))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (r *fixture) path(id ident.ID) string {
	return filepath.Join(r.dir, "backing-images", id.String(), "backing")
}

// run runs a program that must be installed.
func run(t testing.TB, stdin string, command ...string) string {
	t.Helper()
	cmd := need.Command(t, command[0], command[1:]...)
	cmd.Stdin = bytes.NewReader([]byte(stdin))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", command, err, out)
	}
	return string(out)
}

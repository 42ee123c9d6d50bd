package backup

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// TestMain runs more tests in parallel than there are CPUs, because the tests mostly wait. The flag
// -parallel has precedence.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	m.Run()
}

// fixture is a backup written by Longhorn's own code, with the expected result of a restore.
type fixture struct {
	Tar    string
	Image  string
	Size   int64
	SHA512 string
	Expect string // ok or error
	Right  bool   `json:"right_bytes_accepted"` // a restore of the right bytes is also accepted
	Reason string
}

func fixtures(t testing.TB) map[string]fixture {
	t.Helper()
	data, err := os.ReadFile("testdata/expected.json")
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]fixture
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// unpack unpacks the target into a folder and returns it.
func (f fixture) unpack(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	need.Programs(t, "zstd")
	if out, err := exec.Command("tar", "-C", dir, "--zstd", "-xpf", filepath.Join("testdata", f.Tar)).CombinedOutput(); err != nil {
		t.Fatalf("tar %s: %v\n%s", f.Tar, err, out)
	}
	return dir
}

func openTarget(t testing.TB, dir string) Store {
	t.Helper()
	s, err := Open(&fetch.Client{AllowAnyFile: true}, dir, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func newDisk(t testing.TB) *disk.Disk {
	t.Helper()
	dir := t.TempDir()
	if _, err := disk.Init(dir); err != nil {
		t.Fatal(err)
	}
	d, err := disk.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func id(name string) ident.ID { return ident.ID{Name: name, UUID: "6846a0b2"} }

// restore creates the image of a backup on the disk d.
func restore(ctx context.Context, s Store, d *disk.Disk, name string) (model.Copy, error) {
	b, err := LoadComplete(ctx, s, name)
	if err != nil {
		return model.Copy{}, err
	}
	part, err := d.OpenPart(ctx, id(name), disk.PartOptions{})
	if err != nil {
		return model.Copy{}, err
	}
	defer part.Close()
	if err := (Restore{Store: s, Backup: b}).Fill(ctx, part, new(fetch.Progress)); err != nil {
		return model.Copy{}, err
	}
	return part.Commit(b.Digest())
}

// makeImage creates a ready image.
func makeImage(t testing.TB, d *disk.Disk, name string, data []byte) model.Copy {
	t.Helper()
	part, err := d.OpenPart(context.Background(), id(name), disk.PartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer part.Close()
	if err := part.Begin(disk.PartSource{ID: "test", Size: int64(len(data))}); err != nil {
		t.Fatal(err)
	}
	if _, err := part.ReadFrom(bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	c, err := part.Commit(ident.Digest{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func verifiedDigest(t testing.TB, d *disk.Disk, id ident.ID) (size int64, digits string) {
	t.Helper()
	r, err := d.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	h := sha512.New()
	n, err := io.Copy(h, r)
	if err != nil {
		t.Fatal(err)
	}
	return n, hex.EncodeToString(h.Sum(nil))
}

// files returns the content of the files below dir by path.
func files(t testing.TB, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		found[rel] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

package backup

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// TestRestoreLonghornBackup checks that backups of Longhorn are restored to the same bytes, and that
// damaged backups leave no ready copy.
func TestRestoreLonghornBackup(t *testing.T) {
	for name, f := range fixtures(t) {
		if race.Enabled && f.Expect == "error" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, d := openTarget(t, f.unpack(t)), newDisk(t)
			_, err := restore(t.Context(), s, d, f.Image)
			switch {
			case f.Expect == "error" && err != nil:
				t.Log(err)
				if c := d.Stat(id(f.Image)); c.State == model.Ready || c.State == model.Unknown {
					t.Errorf("the backup is rejected, but the copy is %s", c.State)
				}
				return
			case f.Expect == "error" && !f.Right:
				t.Fatalf("accepted: %s", f.Reason)
			case err != nil:
				t.Fatal(err)
			}
			size, sum := verifiedDigest(t, d, id(f.Image))
			if size != f.Size || sum != f.SHA512 {
				t.Errorf("got %d bytes, sha512 %s; want %d, %s", size, sum, f.Size, f.SHA512)
			}
		})
	}
}

// TestCreateWritesLonghornFiles checks that a new backup has the same files that Longhorn wrote for
// the image: the same keys and blocks, except times. The unpacked blocks must be equal.
func TestCreateWritesLonghornFiles(t *testing.T) {
	for _, name := range []string{"backup-lz4", "backup-gzip", "backup-none", "backup-short-last", "backup-shared/willow-a"} {
		f := fixtures(t)[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			theirs := f.unpack(t)
			s, d := openTarget(t, theirs), newDisk(t)
			if _, err := restore(t.Context(), s, d, f.Image); err != nil {
				t.Fatal(err)
			}
			want, err := LoadComplete(t.Context(), s, f.Image)
			if err != nil {
				t.Fatal(err)
			}
			same, err := want.marshal()
			if err != nil {
				t.Fatal(err)
			}
			cfg := filepath.Join(theirs, cfgKey(f.Image))
			if data, err := os.ReadFile(cfg); err != nil || string(same) != string(data) {
				t.Errorf("after a round trip the cfg is %s (%v)\nwant %s", same, err, data)
			}

			ours := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				w := Creator{Store: openTarget(t, ours), Compression: want.Compression, Labels: want.Labels}
				if err := w.Create(t.Context(), d, id(f.Image), new(fetch.Progress)); err != nil {
					t.Fatal(err)
				}
			})
			got, err := LoadComplete(t.Context(), openTarget(t, ours), f.Image)
			if err != nil {
				t.Fatal(err)
			}
			got.Created, got.Completed = want.Created, want.Completed
			if data, err := got.marshal(); err != nil || string(data) != string(same) {
				t.Errorf("got cfg %s (%v)\nwant %s", data, err, same)
			}
			sameFiles(t, want, files(t, ours), files(t, theirs))
		})
	}
}

// sameFiles compares the files of two backups.
func sameFiles(t *testing.T, b *Backup, ours, theirs map[string]string) {
	t.Helper()
	d, n, equal := newDecoder(), 0, 0
	for name, got := range ours {
		if name == cfgKey(b.Name) {
			continue
		}
		n++
		sum, ok := parseBlockFile(filepath.Base(name))
		want := theirs[name]
		if !ok || want == "" {
			t.Errorf("Longhorn did not write %s", name)
			continue
		}
		if got == want {
			equal++
			continue
		}
		i := slices.IndexFunc(b.Blocks, func(b Block) bool { return b.ID == sum })
		plain := make([]byte, b.length(b.Blocks[i].Offset))
		if err := d.decode(plain, []byte(got), sum); err != nil || b.Compression == None {
			t.Errorf("%s: its %d bytes differ from the %d bytes of Longhorn (%v)", name, len(got), len(want), err)
		}
	}
	if n != len(b.Blocks) {
		t.Errorf("%d block files, want %d", n, len(b.Blocks))
	}
	t.Logf("%d of %d files are identical", equal, n)
}

// TestCompleteLonghornBackup checks that an interrupted backup of Longhorn is completed, although its
// lock still exists.
func TestCompleteLonghornBackup(t *testing.T) {
	t.Parallel()
	all := fixtures(t)
	d := newDisk(t)
	if _, err := restore(t.Context(), openTarget(t, all["backup-lz4"].unpack(t)), d, "tamarack"); err != nil {
		t.Fatal(err)
	}
	data := make([]byte, d.Stat(id("tamarack")).Size)
	r, err := d.Open(id("tamarack"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadAt(data, 0); err != nil {
		t.Fatal(err)
	}
	r.Close()
	makeImage(t, d, "zelkova", data) // the image of the incomplete backup
	dir := all["backup-incomplete"].unpack(t)
	before := files(t, dir)
	synctest.Test(t, func(t *testing.T) {
		if err := backUp(t, dir, d, "zelkova"); err != nil {
			t.Fatal(err)
		}
	})
	for name, was := range before {
		if strings.HasSuffix(name, blockSuffix) && files(t, dir)[name] != was {
			t.Errorf("%s existed and was written again", name)
		}
	}
	s := openTarget(t, dir)
	b, err := LoadComplete(t.Context(), s, "zelkova")
	if err != nil {
		t.Fatal(err)
	}
	if want := time.Date(2026, 11, 20, 9, 26, 26, 0, time.UTC); !b.Created.Equal(want) || len(b.Blocks) != 5 {
		t.Errorf("created %v with %d blocks; want %v with 5", b.Created, len(b.Blocks), want)
	}
	locks, err := s.List(t.Context(), locksFolder)
	if err != nil || len(locks) > 1 {
		t.Errorf("locks left: %v (%v)", locks, err)
	}
	if _, err := restore(t.Context(), s, newDisk(t), "zelkova"); err != nil {
		t.Error(err)
	}
}

func backUp(t testing.TB, dir string, d *disk.Disk, name string) error {
	return backUpCtx(t.Context(), t, dir, d, name)
}

func backUpCtx(ctx context.Context, t testing.TB, dir string, d *disk.Disk, name string) error {
	t.Helper()
	w := Creator{Store: openTarget(t, dir), Compression: LZ4}
	return w.Create(ctx, d, id(name), new(fetch.Progress))
}

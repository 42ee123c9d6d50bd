package backup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
)

// TestDeleteKeepsBlocksOfUnreadableBackups checks that Delete removes no block while another backup
// may use it.
func TestDeleteKeepsBlocksOfUnreadableBackups(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	makeImage(t, d, "a1", testBytes(1, 4<<20))
	makeImage(t, d, "b1", testBytes(2, 4<<20))
	for name, spoil := range map[string]func(cfg string) string{
		"is incomplete": func(cfg string) string {
			b, err := parseCfg(strings.NewReader(cfg))
			if err != nil {
				t.Fatal(err)
			}
			b = &Backup{Name: b.Name, Size: b.Size, Checksum: b.Checksum, Compression: b.Compression, Created: b.Created}
			data, err := b.marshal()
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		},
		"it is truncated":                        func(cfg string) string { return cfg[:len(cfg)/2] },
		"it contains the name of another backup": func(cfg string) string { return strings.Replace(cfg, "b1", "b2", 1) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				s := openTarget(t, dir)
				mustBackUp(t, dir, d, "a1")
				mustBackUp(t, dir, d, "b1")
				cfg := filepath.Join(dir, cfgKey("b1"))
				if err := os.WriteFile(cfg, []byte(spoil(files(t, dir)[cfgKey("b1")])), 0o644); err != nil {
					t.Fatal(err)
				}
				done, err := Delete(t.Context(), s, "a1")
				if err != nil || !done.Found || done.RemovedBlocks != 0 || done.BlocksKept == nil || !strings.Contains(done.BlocksKept.Error(), name) {
					t.Errorf("got %+v (%v)", done, err)
				}
				if n := blockFiles(t, dir); n != 4 {
					t.Errorf("%d blocks remain of 4", n)
				}
				// After the other backup is deleted, another Delete of the same name removes the kept
				// blocks.
				if _, err := Delete(t.Context(), s, "b1"); err != nil {
					t.Fatal(err)
				}
				if done, err = Delete(t.Context(), s, "a1"); err != nil || done.Found {
					t.Errorf("got %+v (%v)", done, err)
				}
				if left := files(t, dir); len(left) > 0 {
					t.Errorf("files left: %v", left)
				}
			})
		})
	}
}

// TestDeleteIgnoresForeignFiles checks that Delete removes no block while there is an invalid entry
// among the backups, and that it ignores files that are not blocks.
func TestDeleteIgnoresForeignFiles(t *testing.T) {
	t.Parallel()
	d, dir := newDisk(t), t.TempDir()
	makeImage(t, d, "a1", testBytes(1, 4<<20))
	foreign := []string{filepath.Join(blocksFolder, "lost+found", "x"), filepath.Join(blocksFolder, "00", "note.txt"), filepath.Join(blocksFolder, "README")}
	for _, name := range foreign {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	strange := filepath.Join(dir, imagesFolder, "what is this")
	synctest.Test(t, func(t *testing.T) {
		s := openTarget(t, dir)
		mustBackUp(t, dir, d, "a1")
		if err := os.Mkdir(strange, 0o755); err != nil {
			t.Fatal(err)
		}
		done, err := Delete(t.Context(), s, "a1")
		if err != nil || done.RemovedBlocks != 0 || done.BlocksKept == nil || !strings.Contains(done.BlocksKept.Error(), "is not a valid name of a backup") {
			t.Errorf("got %+v (%v)", done, err)
		}
		if err := os.Remove(strange); err != nil {
			t.Fatal(err)
		}
		if done, err := Delete(t.Context(), s, "a1"); err != nil || done != (DeleteResult{RemovedBlocks: 2}) {
			t.Errorf("got %+v (%v)", done, err)
		}
		if left := files(t, dir); len(left) != len(foreign) {
			t.Errorf("files left: %v", left)
		}
	})
}

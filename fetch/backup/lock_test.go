package backup

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

// writeLock writes the lock file of another process. The file was last written age before now.
func writeLock(t testing.TB, dir string, f lockFile, age time.Duration) string {
	t.Helper()
	data, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, f.key())
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	when := time.Now().Add(-age)
	if err := os.Chtimes(path, when, when); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLockConflicts(t *testing.T) {
	for _, c := range []struct {
		name   string
		other  lockFile
		age    time.Duration
		want   lockType
		blocks bool
		swept  bool
	}{
		{"backup during a backup", lockFile{"lock-1", shared, true}, 0, shared, false, false},
		{"backup during a deletion", lockFile{"lock-1", exclusive, true}, 10 * time.Second, shared, true, false},
		{"deletion during a backup", lockFile{"lock-1", shared, true}, 10 * time.Second, exclusive, true, false},
		{"deletion nearly at the end of a lock", lockFile{"lock-1", shared, true}, 140 * time.Second, exclusive, true, false},
		{"deletion after a lock", lockFile{"lock-1", shared, true}, 155 * time.Second, exclusive, false, false},
		{"deletion long after a lock", lockFile{"lock-1", shared, true}, 2 * time.Hour, exclusive, false, true},
		{"deletion after a waiting lock", lockFile{"lock-1", shared, false}, 10 * time.Second, exclusive, true, false},
		{"deletion before a waiting lock", lockFile{"lock-1", shared, false}, -10 * time.Second, exclusive, false, false},
		{"deletion before an acquired lock", lockFile{"lock-1", shared, true}, -10 * time.Second, exclusive, true, false},
		{"lock without a type", lockFile{"lock-1", 0, true}, 0, shared, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			other := writeLock(t, dir, c.other, c.age)
			synctest.Test(t, func(t *testing.T) {
				s := openTarget(t, dir)
				_, l, err := acquire(t.Context(), s, c.want, lockSettleTime)
				if (err != nil) != c.blocks || err != nil && !isClass(err, fetch.Network) {
					t.Fatalf("got %v", err)
				}
				if l != nil {
					data, err := os.ReadFile(filepath.Join(dir, l.file.key()))
					if want := `{"Name":"` + l.file.Name + `","Type":` + map[lockType]string{shared: "1", exclusive: "2"}[c.want] + `,"Acquired":true}`; err != nil || string(data) != want {
						t.Errorf("the lock is %s (%v), want %s", data, err, want)
					}
					l.release(t.Context())
				}
			})
			if _, err := os.Stat(other); (err != nil) != c.swept {
				t.Errorf("the other lock: %v", err)
			}
			if left := files(t, dir); len(left) > 1 {
				t.Errorf("files left: %v", left)
			}
		})
	}
}

// TestInvalidLockFilesAreIgnored checks that other files in the folder of locks are ignored.
func TestInvalidLockFilesAreIgnored(t *testing.T) {
	dir := t.TempDir()
	writeLock(t, dir, lockFile{"lock-zz", exclusive, true}, 0)
	path := writeLock(t, dir, lockFile{"lock-1", exclusive, true}, 0)
	if err := os.WriteFile(path, []byte(`{"Na`), 0o644); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		_, l, err := acquire(t.Context(), openTarget(t, dir), shared, lockSettleTime)
		if err != nil {
			t.Fatal(err)
		}
		l.release(t.Context())
	})
}

// TestLockIsRenewed checks that a lock is renewed until the work ends, and that the work is canceled
// if the lock cannot be renewed.
func TestLockIsRenewed(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := openTarget(t, dir)
		err := withLock(t.Context(), s, shared, func(ctx context.Context, _ *lock) error {
			locks := filepath.Join(dir, locksFolder)
			for range 10 {
				if err := os.RemoveAll(locks); err != nil {
					t.Fatal(err)
				}
				time.Sleep(lockRenewInterval + time.Second)
				if len(files(t, dir)) != 1 {
					t.Errorf("the lock was not renewed: %v", files(t, dir))
				}
			}
			if err := os.RemoveAll(locks); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(locks, nil, 0o644); err != nil { // no file can be created below a regular file
				t.Fatal(err)
			}
			begun := time.Now()
			<-ctx.Done()
			if took := time.Since(begun); took > lockTTL {
				t.Errorf("the lock was considered valid for %v", took)
			}
			if err := os.Remove(locks); err != nil {
				t.Fatal(err)
			}
			return ctx.Err()
		})
		if err == nil || !isClass(err, fetch.Network) || !strings.Contains(err.Error(), "lost the lock") {
			t.Errorf("got %v", err)
		}
	})
}

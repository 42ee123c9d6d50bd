package clone

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// interrupt leaves the partial file of a clone as after a crash, with the given number of bytes.
func (r *fixture) interrupt(t *testing.T, q Request, after int64) {
	t.Helper()
	p, err := r.disk.OpenPart(context.Background(), cloneID, disk.PartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var progress fetch.Progress
	if err := errors.Join(Fill(context.Background(), p, q, &progress), p.Close()); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(filepath.Dir(r.path(cloneID)), "backing.part"), after); err != nil {
		t.Fatal(err)
	}
}

// resume completes the clone from the partial file, and checks the number of kept bytes (-1: any
// number).
func (r *fixture) resume(t *testing.T, q Request, kept int64) {
	t.Helper()
	p, err := r.disk.OpenPart(context.Background(), cloneID, disk.PartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if kept >= 0 && p.Offset() != kept {
		t.Errorf("%d bytes were kept, want %d", p.Offset(), kept)
	}
	var progress fetch.Progress
	if err := Fill(context.Background(), p, q, &progress); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Commit(ident.Digest{}); err != nil {
		t.Fatal(err)
	}
}

func (r *fixture) request(t *testing.T, from ident.ID, e Encryption) Request {
	t.Helper()
	source, err := r.disk.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { source.Close() })
	return Request{Source: source, Manifest: r.manifest(t, from), Copy: r.disk.Stat(from), Encryption: e, SecretsDir: r.secrets, Secret: "vault"}
}

func TestResume(t *testing.T) {
	need.Programs(t, "cryptsetup")
	const MiB = 1 << 20
	again := ident.ID{Name: "again", UUID: "00c0ffee"}
	tests := []struct {
		name        string
		how         Encryption
		left, kept  int64
		newPassword bool
	}{
		{"plain", Ignore, 3*MiB + 5, 3 * MiB, false},
		{"decrypted", Decrypt, 3*MiB + 5, 3 * MiB, false},
		{"encrypted", Encrypt, 18*MiB + 5, 18 * MiB, false},
		{"encrypted, the header truncated", Encrypt, 7 * MiB, 7 * MiB, false},
		{"encrypted, only the header", Encrypt, 16 * MiB, 16 * MiB, false},
		{"encrypted, and the passphrase changed", Encrypt, 18 * MiB, 18 * MiB, true},
	}
	for i, test := range tests {
		if race.Enabled && i%3 != 1 {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			r := newFixture(t)
			plain := randomBytes(5*MiB + 512)
			r.addImage(t, sourceID, plain)
			from := sourceID
			if test.how == Decrypt {
				from = ident.ID{Name: "encrypted", UUID: "00c0ffee"}
				if _, err := r.clone(t, context.Background(), sourceID, from, Encrypt, "vault"); err != nil {
					t.Fatal(err)
				}
			}
			r.interrupt(t, r.request(t, from, test.how), test.left)
			var header []byte
			if test.how == Encrypt {
				b, err := os.ReadFile(filepath.Join(filepath.Dir(r.path(cloneID)), "backing.part"))
				if err != nil {
					t.Fatal(err)
				}
				header = b[:4096]
			}
			if test.newPassword {
				r.writeSecret(t, "vault", map[string]string{fileValue: "another"})
			}
			r.resume(t, r.request(t, from, test.how), test.kept)
			got := r.bytes(t, cloneID)
			if test.how == Encrypt {
				if same := bytes.Equal(got[:4096], header); same != (test.left >= 16*MiB && !test.newPassword) {
					t.Errorf("the clone has the same header: %v", same)
				}
				if _, err := r.clone(t, context.Background(), cloneID, again, Decrypt, "vault"); err != nil {
					t.Fatal(err)
				}
				got = r.bytes(t, again)
			}
			if !bytes.Equal(got, plain) {
				t.Error("the clone has wrong bytes")
			}
		})
	}
}

// TestCancelEndsCryptsetup cancels an encryption while cryptsetup runs, and checks that a copy
// with the canceled context fails too.
func TestCancelEndsCryptsetup(t *testing.T) {
	need.Programs(t, "cryptsetup")
	r := newFixture(t)
	r.addImage(t, sourceID, randomBytes(5<<20))
	r.writeSecret(t, "vault", map[string]string{filePBKDF: "pbkdf2", fileIterations: "100000000"})
	ctx, cancel := context.WithCancel(context.Background())
	p, err := r.disk.OpenPart(ctx, cloneID, disk.PartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ended := make(chan error)
	q := r.request(t, sourceID, Encrypt)
	go func() { ended <- Fill(ctx, p, q, &fetch.Progress{}) }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	if err := Fill(ctx, p, r.request(t, sourceID, Ignore), &fetch.Progress{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

// TestSourceChangedWhileReadIsRefused checks that a source that changes while it is read creates no
// clone.
func TestSourceChangedWhileReadIsRefused(t *testing.T) {
	need.Programs(t, "cryptsetup")
	for _, how := range []Encryption{Ignore, Encrypt} {
		r := newFixture(t)
		r.addImage(t, sourceID, randomBytes(3<<20))
		q := r.request(t, sourceID, how)
		f, err := os.OpenFile(r.path(sourceID), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("changed"), 1<<20); err != nil {
			t.Fatal(err)
		}
		f.Close()
		p, err := r.disk.OpenPart(context.Background(), cloneID, disk.PartOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if err := Fill(context.Background(), p, q, &fetch.Progress{}); !errors.Is(err, disk.ErrModified) {
			t.Errorf("%s: error is %v, want ErrModified", how, err)
		}
	}
}

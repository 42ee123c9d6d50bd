package reconcile

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// One odd number in one small file of one folder, of whomever, makes the whole node unreadable for all others.
func TestPublishFolderWithInvalidNumbers(t *testing.T) {
	for name, text := range map[string]string{
		"backing.cfg":    `{"name":"x","uuid":"00000001","size":512,"virtualSize":9223372036854775807,"realSize":1,"modificationTime":"x","currentChecksum":"","expectedChecksum":""}`,
		"backing.record": `{"owner":"backing-image-manager","created":"2026-11-20T00:00:00Z","virtualSize":-1}`,
		"sha256":         `{"name":"x","uuid":"00000001","size":512,"virtualSize":1,"realSize":1,"modificationTime":"x","currentChecksum":"sha256:` + fmt.Sprintf("%064d", 1) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			path := newDisk(t)
			folder := filepath.Join(path, "backing-images", "other-00000001")
			must(t, os.MkdirAll(folder, 0o755))
			must(t, os.WriteFile(filepath.Join(folder, "backing"), make([]byte, 512), 0o644))
			if name == "sha256" {
				name = "backing.cfg"
			}
			must(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644))
			r := New(fetch.Client{}, slog.New(slog.DiscardHandler), false)
			defer r.Close()
			d := plantest.Load(t, "images: {}\nsettings: {scrubInterval: 0}\n", path)
			o := r.Observe(d)
			r.publish(d, o)
			s := httptest.NewServer(peer.NewServer(r.local.peers.published, peerNode{r: r}).Handler())
			defer s.Close()
			_, _, err := peer.NewClient(nil, nil).State(t.Context(), peer.Address{Node: d.Node, URL: s.URL}, "", 0)
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// A time in a record on a disk, in another zone, ends the daemon.
func TestPublishTimeOutOfRange(t *testing.T) {
	r, err := disk.ParseRecord([]byte(`{"owner":"backing-image-manager","created":"2026-11-20T00:00:00Z","verified":"9999-12-31T23:59:59-23:59"}`))
	if err != nil {
		t.Skip(err)
	}
	defer func() {
		if p := recover(); p != nil {
			t.Error(p)
		}
	}()
	b := peer.NewStateCache()
	b.Publish(peer.State{Node: "a", Disks: []peer.Disk{{Name: "d", Copies: []peer.Copy{copyToPeer(plan.Copy{Copy: disk.Copy{ID: disk.ID{Name: "parrot", UUID: "0000000a"}, VerifiedAt: r.VerifiedAt}})}}}})
}

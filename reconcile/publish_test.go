package reconcile

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// An invalid number in a small file of some folder, unmanaged or not, must not keep peers from
// decoding the state of the whole node.
func TestPublishFolderWithInvalidNumbers(t *testing.T) {
	for name, text := range map[string]string{
		"backing.cfg":              `{"name":"x","uuid":"00000001","size":512,"virtualSize":9223372036854775807,"realSize":1,"modificationTime":"x","currentChecksum":"","expectedChecksum":""}`,
		"backing.record":           `{"owner":"backing-image-manager","version":1,"created":"2026-11-20T00:00:00Z","virtualSize":-1}`,
		"backing.cfg with SHA-256": `{"name":"x","uuid":"00000001","size":512,"virtualSize":1,"realSize":1,"modificationTime":"x","currentChecksum":"sha256:` + fmt.Sprintf("%064d", 1) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			path := newDisk(t)
			folder := filepath.Join(path, "backing-images", "other-00000001")
			must(t, os.MkdirAll(folder, 0o755))
			must(t, os.WriteFile(filepath.Join(folder, "backing"), make([]byte, 512), 0o644))
			file, _, _ := strings.Cut(name, " ")
			must(t, os.WriteFile(filepath.Join(folder, file), []byte(text), 0o644))
			r := New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), false)
			defer r.Close()
			d := plantest.Load(t, "images: {}\nsettings: {scrubInterval: 0}\n", path)
			o := r.Observe(d)
			r.publish(plan.NewRound(d, o), plan.Plan{})
			s := httptest.NewServer(peer.NewServer(r.local.Published, &r.served).Handler())
			defer s.Close()
			_, _, err := peer.NewClient(nil, nil).State(t.Context(), peer.Address{Node: d.Node, URL: s.URL}, "", 0)
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// A record has a time with a zone that makes it later than JSON can encode. It must not panic
// when it is published.
func TestPublishTimeOutOfRange(t *testing.T) {
	r, err := disk.ParseRecord([]byte(`{"owner":"backing-image-manager","version":1,"created":"2026-11-20T00:00:00Z","verifiedAt":"9999-12-31T23:59:59-23:59"}`))
	if err != nil {
		t.Skip(err)
	}
	defer func() {
		if p := recover(); p != nil {
			t.Error(p)
		}
	}()
	peer.NewStateCache().Publish(model.Node{Version: model.Version, Node: "a", Disks: map[string]model.Disk{"d": {Copies: model.NewCopies(model.Copy{ID: ident.ID{Name: "parrot", UUID: "0000000a"}, VerifiedAt: r.VerifiedAt})}}})
}
